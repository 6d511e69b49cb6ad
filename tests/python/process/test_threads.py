"""The interpreter lock is free while the engine waits or copies; many threads use one engine."""

import signal
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from child import Child
from conftest import Link

import stagelink as sl


class Counter(threading.Thread):
    """Counts for as long as it can have the interpreter lock."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.go_on = True

    def run(self) -> None:
        while self.go_on:
            self.count += 1

    def __enter__(self) -> "Counter":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on = False
        self.join()


def test_others_run_while_notifications_are_awaited(engine: sl.Engine) -> None:
    with Counter() as counter:
        before = counter.count
        assert engine.notifications(timeout=0.3) == []
        assert counter.count - before > 10_000


def test_others_run_while_a_transfer_is_awaited(child: Callable[..., Child]) -> None:
    peer = child()
    peer.run("engine = sl.Engine()\nregion = engine.register(bytearray(1 << 20))")
    with sl.Engine(transports=["shm", "unix"]) as engine:  # cma would read on.
        region = engine.register(bytearray(1 << 20))
        session = engine.connect(peer.run("engine.descriptor()")).session(
            region, peer.run("region.descriptor()")
        )
        peer.stop()
        xfer = session.read(0, 0, 1 << 20)
        with Counter() as counter:
            before = counter.count
            with pytest.raises(sl.TimedOut):
                xfer.wait(0.3)
            assert counter.count - before > 10_000
        peer.resume()


def test_others_run_while_a_transfer_copies(engine: sl.Engine, other: sl.Engine) -> None:
    size = 64 << 20
    pool, theirs = engine.allocate(size), other.allocate(size)
    session = engine.connect(other.descriptor()).session(pool, theirs.descriptor())
    with Counter() as counter:
        before = counter.count
        for _ in range(3):
            session.read(0, 0, size).wait("30s")
        assert counter.count - before > 1_000


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    # Python leaves SIGINT alone when it was started with it ignored, as background jobs are.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_raises")
def test_ctrl_c_interrupts_a_wait(engine: sl.Engine) -> None:
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        engine.notifications(timeout="60s")
    assert time.monotonic() - begin < 10
    timer.join()


def test_many_threads_use_one_engine(link: Link) -> None:
    failures: list[BaseException] = []
    until = time.monotonic() + 3

    def transfer(index: int) -> None:
        values = np.zeros(8192, np.uint8)
        region = link.engine.register(values)
        session = link.peer.session([region], [link.theirs.descriptor()])
        for offset in np.random.default_rng(index).integers(0, 57344, 10_000).tolist():
            values[:] = 0
            session.read(0, offset, 8192).wait("10s")
            assert np.array_equal(values, link.remote[offset : offset + 8192])
            if time.monotonic() > until:
                break
        region.deregister()

    def connect(_: int) -> None:
        while time.monotonic() < until:
            with link.engine.connect(link.other.descriptor()) as peer:
                peer.notify(b"x")
            link.other.notifications()
            link.engine.metrics_text()

    def register(_: int) -> None:
        memory = bytearray(1 << 16)
        while time.monotonic() < until:
            with link.engine.register(memory), link.engine.allocate(4096):
                pass

    def cancel(_: int) -> None:
        region = link.engine.allocate("64KiB")
        session = link.peer.session([region], [link.theirs.descriptor()])
        while time.monotonic() < until:
            assert session.read(0, 0, 1 << 16).cancel() in ("failed", "succeeded")

    def guarded(work: Callable[[int], None], index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=guarded, args=(work, index))
        for index, work in enumerate([transfer, connect, register, cancel] * 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
