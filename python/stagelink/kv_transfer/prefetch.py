"""Receives caches before anybody asks for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from ..pull.log_limit import quiet_logger

__all__ = ["KvPrefetcher"]

logger = quiet_logger("stagelink.kv")

_Fetched = tuple[dict[str, Any] | None, int]
_Receive = Callable[[str, Any, Mapping[str, Any] | None], _Fetched]

_THREADS = 2


class KvPrefetcher:
    """Keeps what it has received until it is taken: the sender has let go of it.

    All methods may be called from any thread.
    """

    def __init__(self, receive: _Receive, limit: int) -> None:
        """``limit``: requests that were begun and not taken."""
        self._receive = receive
        self._limit = limit
        self._lock = threading.Lock()
        self._futures: dict[str, Future[_Fetched]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="kv-prefetch")
        self._closed = False

    def start(self, request_id: str, device: Any, sender_info: Mapping[str, Any]) -> bool:
        """Begin, unless it was begun; False: too many have not been taken."""
        with self._lock:
            if request_id in self._futures:
                return True
            if self._closed or len(self._futures) >= self._limit:
                logger.info(
                    "Skip KV prefetch for %s: %s requests are prefetched",
                    request_id, len(self._futures),
                )  # fmt: skip
                return False
            self._futures[request_id] = self._threads.submit(
                self._receive, request_id, device, sender_info
            )
        return True

    def take(self, request_id: str) -> _Fetched | None:
        """Wait for a request that was begun and hand it out; None: it was not."""
        with self._lock:
            future = self._futures.pop(request_id, None)
        if future is None or future.cancel():
            return None
        try:
            return future.result()
        except Exception:
            logger.exception("KV load failed for %s; falling back to sync receive", request_id)
            return None, 0

    def wait(self, timeout: float | None) -> bool:
        """Wait until nothing is being fetched; False: something still is."""
        with self._lock:
            futures = list(self._futures.values())
        return not wait(futures, timeout).not_done

    def close(self) -> None:
        """Begin nothing more; what runs comes to its end."""
        with self._lock:
            self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
