"""Messages between engines."""

import select
import time
from collections.abc import Callable

import numpy as np
import pytest
from child import Child
from conftest import Link

import stagelink as sl

TRANSPORTS = {"same_host": None, "tcp": ["tcp"]}


def test_a_message_arrives_with_its_sender(link: Link) -> None:
    link.peer.notify(b"hello")
    link.peer.notify(bytearray(b""))
    messages: list[sl.Notification] = []
    while len(messages) < 2:
        messages += link.other.notifications("5s")
    assert [m.payload for m in messages] == [b"hello", b""]
    assert {(m.source, m.source_name, m.outcome) for m in messages} == {
        (link.engine.instance, "here", "ok")
    }
    assert "here" in repr(messages[0])


def test_no_message_is_an_empty_list_at_the_timeout(engine: sl.Engine) -> None:
    assert engine.notifications() == []
    begin = time.monotonic()
    assert engine.notifications(timeout=0.25) == []
    assert 0.25 <= time.monotonic() - begin < 5


def test_messages_come_in_order_and_at_most_max(link: Link) -> None:
    for i in range(5):
        link.peer.notify(bytes([i]))
    seen: list[int] = []
    while len(seen) < 5:
        some = link.other.notifications("5s", max=2)
        assert 1 <= len(some) <= 2
        seen += [m.payload[0] for m in some]
    assert seen == list(range(5))


def test_a_message_too_large_is_refused(engine: sl.Engine, other: sl.Engine) -> None:
    peer = engine.connect(other.descriptor())
    peer.notify(b"x" * 8192)
    with pytest.raises(sl.Limit) as caught:
        peer.notify(b"x" * 8193)
    assert caught.value.reason == "too_large"
    with pytest.raises(sl.InvalidArgument):
        peer.notify("text")  # type: ignore[arg-type]


def test_a_message_after_a_transfer_finds_the_bytes_in_place(child: Callable[..., Child]) -> None:
    peer = child()
    peer.run(
        "engine = sl.Engine()\n"
        "pool = engine.allocate('1MiB')\n"
        "values = np.asarray(pool)\n"
        "def check(round):\n"
        "    messages = []\n"
        "    while not messages: messages = engine.notifications('10s')\n"
        "    return messages[0].payload, bool((values == round).all())\n"
    )
    with sl.Engine() as engine:
        mine = engine.allocate("1MiB")
        there = engine.connect(peer.run("engine.descriptor()"))
        session = there.session(mine, peer.run("pool.descriptor()"))
        for i in range(1, 20):
            peer.start("check(round)", round=i)
            np.asarray(mine)[:] = i
            xfer = session.write(0, 0, mine.nbytes)
            there.notify(b"written", after=xfer)
            xfer.wait("10s")
            assert peer.finish() == (b"written", True)


def test_a_message_after_a_failure_says_why(child: Callable[..., Child]) -> None:
    peer = child()
    peer.run("engine = sl.Engine()\nregion = engine.register(bytearray(1 << 20))")
    with sl.Engine(transports=["shm", "unix"]) as engine:  # cma would read on.
        there = engine.connect(peer.run("engine.descriptor()"))
        mine = engine.register(bytearray(1 << 20))
        session = there.session(mine, peer.run("region.descriptor()"))
        peer.stop()
        xfer = session.read(0, 0, 1 << 20, timeout="200ms")
        there.notify(b"after", after=xfer)
        with pytest.raises(sl.TimedOut):
            xfer.wait()
        peer.resume()
        messages = peer.run("[(m.payload, m.outcome) for m in engine.notifications('10s')]")
        assert messages == [(b"after", "timed_out")]


def test_an_event_loop_sees_messages_come(link: Link) -> None:
    descriptor = link.other.fileno()
    link.other.notifications()  # It is readable at first, for what came before.
    assert select.select([descriptor], [], [], 0)[0] == []
    link.peer.notify(b"wake")
    assert select.select([descriptor], [], [], 5)[0] == [descriptor]
    assert [m.payload for m in link.other.notifications()] == [b"wake"]
    assert select.select([descriptor], [], [], 0)[0] == []


def test_both_sides_may_speak(link: Link) -> None:
    back = link.other.connect(link.engine.descriptor())
    link.peer.notify(b"ping")
    assert link.other.notifications("5s")[0].payload == b"ping"
    back.notify(b"pong")
    assert link.engine.notifications("5s")[0].payload == b"pong"
