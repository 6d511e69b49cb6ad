"""The table of servers: who is known, who is well, and whose turn it is."""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .messages import ZmqAddress

BACK_OFF_S = 1.0
BACK_OFF_MAX_S = 30.0
MAX_REFUSED = 64


class Role(str, Enum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass
class Server:
    """One server. `mode` is `read`, `write` or, if nobody has said it, None."""

    role: Role
    url: str
    zmq_address: ZmqAddress | None
    tp_size: int | None
    dp_size: int
    mode: str | None
    fixed: bool  # Named by an option: it does not expire.
    default_address: ZmqAddress | None = None  # With the ports that vLLM's connector has unasked.
    heard_at: float | None = None
    in_flight: int = 0
    rank_in_flight: list[int] = field(default_factory=list)
    chosen: int = 0
    last_turn: int = 0
    rank_turns: list[int] = field(default_factory=list)
    failures: int = 0  # One after another.
    down_until: float = 0.0
    trial: bool = False
    last_error: str = ""

    def connector(self, mode: str) -> ZmqAddress | None:
        """Where its connector listens. In read mode it is not guessed: prefill's answer says it."""
        if self.zmq_address is None and mode == "write":
            return self.default_address
        return self.zmq_address

    def state(self, now: float) -> str:
        """`up`, `down`, or `trial`: one request finds out whether it is up again."""
        if self.failures == 0:
            return "up"
        return "trial" if self.trial or now >= self.down_until else "down"

    def can_serve(self, now: float) -> bool:
        return self.failures == 0 or (now >= self.down_until and not self.trial)


class NoServer(Exception):
    """No server of a role can be asked. The text says why."""

    def __init__(self, role: Role, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.role = role
        self.retry_after_s = retry_after_s


class Lease:
    """One leg that runs at a server. `close` ends it once; `failed` says that the server is ill."""

    def __init__(self, server: Server, rank: int | None, clock: Callable[[], float]) -> None:
        self.server = server
        self.rank = rank
        self._clock = clock
        self._trial = server.failures > 0
        self._open = True
        server.in_flight += 1
        server.chosen += 1
        server.trial = server.trial or self._trial
        if rank is not None:
            server.rank_in_flight[rank] += 1

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self.server.in_flight -= 1
        if self.rank is not None and self.rank < len(self.server.rank_in_flight):
            self.server.rank_in_flight[self.rank] -= 1
        if self._trial:
            self.server.trial = False

    def answered(self) -> None:
        self.server.failures = 0
        self.server.down_until = 0.0

    def failed(self, why: str) -> bool:
        """True if the server was well before: the caller logs it once."""
        server = self.server
        first = server.failures == 0
        server.last_error = why
        if first or self._trial:  # Requests that were under way do not lengthen the back-off.
            server.failures += 1
            wait = min(BACK_OFF_S * 2 ** (server.failures - 1), BACK_OFF_MAX_S)
            server.down_until = self._clock() + wait
        return first


class ServerPool:
    """All servers of both roles. Thread-safety: one event loop."""

    def __init__(
        self,
        mode: str,
        max_servers: int,
        expiry_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._asked_mode = None if mode == "auto" else mode
        self._max_servers = max_servers
        self._expiry_s = expiry_s
        self._clock = clock
        self._servers: dict[tuple[Role, str], Server] = {}
        self._turn = 0
        # Who, to: why, how often, when last.
        self._refused: OrderedDict[str, tuple[str, int, float]] = OrderedDict()

    def __iter__(self) -> Iterator[Server]:
        return iter(list(self._servers.values()))

    @property
    def mode(self) -> str | None:
        """`read` or `write`; None until an option or a server has said it."""
        if self._asked_mode is not None:
            return self._asked_mode
        return next((server.mode for server in self._servers.values() if server.mode), None)

    def now(self) -> float:
        return self._clock()

    def add(self, server: Server) -> bool:
        """Adds or renews one. True if it is new or has changed. ValueError says why not."""
        mode = self.mode
        key = (server.role, server.url)
        known = self._servers.get(key)
        if mode and server.mode and mode != server.mode:
            if known is not None and not known.fixed:
                del self._servers[key]  # It was restarted in the other mode.
            raise ValueError(f"transfers in {server.mode} mode, the proxy is in {mode} mode")
        if known is None:
            if len(self._servers) >= self._max_servers:
                raise ValueError(f"the table is full ({self._max_servers} servers, --max-servers)")
            self._size_ranks(server)
            self._servers[key] = server
            return True
        facts = ("zmq_address", "tp_size", "dp_size", "mode")
        changed = any(getattr(known, name) != getattr(server, name) for name in facts)
        for name in (*facts, "heard_at"):
            setattr(known, name, getattr(server, name))
        self._size_ranks(known)
        return changed

    @staticmethod
    def _size_ranks(server: Server) -> None:
        if server.dp_size != len(server.rank_in_flight):
            server.rank_in_flight = [0] * server.dp_size
            server.rank_turns = [0] * server.dp_size

    def renew(self, url: str) -> bool:
        """A sign of life without facts. True if somebody is known there."""
        found = [server for (_, at), server in self._servers.items() if at == url]
        for server in found:
            if server.heard_at is not None:
                server.heard_at = self._clock()
        return bool(found)

    def refuse(self, who: str, why: str) -> bool:
        """Remembers one that was not let in. True if it is new: the caller logs it once."""
        old_why, count, _ = self._refused.pop(who, ("", 0, 0.0))
        self._refused[who] = (why, count + 1, self._clock())
        while len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)
        return why != old_why

    def expire(self) -> list[Server]:
        """Forgets those that have been silent for too long, and returns them."""
        limit = self._clock() - self._expiry_s
        gone = [
            server
            for server in self._servers.values()
            if not server.fixed and server.heard_at is not None and server.heard_at < limit
        ]
        for server in gone:
            del self._servers[(server.role, server.url)]
        return gone

    def take(self, role: Role, avoid: Collection[str] = ()) -> Lease:
        """The one with the least in flight, in turn among equals; one of `avoid` only if there is
        no other. Raises NoServer."""
        self.expire()
        now = self._clock()
        able = [s for s in self._servers.values() if s.role is role and s.can_serve(now)]
        fresh = [server for server in able if server.url not in avoid]
        if not able:
            raise self._nobody(role, now)
        server = min(fresh or able, key=lambda s: (s.in_flight, s.last_turn))
        self._turn += 1
        server.last_turn = self._turn
        rank = None
        if server.dp_size > 1:
            loads, turns = server.rank_in_flight, server.rank_turns
            rank = min(range(server.dp_size), key=lambda r: (loads[r], turns[r]))
            turns[rank] = self._turn
        return Lease(server, rank, self._clock)

    def _nobody(self, role: Role, now: float) -> NoServer:
        known = [server for server in self._servers.values() if server.role is role]
        if not known:
            return NoServer(
                role,
                f"no {role.value} server is known: start one that announces itself to this proxy, "
                f"or name it with --{role.value}",
                5.0,
            )
        waits = [max(server.down_until - now, 0.0) for server in known]
        first = known[waits.index(min(waits))]
        return NoServer(
            role,
            f"none of {len(known)} {role.value} servers can be reached "
            f"({first.url}: {first.last_error}); see /status",
            max(min(waits), 0.5),
        )

    def able(self, role: Role) -> int:
        now = self._clock()
        return sum(server.role is role and server.can_serve(now) for server in self)

    def status(self) -> dict[str, Any]:
        now = self._clock()
        servers = [
            {
                "role": server.role.value,
                "url": server.url,
                "state": server.state(now),
                "known_from": "option" if server.fixed else "heartbeat",
                "zmq_address": str(server.zmq_address) if server.zmq_address else None,
                "tp_size": server.tp_size,
                "dp_size": server.dp_size,
                "mode": server.mode,
                "in_flight": server.in_flight,
                "requests": server.chosen,
                "failures_in_a_row": server.failures,
                "retry_in_s": round(max(server.down_until - now, 0.0), 1),
                "last_error": server.last_error or None,
                "last_heartbeat_s_ago": None
                if server.heard_at is None
                else round(now - server.heard_at, 1),
            }
            for server in self
        ]
        refused = [
            {"who": who, "why": why, "count": count, "last_s_ago": round(now - last, 1)}
            for who, (why, count, last) in self._refused.items()
        ]
        return {"mode": self.mode, "servers": servers, "refused": refused}
