"""`stagelink.compat.mooncake`: the calls that vLLM uses, with the answers of the original."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from stagelink.compat.mooncake import TransferEngine, enable


@pytest.fixture
def pair() -> Iterator[tuple[TransferEngine, TransferEngine]]:
    engines = (TransferEngine(), TransferEngine())
    for engine in engines:
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    yield engines
    for engine in engines:
        engine.close()


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_a_batch_is_written_where_the_peer_has_registered_memory(
    pair: tuple[TransferEngine, TransferEngine],
) -> None:
    source, sink = pair
    here = np.arange(64 << 10, dtype=np.uint8)
    there = np.zeros(64 << 10, dtype=np.uint8)
    assert source.batch_register_memory([address(here)], [here.nbytes]) == 0
    assert sink.batch_register_memory([address(there)], [there.nbytes]) == 0
    session = f"127.0.0.1:{sink.get_rpc_port()}"
    half = here.nbytes // 2
    starts, ends = [address(here), address(here) + half], [address(there) + half, address(there)]
    assert source.batch_transfer_sync_write(session, starts, ends, [half, half]) == 0
    assert (there[half:] == here[:half]).all() and (there[:half] == here[half:]).all()
    there[:] = 0
    assert source.batch_transfer_sync_read(session, [address(here)], [address(there)], [half]) == 0
    assert not here[:half].any()
    assert source.batch_unregister_memory([address(here)]) == 0
    assert sink.unregister_memory(address(there)) == 0


def test_what_is_wrong_is_an_answer_and_never_raised(
    pair: tuple[TransferEngine, TransferEngine],
) -> None:
    source, sink = pair
    memory = np.zeros(8192, dtype=np.uint8)
    at = address(memory)
    session = f"127.0.0.1:{sink.get_rpc_port()}"
    assert TransferEngine().batch_register_memory([at], [16]) != 0  # Not initialized.
    assert source.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0  # Twice.
    assert TransferEngine().initialize("127.0.0.1", "etcd://x", "tcp", "") != 0
    assert TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "smoke", "") != 0
    assert source.unregister_memory(at) != 0
    # All or none: the second overlaps with the first.
    assert source.batch_register_memory([at, at + 10], [4096, 4096]) != 0
    assert source.batch_register_memory([at], [4096]) == 0
    # Not registered there, nothing to do, lists of different length, nobody there.
    assert source.batch_transfer_sync_write(session, [at], [at + 4096], [16]) != 0
    assert source.batch_transfer_sync_write(session, [], [], []) != 0
    assert source.batch_transfer_sync_write(session, [at], [at], [1, 2]) != 0
    assert source.batch_transfer_sync_write("127.0.0.1:1", [at], [at], [16]) != 0
    arrays = np.array([at, at]), np.array([at, at]), np.array([16, 0])
    assert source.batch_transfer_sync_write(session, *arrays) != 0
    assert source.batch_transfer_sync_read(session, [at], [at], [None]) != 0  # type: ignore[list-item]
    assert source.batch_transfer_sync_read(session, None, None, None) != 0  # type: ignore[arg-type]
    assert not memory.any()


def test_an_installed_mooncake_is_left_alone(tmp_path: object) -> None:
    folder = str(tmp_path)
    program = (
        "import os, sys; os.makedirs(sys.argv[1] + '/mooncake'); sys.path.insert(0, sys.argv[1])\n"
        "open(sys.argv[1] + '/mooncake/__init__.py', 'w').close()\n"
        "from stagelink.compat.mooncake import enable\n"
        "assert not enable()\n"
        "import mooncake; assert mooncake.__file__.startswith(sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", program, folder], check=True, timeout=60)


def test_where_there_is_none_it_is_found_when_asked_for() -> None:
    program = (
        "from stagelink.compat.mooncake import TransferEngine, enable\n"
        "import importlib.util\n"
        "if importlib.util.find_spec('mooncake') is None:\n"
        "    assert enable() and enable()\n"
        "    from mooncake.engine import TransferEngine as Found\n"
        "    assert Found is TransferEngine\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert callable(enable)
