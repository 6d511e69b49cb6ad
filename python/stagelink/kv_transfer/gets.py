"""Gets of several payloads at once, over whatever a connector offers."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from ..pull.log_limit import quiet_logger

__all__ = ["KvGets"]

logger = quiet_logger("stagelink.kv")

_Metadata = Mapping[str, Any] | None
_Result = tuple[Any, int]

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.05
_MAX_THREADS = 16


class KvGets:
    """Gets payloads in parallel and never beyond the deadline.

    ``get_many`` of the connector is used where it has one, else ``get_with_deadline``, else ``get``
    again and again. What comes too late for its caller, or came while another payload did not, is
    kept for whoever asks next: its sender has let go of it. All methods may be called from any
    thread.
    """

    MAX_KEPT = 64

    def __init__(self, connector: Any, from_stage: str, to_stage: str) -> None:
        """Begin; threads are only there where the connector cannot do it alone."""
        self._connector = connector
        self._stages = from_stage, to_stage
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Result] = OrderedDict()
        self._threads: ThreadPoolExecutor | None = None
        self._running: dict[str, Future[_Result | None]] = {}
        self._closed = threading.Event()

    def get_all(self, wanted: Mapping[str, _Metadata], deadline: float) -> dict[str, _Result]:
        """Return what is there at the deadline, a ``time.monotonic()``, or earlier if it is all."""
        found = self._take_kept(wanted)
        pending = {key: place for key, place in wanted.items() if key not in found}
        if not pending:
            return found
        if hasattr(self._connector, "get_many"):
            self._with_get_many(pending, found, deadline)
        else:
            self._with_threads(pending, found, deadline)
        return found

    def keep(self, results: Mapping[str, _Result]) -> None:
        """Keep payloads whose request cannot use them now."""
        with self._lock:
            for key, result in results.items():
                self._kept[key] = result
            dropped = []
            while len(self._kept) > self.MAX_KEPT or (self._kept and self._closed.is_set()):
                dropped.append(self._kept.popitem(last=False))
        for key, (data, _) in dropped:
            logger.warning("KV payload %s was never asked for again; it is dropped", key)
            release(data)

    @property
    def kept(self) -> int:
        """Payloads that wait for whoever asks next."""
        with self._lock:
            return len(self._kept)

    def close(self) -> None:
        """End what waits."""
        self._closed.set()
        self.keep({})
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    def _take_kept(self, wanted: Mapping[str, _Metadata]) -> dict[str, _Result]:
        with self._lock:
            return {key: self._kept.pop(key) for key in wanted if key in self._kept}

    def _with_get_many(
        self, pending: dict[str, _Metadata], found: dict[str, _Result], deadline: float
    ) -> None:
        pause = _FIRST_PAUSE
        while pending and not self._closed.is_set():
            keys = list(pending)
            results = self._connector.get_many(
                *self._stages, keys, [pending[key] for key in keys], deadline=deadline
            )
            for key, result in zip(keys, results, strict=True):
                if result is not None:
                    found[key] = result
                    del pending[key]
            left = deadline - time.monotonic()
            if not pending or left <= 0:
                return
            # A sender that is not there answers at once; it may come.
            self._closed.wait(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _with_threads(
        self, pending: dict[str, _Metadata], found: dict[str, _Result], deadline: float
    ) -> None:
        gets = {key: self._begin(key, place, deadline) for key, place in pending.items()}
        wait(gets.values(), max(0.0, deadline - time.monotonic()))
        for key, future in gets.items():
            if future.done() and not future.cancelled():
                result = future.result()
                with self._lock:
                    kept = self._kept.pop(key, None)  # Its callback has put it there.
                if result is not None and kept is not None:
                    found[key] = result

    def _begin(self, key: str, place: _Metadata, deadline: float) -> Future[_Result | None]:
        with self._lock:
            running = self._running.get(key)
            if running is not None:
                return running  # From before: it will still consume the payload.
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="kv-get")
            future = self._threads.submit(self._poll, key, place, deadline)
            self._running[key] = future
        return future

    def _poll(self, key: str, place: _Metadata, deadline: float) -> _Result | None:
        try:
            result = self._poll_until(key, place, deadline)
            if result is not None:
                self.keep({key: result})
            return result
        finally:
            with self._lock:
                self._running.pop(key, None)

    def _poll_until(self, key: str, place: _Metadata, deadline: float) -> _Result | None:
        from_stage, to_stage = self._stages
        waits = hasattr(self._connector, "get_with_deadline")
        pause = _FIRST_PAUSE
        while not self._closed.is_set():
            result: _Result | None = None
            try:
                if waits:
                    result = self._connector.get_with_deadline(
                        from_stage, to_stage, key, place, deadline=deadline
                    )
                else:
                    result = self._connector.get(
                        from_stage=from_stage, to_stage=to_stage, get_key=key, metadata=place
                    )
            except NotImplementedError:
                if not waits:
                    raise
                waits = False
                continue
            if result:
                return result
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._closed.wait(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return None


def release(data: object) -> None:
    """Give the memory of a payload back to its pool, if it is of one."""
    give_back = getattr(data, "release", None)
    if give_back is not None:
        give_back()
