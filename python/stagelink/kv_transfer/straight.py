"""Gets of a connector that pulls, from the senders' pools straight into the final tensors."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _core
from ..errors import Error
from ..pull.log_limit import quiet_logger
from .arrays import CacheMemory

__all__ = ["ReadCache", "StraightGets"]

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.05
# Failures after which the same payloads may be had a moment later.
_PASSING = frozenset({"timed_out", "busy", "no_space", "superseded", "unreachable", "peer_lost"})
_logger = quiet_logger("stagelink.pull")


@dataclass
class ReadCache:
    """A cache that has been read, and what its payloads said."""

    memory: CacheMemory
    tensors: list[tuple[bool, int, str, tuple[int, ...], int, int]]
    num_layers: int
    metadata: str
    block_ids: list[int]
    payload_bytes: int = 0
    read_seconds: float = 0.0


class StraightGets:
    """Claims all payloads of a request before any is read: a failure loses none.

    All methods may be called from any thread.
    """

    def __init__(
        self, connector: Any, stages: tuple[str, str], rank: int, heads: int, routes: Any
    ) -> None:
        """``heads``: of this rank; 0: not known."""
        self._connector = connector
        self._stages = stages
        self._rank = rank
        self._heads = heads
        self._routes = routes
        self._closed = threading.Event()

    @staticmethod
    def suits(connector: Any) -> bool:
        """Whether the connector pulls into memory of the host, and has no sum to check over all."""
        core = getattr(connector, "_core", None)
        if not isinstance(core, _core.PullConnector):
            return False
        return getattr(connector, "pool_device", "") == "cpu" and not core.options["checksum"]

    def close(self) -> None:
        """End what waits; the connector's own close ends its calls."""
        self._closed.set()

    def get(
        self,
        request_id: str,
        keys: Sequence[str],
        metadata: Sequence[Mapping[str, Any] | None],
        deadline: float,
    ) -> ReadCache | list[str]:
        """Return the cache, or at the deadline the reason for each payload. Raises ``Error``."""
        full = [self._connector._make_key(key, *self._stages) for key in keys]
        pause = _FIRST_PAUSE
        while True:
            left = max(0.0, deadline - time.monotonic())
            begun = time.perf_counter()
            try:
                outcomes, claimed = _core.kv_straight_get(
                    self._connector._core, full, list(metadata), self._routes, request_id,
                    self._rank, self._heads, left,
                )  # fmt: skip
                if claimed is not None:
                    return self._read(full, claimed, deadline, time.perf_counter() - begun)
                reasons = [reason for reason, _ in outcomes]
            except Error as error:
                # A sender that went, a payload that was put again: the claims are given up, and
                # what is there now is asked for.
                if error.code not in _PASSING:
                    raise
                _logger.warning("KV read of %s: %s; trying again", request_id, error)
                reasons = [error.reason] * len(full)
            left = deadline - time.monotonic()
            if left <= 0 or self._closed.is_set():
                return reasons
            self._closed.wait(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _read(
        self, keys: Sequence[str], claimed: _core.KvStraightGet, deadline: float, query: float
    ) -> ReadCache:
        begun = time.perf_counter()
        memory = CacheMemory(claimed.nbytes)
        read = time.perf_counter()
        claimed.read(memory.bytes, max(0.001, deadline - time.monotonic()))
        ended = time.perf_counter()
        rate = claimed.payload_bytes / 1024 / 1024 / max(1e-9, query + ended - begun)
        for key in keys:
            _logger.info(
                "[YR GET] %s: query=%.1fms, alloc=%.1fms, read=%.1fms, total=%.1fms, %.1f MB/s "
                "(fast_path, zero-copy)",
                key, query * 1e3, (read - begun) * 1e3, (ended - read) * 1e3,
                (query + ended - begun) * 1e3, rate,
            )  # fmt: skip
        return ReadCache(
            memory,
            claimed.tensors,
            claimed.num_layers,
            claimed.metadata,
            claimed.block_ids,
            claimed.payload_bytes,
            ended - read,
        )
