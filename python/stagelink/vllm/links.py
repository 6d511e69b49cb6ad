"""Handshakes with other engines' ranks, each off the model's thread.

A handshake takes a round trip or, with a dead peer, its whole timeout. So each peer has a thread of
its own while one is under way; whoever needs the peer meanwhile is called when it has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..pull.log_limit import quiet_logger

if TYPE_CHECKING:
    from .._core import ConnectorRank

logger = quiet_logger("vllm.stagelink.moriio")

MAX_HANDSHAKES = 64  # Under way at a time, each for one peer's ranks.

Place = tuple[str, int]  # Host and handshake port of one rank.


@dataclass(frozen=True)
class Failure:
    """A reason's name, and a line for people."""

    reason: str
    text: str


Then = Callable[[Failure | None], None]


class Links:
    """Thread-safety: all methods may run at the same time. Callbacks run on the caller's thread if
    every place is linked, else on a handshake's thread; without locks."""

    def __init__(self, rank: ConnectorRank, timeout: float) -> None:
        self._rank = rank
        self._timeout = timeout
        self._lock = threading.Lock()
        self._waiting: dict[tuple[Place, ...], list[Then]] = {}
        self._closed = False

    def use(self, places: tuple[Place, ...], then: Then) -> None:
        """Calls `then` when every place is linked, or with why one cannot be."""
        if self._rank.linked(places):
            then(None)
            return
        with self._lock:
            if self._closed:
                failure = Failure("closed", "the connector is closed")
            elif places in self._waiting:
                self._waiting[places].append(then)
                return
            elif len(self._waiting) >= MAX_HANDSHAKES:
                failure = Failure("too_many_peers", f"{MAX_HANDSHAKES} handshakes are under way")
            else:
                self._waiting[places] = [then]
                threading.Thread(
                    target=self._make, args=(places,), name="moriio-handshake", daemon=True
                ).start()
                return
        then(failure)

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _make(self, places: tuple[Place, ...]) -> None:
        failure = self._connect(places)
        if failure is not None:
            names = ", ".join(f"{host}:{port}" for host, port in places)
            logger.warning("Handshake with %s: %s (%s)", names, failure.text, failure.reason)
        with self._lock:
            waiting = self._waiting.pop(places)
        for then in waiting:
            then(failure)

    def _connect(self, places: tuple[Place, ...]) -> Failure | None:
        try:
            outcomes = self._rank.connect(places, self._timeout)
        except Exception as error:
            return Failure("system", str(error))
        for outcome in outcomes:
            if outcome is not None:
                return Failure(*outcome)
        return None
