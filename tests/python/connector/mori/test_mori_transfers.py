"""`mori.io` on stagelink's engine: transfers between two processes."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from child import Child
from connector.mori.mori_pair import FakeTensor, Pair

import stagelink as sl
from stagelink.compat.mori.io import (
    BackendType,
    EngineDesc,
    FabricBackendConfig,
    IOEngine,
    IOEngineConfig,
    IOEngineSession,
    MemoryDesc,
    MemoryLocationType,
    PollCqMode,
    RdmaBackendConfig,
    StatusCode,
    TransportBackendConfig,
    XgmiBackendConfig,
)

Children = Callable[..., Child]


@pytest.fixture(params=["RDMA", "TCP"])
def pair(child: Children, request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(child, request.param)
    yield pair
    pair.engine.close()


@pytest.fixture
def engine(nothing_left_over: None) -> Iterator[IOEngine]:
    with IOEngine("engine", IOEngineConfig()) as engine:
        engine.create_backend(BackendType.RDMA)
        yield engine


def test_each_way_to_move_a_batch(pair: Pair) -> None:
    # In one test, for the sake of the second process.
    for operation, with_session, batch, size in itertools.product(
        ("read", "write"), (True, False), (1, 64), (8, 8192)
    ):
        pair.array[:] = 0
        pair.process.run("array[:] = np.arange(array.size)")
        if operation == "write":
            pair.array[:] = np.arange(pair.array.size)[::-1]
        offsets = [i * size for i in range(batch)]
        arguments = (offsets, offsets, [size] * batch)
        if with_session:
            uid = pair.session.allocate_transfer_uid()
            status = getattr(pair.session, f"batch_{operation}")(*arguments, uid)
        else:
            uid = pair.engine.allocate_transfer_uid()
            status = getattr(pair.engine, f"batch_{operation}")(
                pair.local, offsets, pair.remote, offsets, [size] * batch, uid
            )
        status.Wait()
        assert status.Succeeded(), status.Message()
        assert pair.popped(uid) == (StatusCode.SUCCESS, None)
        count = batch * size // 4
        if operation == "read":
            assert np.array_equal(pair.array[:count], np.arange(count))
            assert not pair.array[count:].any()
        else:
            seen = pair.process.run("array.copy()")
            assert np.array_equal(seen[:count], pair.array[:count])
            assert np.array_equal(seen[count:], np.arange(count, seen.size))


def test_single_ranges_and_arrays_of_offsets(pair: Pair) -> None:
    session = pair.session
    assert session.read(0, 400, 40, session.allocate_transfer_uid()).WaitFor() == StatusCode.SUCCESS
    assert np.array_equal(pair.array[:10], np.arange(100, 110))
    offsets = np.array([4000, 8000], np.uint64)
    status = session.batch_read(offsets, np.array([0, 4], np.int64), np.array([4, 8]), 1)
    assert status.WaitFor() == StatusCode.SUCCESS
    assert pair.array[1000] == 0 and pair.array[2000:2002].tolist() == [1, 2]
    status = session.batch_read((0, 4), (12, 8), 4, 2)  # One size for all.
    assert status.WaitFor() == StatusCode.SUCCESS
    assert pair.array[:2].tolist() == [3, 2]
    assert session.write(0, 0, 4, 3).WaitFor() == StatusCode.SUCCESS
    assert pair.process.run("int(array[0])") == 3


def test_many_transfers_at_once_have_a_status_each(pair: Pair) -> None:
    other = pair.engine.register_memory(pair.array.ctypes.data + 4096, 4096)
    statuses = pair.engine.batch_read(
        [pair.local, other, pair.local],
        [[0, 4], [0], [8]],
        [pair.remote] * 3,
        [[40, 80], [0], [1 << 20]],
        [[4, 4], [4096], [1]],
        [1, 2, 3],
    )
    assert isinstance(statuses, list) and len(statuses) == 3
    assert pair.engine.wait_all(statuses[:2], timeout_ms=20_000) == StatusCode.SUCCESS
    assert pair.engine.wait_all(statuses) == StatusCode.ERR_INVALID_ARGS
    assert pair.array[:2].tolist() == [10, 20]
    assert np.array_equal(pair.array[1024:2048], np.arange(1024))
    with pytest.raises(ValueError, match="batch of 1 transfers got a list of 2"):
        pair.engine.batch_read([other], [[0]], [pair.remote] * 2, [[0]], [[1]], [1])


def test_what_lies_out_of_range_fails_at_once(pair: Pair) -> None:
    size = pair.array.nbytes
    for local, remote, sizes in (
        ((0, size - 4), (0, 0), (4, 8)),
        ((0, 0), (0, size - 4), (4, 8)),
        ((0,), (0, 0), (4,)),
    ):
        status = pair.session.batch_read(local, remote, sizes, 1)
        assert status.Failed() and status.Code() is StatusCode.ERR_INVALID_ARGS
        assert status.Message()
    assert "length out of range" in pair.session.batch_read([0], [size], [1], 1).Message()
    assert not pair.array.any()
    assert pair.session.batch_read([0], [0], [size], 2).WaitFor() == StatusCode.SUCCESS
    assert pair.session.batch_read([], [], [], 3).Succeeded()


def test_offsets_that_are_no_numbers_are_refused(pair: Pair) -> None:
    for bad in (["a"], [1.5], [-1], [1 << 64]):
        with pytest.raises(ValueError, match="local_offsets"):
            pair.session.batch_read(bad, [0], [1], 1)  # type: ignore[arg-type]


def test_shared_memory_is_read_while_its_owner_is_stopped(child: Children) -> None:
    pair = Pair(child)
    pair.process.stop()
    try:
        status = pair.session.batch_read([0], [0], [1 << 20], 1)
        assert status.WaitFor(20_000) == StatusCode.SUCCESS
    finally:
        pair.process.resume()
    assert np.array_equal(pair.array, np.arange(1 << 18))
    assert "shm" in pair.session.explain()
    pair.engine.close()


def test_a_full_queue_fails_at_once_and_says_so(child: Children) -> None:
    config = RdmaBackendConfig(1, -1, 1, PollCqMode.POLLING, enable_notification=False)
    pair = Pair(child, "TCP", options={"max_transfers": 2}, config=config)
    pair.process.stop()
    try:
        pending = [pair.session.batch_read([0], [0], [4], uid) for uid in range(2)]
        assert [status.Code() for status in pending] == [StatusCode.IN_PROGRESS] * 2
        full = pair.session.batch_read([0], [0], [4], 3)
        assert full.Failed() and "SQ full" in full.Message()
        assert pending[0].WaitFor(0) == StatusCode.IN_PROGRESS
        assert pair.engine.wait_all([*pending, full], 0) == StatusCode.ERR_RDMA_OP
        assert pending[0].Cancel() == StatusCode.ERR_RDMA_OP
        assert "cancelled" in pending[0].Message()
    finally:
        pair.process.resume()
    assert pending[1].WaitFor(20_000) == StatusCode.SUCCESS
    pair.engine.close()


def test_a_status_may_be_dropped_in_flight(child: Children) -> None:
    pair = Pair(child, "TCP")
    pair.process.stop()
    try:
        for uid in range(10):
            pair.session.batch_read([uid * 4096], [uid * 4096], [4096], uid)
    finally:
        pair.process.resume()
    for uid in range(10):
        assert pair.popped(uid) == (StatusCode.SUCCESS, None)
    assert np.array_equal(pair.array[:10240], np.arange(10240))
    pair.engine.close()


def test_a_target_that_died_and_came_back_under_its_key(child: Children) -> None:
    pair = Pair(child)
    stale = pair.remote
    pair.process.kill()
    while pair.session.alive():
        pass
    assert pair.session.read(0, 0, 4, 1).WaitFor() == StatusCode.ERR_RDMA_OP
    again = Pair(child)
    assert again.target.key == pair.target.key
    pair.engine.register_remote_engine(again.target)
    session = pair.engine.create_session(pair.local, again.remote)
    assert session is not None and session.alive()
    assert session.read(0, 40, 4, 2).WaitFor() == StatusCode.SUCCESS
    assert pair.array[0] == 10
    assert pair.engine.create_session(pair.local, stale) is None
    pair.engine.close()
    again.engine.close()


def test_without_a_backend_nothing_moves(pair: Pair) -> None:
    with IOEngine("lonely") as lonely:
        lonely.register_remote_engine(pair.target)
        memory = lonely.register_memory(pair.array.ctypes.data, pair.array.nbytes)
        assert lonely.create_session(memory, pair.remote) is None
        status = lonely.read(memory, 0, pair.remote, 0, 4, 1)
        assert status.Failed() and status.Code() is StatusCode.ERR_BAD_STATE
    pair.engine.deregister_remote_engine(pair.target)
    assert not pair.session.alive()
    assert pair.session.read(0, 0, 4, 1).Code() is StatusCode.ERR_BAD_STATE
    assert pair.engine.create_session(pair.local, pair.remote) is None


def test_engine_descriptors_are_values(engine: IOEngine) -> None:
    desc = engine.get_engine_desc()
    assert desc.key == "engine" and desc.host == "127.0.0.1" and 0 < desc.port < 65536
    assert desc.node_id and desc.pid
    again = EngineDesc.unpack(desc.pack())
    assert again == desc and hash(again) == hash(desc) and again.port == desc.port
    assert desc.pack()[0] == 0x96  # An array of six.
    with pytest.raises(sl.Corrupt, match="engine descriptor"):
        EngineDesc.unpack(desc.pack()[:-1])


def test_the_node_id_can_be_given(child: Children) -> None:
    process = child(MORI_NODE_ID="node-7")
    code = "from stagelink.compat.mori.io import IOEngine\nIOEngine('e').get_engine_desc().node_id"
    assert process.run(code) == "node-7"


def test_memory_descriptors_tell_of_their_tensor(engine: IOEngine) -> None:
    array = np.zeros((1, 2, 34, 56), np.float32)
    memory = engine.register_torch_tensor(FakeTensor(array))
    assert memory.engine_key == "engine" and memory.device_id == -1
    assert memory.data == array.ctypes.data and memory.size == array.nbytes
    assert memory.loc is MemoryLocationType.CPU and memory.device_bus_id == ""
    assert len(memory.ipc_handle) == 64
    again = MemoryDesc.unpack(memory.pack())
    assert again == memory and again.data == memory.data and memory.pack()[0] == 0x9F
    other = engine.register_torch_tensor(FakeTensor(array))
    assert other != memory and other.id != memory.id and other.data == memory.data
    engine.deregister_memory(other)
    engine.deregister_memory(memory)
    with pytest.raises(sl.NotRegistered):
        engine.deregister_memory(memory)


def test_only_contiguous_tensors_of_known_devices_are_registered(engine: IOEngine) -> None:
    array = np.zeros((4, 4), np.uint8)
    with pytest.raises(RuntimeError, match="contiguous"):
        engine.register_torch_tensor(FakeTensor(array[:, ::2]))
    with pytest.raises(KeyError, match="npu"):
        engine.register_torch_tensor(FakeTensor(array, "npu", 0))
    with pytest.raises(ValueError, match="GPU memory"):
        engine.register_torch_tensor(FakeTensor(array, "cuda", 0))


def test_a_registered_tensor_is_kept_until_it_is_deregistered(engine: IOEngine) -> None:
    tensor = FakeTensor(np.zeros(16, np.uint8))
    alive = [True]

    class Watched(FakeTensor):
        def __del__(self) -> None:
            alive[0] = False

    memory = engine.register_torch_tensor(Watched(tensor.array))
    assert alive[0]
    engine.deregister_memory(memory)
    assert not alive[0]


def test_allocated_memory_lives_as_long_as_a_view_of_it(engine: IOEngine) -> None:
    array = np.frombuffer(engine.allocate("64KiB"), dtype=np.uint8)
    array[:] = 7
    part = engine.register_memory(array.ctypes.data + 100, 200)
    assert part.size == 200 and array.nbytes == 65536
    engine.close()
    assert array[65535] == 7


def test_backends_are_refused_by_name(engine: IOEngine) -> None:
    for backend, config in (
        (BackendType.XGMI, XgmiBackendConfig()),
        (BackendType.FABRIC, FabricBackendConfig(num_streams=1)),
    ):
        with pytest.raises(NotImplementedError, match=backend.name):
            engine.create_backend(backend, config)
    with pytest.raises(ValueError, match="transports"):
        engine.create_backend(BackendType.RDMA, TransportBackendConfig(["pigeon"]))
    with pytest.raises(LookupError):
        engine.remove_backend(BackendType.TCP)
    engine.remove_backend(BackendType.RDMA)
    engine.create_backend(BackendType.RDMA, TransportBackendConfig(["shm"]))


def test_backend_settings_have_moris_names_and_defaults() -> None:
    config = RdmaBackendConfig(2, 8, 3, PollCqMode.EVENT, enable_notification=False)
    assert (config.qp_per_transfer, config.post_batch_size, config.num_worker_threads) == (2, 8, 3)
    assert config.poll_cq_mode is PollCqMode.EVENT and not config.enable_notification
    plain = RdmaBackendConfig()
    assert plain.enable_notification and plain.poll_cq_mode is PollCqMode.POLLING
    assert (plain.qp_per_transfer, plain.post_batch_size, plain.num_worker_threads) == (1, -1, -1)
    assert (plain.notif_per_qp, plain.chunk_bytes, plain.max_chunks_per_transfer) == (
        1024,
        65536,
        64,
    )
    assert not plain.enable_transfer_chunking and plain.num_nics_per_transfer == 1
    assert (plain.max_send_wr, plain.max_cqe_num, plain.max_msg_sge) == (0, 0, 0)
    plain.max_send_wr = 5
    assert plain.max_send_wr == 5
    assert XgmiBackendConfig().num_streams == 64 and FabricBackendConfig().num_events == 64
    config_of_engine = IOEngineConfig(host="127.0.0.1", port=0)
    config_of_engine.port = 7
    assert config_of_engine.port == 7
    assert IOEngine.Session is IOEngineSession


def test_a_bad_option_of_the_engine_is_named() -> None:
    with pytest.raises(ValueError, match="max_transfers"):
        IOEngine("engine", IOEngineConfig(options={"max_transfers": 0}))
