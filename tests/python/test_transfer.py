"""Batches: what moves, what is refused, how a transfer ends."""

from collections.abc import Callable

import numpy as np
import pytest
from child import Child
from conftest import Link

import stagelink as sl

TRANSPORTS = {"same_host": None, "tcp": ["tcp"]}


def pattern(size: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def test_a_read_moves_the_bytes_of_its_ranges_and_no_others(link: Link) -> None:
    link.session.read([0, 4096], [100, 9000], [16, 32]).wait("5s")
    expected = np.zeros_like(link.local)
    expected[:16] = link.remote[100:116]
    expected[4096:4128] = link.remote[9000:9032]
    assert np.array_equal(link.local, expected)


def test_a_write_moves_the_bytes_the_other_way(link: Link) -> None:
    link.local[:] = pattern(link.local.size)
    before = link.remote.copy()
    link.session.write([8], [64], [1024]).wait()
    assert np.array_equal(link.remote[64:1088], link.local[8:1032])
    assert np.array_equal(link.remote[1088:], before[1088:])


@pytest.mark.parametrize("transport", ["shm", "cma", "unix", "tcp"])
@pytest.mark.parametrize("memory", ["allocated", "registered"])
def test_bytes_cross_processes(child: Callable[..., Child], transport: str, memory: str) -> None:
    transports = ["shm", "unix"] if transport == "shm" else [transport]
    peer = child()
    peer.run(
        "engine = sl.Engine(name='there', transports=transports)\n"
        "region = engine.allocate(size) if memory == 'allocated' else None\n"
        "region = region or engine.register(np.empty(size, np.uint8))\n"
        "values = np.asarray(region)\n"
        "values[:] = np.random.default_rng(1).integers(0, 256, size, np.uint8)",
        transports=transports,
        memory=memory,
        size=3 << 20,
    )
    with sl.Engine(name="here", transports=transports) as engine:
        mine = np.zeros(3 << 20, np.uint8)
        there = engine.connect(peer.run("engine.descriptor()"), timeout="5s")
        assert there.name == "there" and there.phase == "connected"
        session = there.session(local=engine.register(mine), remote=peer.run("region.descriptor()"))
        xfer = session.read(0, 0, mine.size)
        xfer.wait("10s")
        assert (xfer.phase, xfer.error, xfer.nbytes) == ("succeeded", None, mine.size)
        assert np.array_equal(mine, pattern(mine.size))
        mine[:] = pattern(mine.size, seed=2)
        offsets = np.arange(0, mine.size, 65536, dtype=np.uint64)
        session.write(offsets, offsets[::-1].copy(), 65536).wait("10s")
        blocks = mine.reshape(-1, 65536)[::-1].tobytes()
        assert peer.run("values.tobytes()") == blocks
        assert len(session.explain().splitlines()) == 1


def test_regions_are_chosen_by_their_indices(engine: sl.Engine, other: sl.Engine) -> None:
    local = [np.zeros(64, np.uint8) for _ in range(3)]
    remote = [np.full(64, 10 + i, np.uint8) for i in range(2)]
    theirs = [other.register(a) for a in remote]
    session = engine.connect(other.descriptor()).session(
        local=[engine.register(a) for a in local],
        remote=[sl.RegionDesc.unpack(region.descriptor()) for region in theirs],
    )
    session.read([0, 0, 8], [0, 0, 0], [4, 4, 4], [2, 1, 2], [1, 0, 0]).wait("5s")
    assert local[2][:12].tolist() == [11] * 4 + [0] * 4 + [10] * 4
    assert local[1][:4].tolist() == [10] * 4
    assert not local[0].any()


def test_a_strided_batch_is_its_list_of_ranges(link: Link) -> None:
    link.session.read_strided(16, 0, 8, 4, local_stride=32, remote_stride=100).wait()
    expected = np.zeros_like(link.local)
    for i in range(4):
        expected[16 + 32 * i :][:8] = link.remote[100 * i :][:8]
    assert np.array_equal(link.local, expected)
    link.session.write_strided(0, 0, 8, 2, 8, 8, timeout=5).wait()
    assert link.remote[:16].tolist() == link.local[:16].tolist()


def test_addresses_reach_whatever_the_peer_has_registered(link: Link) -> None:
    values = pattern(4096)
    region = link.other.register(values)
    session = link.peer.session(local=[link.pool], remote=sl.BY_ADDRESS)
    session.read([0, 64], [values.ctypes.data + 5, link.theirs.address], [64, 64]).wait("5s")
    assert np.array_equal(link.local[:64], values[5:69])
    assert np.array_equal(link.local[64:128], link.remote[:64])
    for address, size in (
        (values.ctypes.data - 1, 8),
        (values.ctypes.data + 4090, 8),
        (8, 8),
    ):
        with pytest.raises((sl.NotRegistered, sl.InvalidArgument)):
            session.read(0, address, size).wait("5s")
    region.deregister()
    with pytest.raises((sl.NotRegistered, sl.Superseded)):
        session.read(0, values.ctypes.data, 8).wait("5s")


def test_a_range_out_of_bounds_refuses_the_whole_batch(link: Link) -> None:
    end = link.pool.nbytes
    for local, remote, size in ((end - 8, 0, 9), (0, end - 8, 9), (0, 2**64 - 4, 8), (2**63, 0, 1)):
        with pytest.raises(sl.InvalidArgument) as caught:
            link.session.read([0, local], [0, remote], [8, size])
        assert caught.value.reason in ("out_of_bounds", "overflow")
        assert "1" in str(caught.value)
    assert not link.local.any()
    link.session.read([0, end - 8], [0, end - 8], [8, 8]).wait()


def test_ranges_of_no_bytes_and_batches_of_no_ranges_are_done_at_once(link: Link) -> None:
    for batch in (([], [], []), ([0], [0], [0]), ([link.pool.nbytes], [link.pool.nbytes], [0])):
        xfer = link.session.read(*batch)
        assert (xfer.phase, xfer.nbytes) == ("succeeded", 0)
        xfer.wait(0)
    link.session.read([0, 64, 8], [0, 64, 8], [4, 0, 4]).wait()
    assert not link.local[64:].any()


def test_an_empty_batch_gives_exactly_one_notification(link: Link) -> None:
    link.peer.notify(b"nothing", after=link.session.read([], [], []))
    link.peer.notify(b"last")
    payloads: list[bytes] = []
    while b"last" not in payloads:
        payloads += [n.payload for n in link.other.notifications("5s")]
    assert payloads == [b"nothing", b"last"]


def test_read_only_memory_is_no_destination(link: Link) -> None:
    frozen = np.zeros(64, np.uint8)
    frozen.flags.writeable = False
    regions = [link.pool, link.engine.register(frozen, access="ro")]
    session = link.peer.session(local=regions, remote=link.theirs.descriptor())
    for start in (
        lambda: session.read([0, 0], [0, 0], [8, 8], [0, 1]),
        lambda: session.read_strided(0, 0, 8, 2, 8, 8, local_region=1),
    ):
        with pytest.raises(sl.Permission) as caught:
            start()
        assert caught.value.reason == "read_only"
    session.write(0, 0, 8, local_regions=1).wait()
    session.read(0, 8, 8, local_regions=0).wait()
    assert link.remote[:8].tolist() == [0] * 8


def test_a_peer_may_not_write_what_it_may_only_read(link: Link) -> None:
    for region in (
        link.other.allocate(4096, access="ro"),
        link.other.register(bytearray(4096), access="ro"),
    ):
        session = link.peer.session(local=[link.pool], remote=[region.descriptor()])
        session.read(0, 0, 8).wait("5s")
        with pytest.raises(sl.Permission) as caught:
            session.write(0, 0, 8).wait("5s")
        assert caught.value.reason == "read_only"


def test_a_deregistered_region_is_superseded(link: Link) -> None:
    link.theirs.deregister()
    with pytest.raises((sl.Superseded, sl.NotRegistered)) as caught:
        link.session.read(0, 0, 64).wait("5s")
    assert caught.value.scope == "region"
    assert not link.local.any()


def test_a_descriptor_of_another_engine_is_incompatible(link: Link) -> None:
    with pytest.raises(sl.Incompatible, match=link.engine.instance):
        link.peer.session(local=[link.pool], remote=[link.pool.descriptor()])


def test_waiting_past_the_timeout_cancels(child: Callable[..., Child]) -> None:
    peer = child()
    peer.run("engine = sl.Engine()\nregion = engine.register(bytearray(1 << 20))")
    with sl.Engine(transports=["shm", "unix"]) as engine:  # cma would read on.
        mine = bytearray(1 << 20)
        session = engine.connect(peer.run("engine.descriptor()")).session(
            local=[engine.register(mine)], remote=[peer.run("region.descriptor()")]
        )
        peer.stop()
        try:
            xfer = session.read(0, 0, 1 << 20)
            for _ in range(2):  # It says so every time.
                with pytest.raises(sl.TimedOut):
                    xfer.wait(0.2)
            assert (xfer.phase, type(xfer.error)) == ("failed", sl.TimedOut)
            assert xfer.cancel() == "failed"
            with pytest.raises(sl.TimedOut):
                session.read(0, 0, 1 << 20, timeout="100ms").wait()
            assert session.read(0, 0, 1 << 20).cancel() == "failed"
        finally:
            peer.resume()
        session.read(0, 0, 1 << 20).wait("10s")


def test_a_killed_peer_is_lost_and_its_successor_works(child: Callable[..., Child]) -> None:
    start = "engine = sl.Engine(bind=bind)\npool = engine.allocate(4096)"
    first, second = child(), child()
    first.run(start, bind="127.0.0.1:0")
    address = first.run("engine.address")
    with sl.Engine() as engine:
        pool = engine.allocate(4096)
        peer = engine.connect(address)
        session = peer.session(local=[pool], remote=[first.run("pool.descriptor()")])
        session.read(0, 0, 64).wait("5s")
        first.kill()
        with pytest.raises((sl.PeerLost, sl.Unreachable)) as caught:
            while True:
                session.read(0, 0, 64).wait("5s")
        assert caught.value.scope == "peer"
        second.run(start, bind=address)
        again = engine.connect(address)
        assert again.instance != peer.instance
        again.session(pool, second.run("pool.descriptor()")).read(0, 0, 64).wait("5s")


def test_nobody_listens_is_an_error_within_the_timeout(engine: sl.Engine) -> None:
    with sl.Engine() as gone:
        address, blob = gone.address, gone.descriptor()
    for target in (address, blob):
        with pytest.raises((sl.Unreachable, sl.TimedOut)):
            engine.connect(target, timeout="2s")
    for target in ("nonsense", "127.0.0.1", b"", b"x" * 40):
        with pytest.raises((sl.InvalidArgument, sl.Corrupt)):
            engine.connect(target, timeout="2s")
