"""Closing, and what outlives what."""

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from conftest import Link

import stagelink as sl


def test_an_engine_may_be_closed_again() -> None:
    engine = sl.Engine()
    engine.close()
    engine.close(timeout=0)
    with engine:
        pass


def test_a_closed_engine_holds_no_thread_and_no_entry_and_later_no_file(runtime_dir: Path) -> None:
    def look(folder: str | Path) -> list[str]:
        return sorted(os.listdir(folder)) if Path(folder).exists() else []

    threads, entries, files = map(look, ("/proc/self/task", runtime_dir, "/proc/self/fd"))
    engine, other = sl.Engine(), sl.Engine()
    peer = engine.connect(other.descriptor())
    pools = engine.allocate(4096), other.allocate(4096)
    peer.session(pools[0], pools[1].descriptor()).read(0, 0, 8).wait()
    engine.close()
    other.close()
    assert (look("/proc/self/task"), look(runtime_dir)) == (threads, entries)
    del engine, other, peer, pools
    assert look("/proc/self/fd") == files


def test_after_close_everything_answers_closed(link: Link) -> None:
    xfer = link.session.read(0, 0, 8)
    xfer.wait()
    link.engine.close()
    for call in (
        lambda: link.engine.allocate(4096),
        lambda: link.engine.register(bytearray(8)),
        lambda: link.engine.connect(link.other.descriptor()),
        lambda: link.engine.notifications(),
        lambda: link.engine.fileno(),
        lambda: link.session.read(0, 0, 8),
        lambda: link.peer.notify(b"x"),
        lambda: link.peer.session([link.pool], [link.theirs.descriptor()]),
    ):
        with pytest.raises(sl.InvalidState) as caught:
            call()
        assert (caught.value.scope, caught.value.reason) == ("engine", "closed")
    assert xfer.phase == "succeeded"
    assert isinstance(link.engine.metrics_text(), str)
    repr([link.engine, link.pool, link.peer, link.session, xfer])


def test_objects_keep_what_they_stand_on() -> None:
    def start() -> tuple[sl.Transfer, np.ndarray]:
        here, there = sl.Engine(), sl.Engine()
        values = np.zeros(1 << 20, np.uint8)
        source = there.allocate("1MiB")
        np.asarray(source)[:] = 5
        session = here.connect(there.descriptor()).session(
            local=[here.register(values)], remote=[source.descriptor()]
        )
        keep.extend([there, source])
        return session.read(0, 0, 1 << 20), values

    keep: list[object] = []
    xfer, values = start()
    gc.collect()
    xfer.wait("5s")
    assert (values == 5).all()


def test_a_dropped_transfer_runs_on(link: Link) -> None:
    link.session.read(0, 0, link.pool.nbytes)
    link.peer.notify(b"done", after=link.session.read(0, 0, 8))
    assert [m.payload for m in link.other.notifications("5s")] == [b"done"]


def test_context_managers_give_everything_back() -> None:
    with sl.Engine() as engine, sl.Engine() as other:
        with engine.allocate(4096) as pool, other.allocate(4096) as theirs:
            with engine.connect(other.descriptor()) as peer:
                peer.session(pool, theirs.descriptor()).read(0, 0, 64).wait()
            with pytest.raises(sl.Error):
                peer.notify(b"x")
        with pytest.raises(BufferError):
            memoryview(pool)


def test_an_exception_in_a_with_block_is_not_replaced() -> None:
    with pytest.raises(KeyError), sl.Engine() as engine:
        with engine.allocate(4096):
            raise KeyError


def test_closing_ends_waits_of_other_threads(engine: sl.Engine) -> None:
    caught: list[BaseException] = []
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        try:
            while True:
                engine.notifications(timeout="60s")
        except sl.InvalidState as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    engine.close()
    thread.join(10)
    assert not thread.is_alive()
    assert isinstance(caught[0], sl.InvalidState)


def test_ten_thousand_views_are_given_back(engine: sl.Engine) -> None:
    memory = np.zeros(10_000 * 64, np.uint8)
    regions = [engine.register(memory[i * 64 : i * 64 + 64]) for i in range(10_000)]
    assert len({region.descriptor() for region in regions}) == 10_000
    for region in regions:
        region.deregister()
    assert 'stagelink_regions{engine="here"} 0' in engine.metrics_text()


def test_metrics_count_what_moved(link: Link) -> None:
    link.session.read(0, 0, 4096).wait()
    link.session.write(0, 0, 1024).wait()
    text = link.engine.metrics_text()
    assert 'stagelink_read_bytes_total{engine="here"} 4096' in text
    assert 'stagelink_written_bytes_total{engine="here"} 1024' in text
