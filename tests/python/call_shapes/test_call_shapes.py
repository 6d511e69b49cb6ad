"""The call shapes of Mooncake and the Yuanrong transfer engine, driven over two processes."""

from collections.abc import Callable

import numpy as np
from call_shapes.mooncake import TransferEngine as MooncakeEngine
from child import Child

from stagelink.compat.yuanrong import TransferEngine as YuanrongEngine

PEER_OF_ADDRESSES = """
engine = TransferEngine()
buffers = [np.full(65536, 10 + i, np.uint8) for i in range(2)]
"""


def test_mooncake_pushes_and_pulls_by_address(child: Callable[..., Child]) -> None:
    peer = child()
    peer.run("from call_shapes.mooncake import TransferEngine" + PEER_OF_ADDRESSES)
    assert peer.run("engine.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', '')") == 0
    addresses = peer.run("[b.ctypes.data for b in buffers]")
    assert (
        peer.run("engine.batch_register_memory([b.ctypes.data for b in buffers], [65536] * 2)") == 0
    )
    target = f"127.0.0.1:{peer.run('engine.get_rpc_port()')}"

    engine = MooncakeEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    mine = [np.full(4096, 1 + i, np.uint8) for i in range(3)]
    pointers = [array.ctypes.data for array in mine]
    assert engine.batch_register_memory(pointers, [4096] * 3) == 0
    assert (
        engine.batch_transfer_sync_write(
            target,
            [pointers[2], pointers[0] + 96, pointers[1]],
            [addresses[0] + 100, addresses[1], addresses[0]],
            [4096, 4000, 50],
        )
        == 0
    )
    first, second = peer.run("[b.copy() for b in buffers]")
    assert (first[100:4196] == 3).all() and (first[:50] == 2).all() and (first[4196:] == 10).all()
    assert (second[:4000] == 1).all() and (second[4000:] == 11).all()
    assert engine.transfer_sync_read(target, pointers[0], addresses[1] + 3998, 4) == 0
    assert mine[0][:5].tolist() == [1, 1, 11, 11, 1]

    beyond = addresses[0] + 65536 - 8
    assert engine.transfer_sync_read(target, pointers[0], beyond, 9) == -1
    assert engine.transfer_sync_read(target, pointers[0] - 4096, addresses[0], 4) == -1
    assert engine.transfer_sync_read("127.0.0.1:1", pointers[0], addresses[0], 4) == -1
    assert engine.batch_transfer_sync_write(target, [], [], []) == 0
    assert engine.batch_unregister_memory(pointers) == 0
    assert engine.unregister_memory(pointers[0]) == -1
    engine.close()


def test_yuanrong_pulls_by_address_and_tells_by_result(child: Callable[..., Child]) -> None:
    peer = child()
    peer.run("from stagelink.compat.yuanrong import TransferEngine" + PEER_OF_ADDRESSES)
    assert peer.run("engine.initialize('127.0.0.1:0', 'ascend', 'npu:0').is_ok()")
    addresses = peer.run("[b.ctypes.data for b in buffers]")
    assert peer.run("engine.register_memory(buffers[0].ctypes.data, 65536).is_ok()")
    assert peer.run("engine.register_memory(buffers[0].ctypes.data + 8, 8).is_error()")
    target = f"127.0.0.1:{peer.run('engine.get_rpc_port()')}"

    engine = YuanrongEngine()
    assert engine.initialize("127.0.0.1:0", "ascend", "npu:0").is_ok()
    pool = np.zeros(1 << 20, np.uint8)
    start = pool.ctypes.data
    assert engine.register_memory(start, pool.nbytes).is_ok()
    local, lengths = [start + 4096, start, start + 8192], [100, 4096, 1]
    remote = [addresses[0] + 5, addresses[0], addresses[0] + 65535]
    result = engine.batch_transfer_sync_read(target, local, remote, lengths)
    assert result.is_ok() and not result.is_error(), result.to_string()
    assert (pool[:4196] == 10).all() and not pool[4196:8192].any() and pool[8192] == 10

    refused = engine.transfer_sync_read(target, start, addresses[1], 8)
    assert refused.is_error() and refused.to_string().startswith("code=9, msg=")
    peer.kill()
    assert engine.transfer_sync_read(target, start, addresses[0], 8).is_error()
    assert engine.finalize().is_ok()
