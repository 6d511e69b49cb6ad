"""Forked children: inherited objects answer `forked` and touch nothing; new engines work."""

import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import traceback
from collections.abc import Callable

import numpy as np
import pytest
from child import Child
from conftest import Link

import stagelink as sl

KILL_AFTER_S = 30

# Newer Pythons warn of every fork next to threads; here it is the subject.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def resource_tracker() -> None:
    """A process and a pipe that multiprocessing keeps from the first spawn on."""
    multiprocessing.resource_tracker.ensure_running()


def in_forked_child(work: Callable[[], None]) -> None:
    """Runs `work` in a fork and fails with its traceback."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(KILL_AFTER_S)
            work()
            code = 0
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    assert (os.waitstatus_to_exitcode(status), text) == (0, "")


def check_traffic(link: Link) -> None:
    for i in range(10):
        link.remote[:] = i
        link.session.read(0, 0, link.pool.nbytes).wait("5s")
        assert (link.local == i).all()


def test_inherited_objects_answer_forked(link: Link) -> None:
    xfer = link.session.read(0, 0, 8)

    def work() -> None:
        for call in (
            lambda: link.engine.allocate(4096),
            lambda: link.engine.register(bytearray(8)),
            lambda: link.engine.connect(link.other.descriptor()),
            lambda: link.engine.notifications("1s"),
            lambda: link.session.read(0, 0, 8),
            lambda: link.session.read([0, 8], [0, 8], 8),
            lambda: link.session.read_strided(0, 0, 8, 2, 8, 8),
            lambda: link.peer.notify(b"x"),
            lambda: link.peer.session([link.pool], [link.theirs.descriptor()]),
            lambda: link.pool.deregister(),
            lambda: xfer.wait("1s"),
        ):
            with pytest.raises(sl.InvalidState) as caught:
                call()
            assert caught.value.reason == "forked"

    in_forked_child(work)
    check_traffic(link)


def test_a_child_that_collects_inherited_objects_touches_nothing(link: Link) -> None:
    def work() -> None:
        for name in list(vars(link)):
            delattr(link, name)

    in_forked_child(work)
    check_traffic(link)


def test_a_child_may_close_what_it_inherited(link: Link) -> None:
    def work() -> None:
        for close in (link.engine.close, link.other.close):
            try:
                close()
            except sl.InvalidState as error:
                assert error.reason == "forked"

    in_forked_child(work)
    check_traffic(link)


def test_a_child_makes_its_own_engine(link: Link) -> None:
    def work() -> None:
        with sl.Engine(name="of-the-child") as engine:
            pool = engine.allocate("64KiB")
            peer = engine.connect(link.other.descriptor())
            peer.session(pool, link.theirs.descriptor()).read(0, 0, 4096).wait("5s")
            assert bytes(memoryview(pool)[:4096]) == link.remote[:4096].tobytes()

    in_forked_child(work)
    check_traffic(link)


def test_a_forked_child_may_exit_the_normal_way(child: Callable[..., Child]) -> None:
    peer = child()
    peer.run("engine = sl.Engine()\npool = engine.allocate(4096)")
    with sl.Engine() as engine:
        there = engine.connect(peer.run("engine.descriptor()"))
        session = there.session(engine.allocate(4096), peer.run("pool.descriptor()"))
        code = peer.run(
            "import os, signal, sys, threading\n"
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "    signal.alarm(30)\n"
            "    os.close(0)\n"
            "    sys.exit(0)\n"
            "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
        )
        assert code == 0
        for _ in range(10):
            session.read(0, 0, 4096).wait("5s")
        assert peer.stderr() == ""


def transfer_in_worker(blob: bytes, desc: bytes, answers: "multiprocessing.SimpleQueue") -> None:
    signal.alarm(KILL_AFTER_S)
    with sl.Engine() as engine:
        values = np.zeros(4096, np.uint8)
        peer = engine.connect(blob)
        peer.session(engine.register(values), desc).read(0, 0, 4096).wait("10s")
        answers.put(values.tobytes())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_multiprocessing_transfer(link: Link, method: str) -> None:
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    worker = context.Process(
        target=transfer_in_worker,
        args=(link.other.descriptor(), link.theirs.descriptor(), answers),
    )
    worker.start()
    worker.join(KILL_AFTER_S + 5)
    assert worker.exitcode == 0
    assert answers.get() == link.remote[:4096].tobytes()
    check_traffic(link)
    worker.close()
    answers.close()
