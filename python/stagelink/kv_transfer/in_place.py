"""Blocks of a registered KV cache that are offered where they lie."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

from .. import _core
from ..errors import Busy, InvalidArgument
from ..pull.log_limit import quiet_logger

__all__ = ["RegisteredCaches"]

logger = quiet_logger("stagelink.kv")

# Payloads for which this is no way, while a copy is one.
_COPY_INSTEAD = frozenset({"too_many_ranges", "out_of_bounds"})


class RegisteredCaches:
    """Knows which requests' blocks may still be read, by this process or by those who receive.

    A request is held from when it is handed over until it has ended here and everybody has read
    what was offered of its blocks. All methods may be called from any thread.
    """

    def __init__(self, connector: Any, layers: Sequence[Any], made: _core.KvLayers) -> None:
        """Register the memory. Raises ``InvalidArgument`` (unsupported) where it cannot be."""
        core = getattr(connector, "_core", None)
        if not isinstance(core, _core.PullConnector):
            raise InvalidArgument(
                "blocks are offered in place by the connector that pulls, "
                f"not by {type(connector).__name__}",
                "unsupported",
            )
        self._cache = _core.kv_register(core, made)
        self._connector = connector
        self._layers = list(layers)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._tickets: dict[int, str] = {}
        self._holds: dict[str, int] = {}
        self._reusable: list[str] = []

    def suits(self, layers: Sequence[Any]) -> bool:
        """Whether these are the tensors that were registered."""
        known = self._layers
        return len(known) == len(layers) and all(a is b for a, b in zip(known, layers, strict=True))

    def put(
        self, request_id: str, stages: tuple[str, str], key: str, plan: _core.KvPlan, left: float
    ) -> str | None:
        """Offer a payload: ``ok`` or why not; None: it has to be copied."""
        ticket = next(self._numbers)
        with self._lock:
            self._tickets[ticket] = request_id
            self._holds[request_id] = self._holds.get(request_id, 0) + 1
        outcome = "system"
        try:
            full = self._connector._make_key(key, *stages)
            outcome, message, _ = self._cache.put(full, plan, ticket, max(0.001, left))
        finally:
            if outcome != "ok":
                self._end(ticket)
        if outcome in _COPY_INSTEAD:
            logger.debug("KV payload %s is copied: %s", key, message)
            return None
        return outcome

    def begin(self, request_id: str) -> None:
        """Hold the blocks of a request that was handed over."""
        with self._lock:
            self._holds[request_id] = self._holds.get(request_id, 0) + 1

    def end(self, request_id: str) -> None:
        """This process reads the request's blocks no more."""
        with self._lock:
            self._drop(request_id)

    def take_reusable(self) -> list[str]:
        """Requests whose blocks nobody reads any more, since the last call."""
        for ticket in self._cache.take_free():
            self._end(ticket)
        with self._lock:
            found, self._reusable = self._reusable, []
        return found

    def close(self, timeout: float) -> None:
        """Take back what is offered and wait for those who read it."""
        try:
            self._cache.close(timeout)
        except Busy as error:
            logger.warning("KV transfer: %s", error)

    def _end(self, ticket: int) -> None:
        with self._lock:
            request_id = self._tickets.pop(ticket, None)
            if request_id is not None:
                self._drop(request_id)

    def _drop(self, request_id: str) -> None:
        left = self._holds.pop(request_id, 1) - 1
        if left > 0:
            self._holds[request_id] = left
        else:
            self._reusable.append(request_id)
