"""Handshakes: one at a time for each peer, off the caller's thread; none holds up another."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from stagelink.vllm import links
from stagelink.vllm.links import Failure, Links, Place

HERE: tuple[Place, ...] = (("here", 1),)
DEAD: tuple[Place, ...] = (("dead", 1),)


class Rank:
    """Links on demand; peers named "dead" do not answer until they are let go."""

    def __init__(self) -> None:
        self.made: list[Place] = []
        self.linked_places: set[Place] = set()
        self.let_go = threading.Event()

    def linked(self, places: Sequence[Place]) -> bool:
        return self.linked_places.issuperset(places)

    def connect(self, places: Sequence[Place], timeout: float) -> list[Any]:
        self.made.extend(places)
        if places[0][0] == "dead":
            assert self.let_go.wait(timeout)
            return [("connect_timeout", "nobody answered")]
        self.linked_places.update(places)
        return [None for _ in places]


class Call:
    """A callback that can be waited for."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.failure: Failure | None = None

    def __call__(self, failure: Failure | None) -> None:
        self.failure = failure
        self.done.set()


@pytest.fixture
def rank() -> Iterator[Rank]:
    made = Rank()
    yield made
    made.let_go.set()
    for thread in threading.enumerate():
        if thread.name == "moriio-handshake":
            thread.join(30)


def test_who_is_linked_is_used_at_once(rank: Rank) -> None:
    rank.linked_places.update(HERE)
    call = Call()
    Links(rank, 30).use(HERE, call)  # type: ignore[arg-type]
    assert call.done.is_set()
    assert not rank.made


def test_a_dead_peer_holds_nobody_up(rank: Rank) -> None:
    found = Links(rank, 60)  # type: ignore[arg-type]
    dead, here = Call(), Call()
    found.use(DEAD, dead)
    found.use(HERE, here)
    assert here.done.wait(30)
    assert here.failure is None
    assert not dead.done.is_set()
    rank.let_go.set()
    assert dead.done.wait(30)
    assert dead.failure == Failure("connect_timeout", "nobody answered")


def test_requests_for_one_peer_share_a_handshake(rank: Rank) -> None:
    found = Links(rank, 60)  # type: ignore[arg-type]
    calls = [Call() for _ in range(5)]
    for call in calls:
        found.use(DEAD, call)
    rank.let_go.set()
    assert all(call.done.wait(30) for call in calls)
    assert rank.made == list(DEAD)


def test_a_failed_handshake_is_tried_again_by_the_next_request(rank: Rank) -> None:
    found = Links(rank, 60)  # type: ignore[arg-type]
    rank.let_go.set()
    for _ in range(2):
        call = Call()
        found.use(DEAD, call)
        assert call.done.wait(30)
    assert len(rank.made) == 2


def test_handshakes_under_way_are_bounded(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MAX_HANDSHAKES", 1)
    found = Links(rank, 60)  # type: ignore[arg-type]
    found.use(DEAD, Call())
    call = Call()
    found.use(HERE, call)
    assert call.failure is not None
    assert call.failure.reason == "too_many_peers"


def test_after_close_nothing_is_connected(rank: Rank) -> None:
    found = Links(rank, 60)  # type: ignore[arg-type]
    found.close()
    call = Call()
    found.use(HERE, call)
    assert call.failure is not None
    assert call.failure.reason == "closed"
    assert not rank.made


def test_an_exception_of_a_handshake_is_a_failure_like_others(rank: Rank) -> None:
    def broken(places: Sequence[Place], timeout: float) -> list[Any]:
        raise RuntimeError("out of sockets")

    rank.connect = broken  # type: ignore[method-assign]
    call = Call()
    Links(rank, 60).use(HERE, call)  # type: ignore[arg-type]
    assert call.done.wait(30)
    assert call.failure == Failure("system", "out of sockets")
