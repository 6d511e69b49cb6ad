"""Puts the KV cache of finished requests, off the thread that runs the model."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import _core
from ..errors import Error, InvalidArgument, InvalidState
from ..pull import arguments
from ..pull.log_limit import quiet_logger
from .config import KvTransferConfig
from .counters import KvCounters
from .device import blocks_on_host, is_on_device
from .in_place import RegisteredCaches

__all__ = ["KvSender", "SendJob"]

logger = quiet_logger("stagelink.kv")

_ATTEMPTS = 3
_FIRST_PAUSE = 0.1  # Doubled after each attempt.
_WINDOW_LOOK = 0.002  # How often a full window is looked at.


@dataclass
class SendJob:
    """The cache of one request, and what came of it."""

    request_id: str  # The scheduler's.
    transfer_id: str  # The pipeline's: it stands in keys and payload.
    block_ids: list[int]
    seq_len: int
    metadata: dict[str, Any]
    layers: Sequence[Any]
    block_size: int
    deadline: float
    written: Any = None
    """An event of the device behind which its memory holds what it should."""
    held: RegisteredCaches | None = None
    """Where its blocks are held, if they may be offered in place."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why, by key."""
    done: threading.Event = field(default_factory=threading.Event)

    def read(self, data: Any, dtype: str) -> None:
        """Take what the scheduler says of it. Raises ``InvalidArgument``, naming what cannot be."""
        arguments.utf8("request_id", self.transfer_id)
        data = arguments.mapping("the request's data", data)
        self.block_ids = arguments.integers("block_ids", data.get("block_ids", ()))
        self.seq_len = arguments.integer("seq_len", data.get("seq_len", 0))
        more = arguments.mapping("custom_metadata", data.get("custom_metadata") or {})
        self.metadata.update({"dtype": dtype, "seq_len": self.seq_len, **more})


class KvSender:
    """Takes requests, puts their payloads, and tells which ones are done.

    The blocks of a request are read until it is done: the scheduler must not reuse them before.
    All methods may be called from any thread.
    """

    def __init__(
        self,
        config: KvTransferConfig,
        connector: Any,
        rank_map: _core.KvRankMap,
        rank: int,
        counters: KvCounters,
    ) -> None:
        """Start the threads."""
        self._config = config
        self._connector = connector
        self._map = rank_map
        self._rank = rank
        self._counters = counters
        self._routes = rank_map.sends(rank)
        self._stages = config.send_stages()
        self._queue: queue.Queue[SendJob | None] = queue.Queue(config.send_queue)
        self._lock = threading.Lock()
        self._done: list[str] = []
        self._failed: dict[str, dict[str, str]] = {}
        self._pending = 0
        self._stop = threading.Event()
        self._layers: tuple[list[Any], int, _core.KvLayers] | None = None
        self._registered: RegisteredCaches | None = None
        count = config.send_threads
        if config.max_inflight > 0:
            count = min(count, config.max_inflight)
        self._threads = [
            threading.Thread(target=self._run, name=f"kv-send-{at}", daemon=True)
            for at in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: SendJob) -> bool:
        """Hand a request over; False: too many wait, and it has failed."""
        self._hold(job)
        with self._lock:
            stopped = self._stop.is_set()
            if not stopped:
                self._pending += 1
        if not stopped:
            try:
                self._queue.put_nowait(job)
                return True
            except queue.Full:
                with self._lock:
                    self._pending -= 1
        why = "closed" if stopped else "busy"
        self._fail(job, why, f"{self._config.send_queue} requests wait to be sent")
        self._finish(job)
        return False

    def refuse(self, job: SendJob, error: InvalidArgument) -> None:
        """Fail a request that cannot be sent, before it is handed over."""
        self._hold(job)
        job.failed[str(job.transfer_id)] = error.reason
        self._counters.count("sent", error.reason)
        logger.error(
            "KV transfer FAILED: %s: %s (%s)",
            arguments.shown(str(job.request_id)), error.message, error.reason,
        )  # fmt: skip
        self._finish(job)

    def register(self, layers: Sequence[Any], block_size: int) -> None:
        """Offer blocks of these layers where they lie, from now on. Raises ``Error``."""
        config = self._config
        made = _core.kv_layers(layers, block_size, config.mla, config.kv_layout)
        registered = RegisteredCaches(self._connector, layers, made)
        with self._lock:
            if self._registered is not None:
                raise InvalidState("KV caches are registered already")
            self._registered = registered
            self._layers = (list(layers), block_size, made)

    def take_reusable(self) -> list[str]:
        """Requests whose blocks nobody reads any more; none without registered caches."""
        return [] if self._registered is None else self._registered.take_reusable()

    def take_done(self) -> list[str]:
        """Requests whose every payload was put, since the last call."""
        with self._lock:
            done, self._done = self._done, []
        return done

    def take_failed(self) -> dict[str, dict[str, str]]:
        """Requests that failed since the last call: the reason of each key that was not put."""
        with self._lock:
            failed, self._failed = self._failed, {}
        return failed

    @property
    def pending(self) -> int:
        """Requests that are not done."""
        with self._lock:
            return self._pending

    def close(self, timeout: float = 5.0) -> None:
        """Fail what waits, let what runs come to its end."""
        with self._lock:
            self._stop.set()
        while True:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                self._fail(job, "closed", "the manager was closed")
                self._end(job)
        for _ in self._threads:
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                break
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._registered is not None:
            self._registered.close(max(0.0, deadline - time.monotonic()))

    # The threads.

    def _run(self) -> None:
        while not self._stop.is_set():
            job = self._queue.get()
            if job is None:
                return
            try:
                self._send(job)
            except Exception as error:  # noqa: BLE001 - the thread must live on
                self._fail(job, _reason_of(error), str(error))
            finally:
                self._end(job)

    def _end(self, job: SendJob) -> None:
        with self._lock:
            self._pending -= 1
        self._finish(job)

    def _finish(self, job: SendJob) -> None:
        with self._lock:
            if job.failed:
                self._failed[job.request_id] = job.failed
            else:
                self._done.append(job.request_id)
        self._counters.count("requests_sent", "failed" if job.failed else "ok")
        if job.held is not None:
            job.held.end(job.request_id)
        job.done.set()

    def _hold(self, job: SendJob) -> None:
        job.held = self._registered
        if job.held is not None:
            job.held.begin(job.request_id)

    def _fail(self, job: SendJob, reason: str, why: str) -> None:
        """Nothing of the request was put."""
        keys = [self._key(job, to_rank) for to_rank, _, _ in self._routes] or [job.transfer_id]
        for key in keys:
            job.failed.setdefault(key, reason)
            self._counters.count("sent", reason)
        logger.error("KV transfer FAILED: %s: %s (%s)", job.transfer_id, why, reason)

    def _key(self, job: SendJob, to_rank: int) -> str:
        return self._map.key(job.transfer_id, *self._stages, self._rank, to_rank)

    def _send(self, job: SendJob) -> None:
        started = time.perf_counter()
        layers, positions = self._layers_of(job)
        plans = [
            (self._key(job, to_rank), self._plan(job, layers, positions, to_rank, share))
            for to_rank, share, _ in self._routes
        ]
        planned = time.perf_counter()
        logger.info(
            "KV cache serialized for %s in %.1f ms", job.transfer_id, (planned - started) * 1e3
        )
        total = 0
        for key, plan in plans:
            outcome, size = self._put(job, key, plan)
            self._counters.count("sent", outcome, size)
            total += size
            if outcome != "ok":
                job.failed[key] = outcome
        elapsed = time.perf_counter() - planned
        if job.failed:
            logger.error(
                "KV transfer FAILED: %s: %s of %s key(s): %s",
                job.transfer_id, len(job.failed), len(plans),
                ", ".join(f"{key} ({why})" for key, why in job.failed.items()),
            )  # fmt: skip
            return
        logger.info(
            "KV transfer OK: %s, %s bytes across %s key(s), %.3fs, %.1f MB/s",
            job.transfer_id, total, len(plans), elapsed,
            total / 1024 / 1024 / elapsed if elapsed > 0 else 0.0,
        )  # fmt: skip

    def _plan(
        self,
        job: SendJob,
        layers: _core.KvLayers,
        positions: Sequence[int],
        to_rank: int,
        share: tuple[int, int, int],
    ) -> _core.KvPlan:
        metadata = job.metadata
        first, count, of = share
        if count != of:
            metadata = dict(metadata)
            metadata["tp_head_slice"] = {
                "applied": True,
                "side": "sender",
                "target_rank": to_rank,
                "source_rank": self._rank,
                "from_tp": self._config.from_tp,
                "to_tp": self._config.to_tp,
                "offset_in_shard": first // count,
                "num_slices": of // count,
            }
        text = json.dumps(metadata, separators=(",", ":"))
        return _core.kv_plan(
            layers,
            job.transfer_id,
            job.block_ids,
            job.seq_len,
            text,
            heads=share,
            positions=positions,
        )

    def _layers_of(self, job: SendJob) -> tuple[_core.KvLayers, Sequence[int]]:
        """The cache, and where the blocks lie in it if not at their ids."""
        config = self._config
        if any(is_on_device(layer) for layer in job.layers):
            if job.written is not None:
                job.written.synchronize()
            copies = blocks_on_host(
                job.layers, job.block_ids, job.block_size, config.mla, config.kv_layout
            )
            made = _core.kv_layers(copies, job.block_size, config.mla, config.kv_layout)
            return made, range(len(job.block_ids))
        kept = self._layers
        if kept is not None and kept[1] == job.block_size and _same(kept[0], job.layers):
            return kept[2], ()
        made = _core.kv_layers(job.layers, job.block_size, config.mla, config.kv_layout)
        self._layers = (list(job.layers), job.block_size, made)
        return made, ()

    def _put(self, job: SendJob, key: str, plan: _core.KvPlan) -> tuple[str, int]:
        outcome = self._wait_for_window(job)
        pause = _FIRST_PAUSE
        for attempt in range(1, _ATTEMPTS + 1):
            if outcome is not None:
                return outcome, 0
            try:
                if self._put_once(job, key, plan):
                    return "ok", plan.nbytes
                logger.warning("Transfer attempt %s failed for %s", attempt, key)
            except Exception as error:  # noqa: BLE001 - whatever a connector raises
                logger.warning("Transfer attempt %s failed for %s: %s", attempt, key, error)
                if isinstance(error, Error) and error.scope == "call":
                    return error.reason, 0  # The same call would fail again.
            left = job.deadline - time.monotonic()
            if attempt == _ATTEMPTS or left <= pause:
                break
            if self._stop.wait(pause):
                outcome = "closed"
            pause *= 2
        return outcome or "refused", 0

    def _put_once(self, job: SendJob, key: str, plan: _core.KvPlan) -> bool:
        from_stage, to_stage = self._stages
        left = max(0.0, job.deadline - time.monotonic())
        if job.held is not None and job.held.suits(job.layers):
            outcome = job.held.put(job.request_id, self._stages, key, plan, left)
            self._counters.count("put_in_place", outcome or "copied")
            if outcome is not None:
                return outcome == "ok"
        data: Any = None
        allocate = getattr(self._connector, "allocate", None)
        if allocate is not None and getattr(self._connector, "pool_device", "cpu") == "cpu":
            data = allocate(plan.nbytes, left)
            if data is None:
                return False
            with memoryview(data) as view:
                plan.write_into(view)
        else:
            data = plan.to_bytes()
        try:
            done = self._connector.put(
                from_stage=from_stage, to_stage=to_stage, put_key=key, data=data
            )
        finally:
            if hasattr(data, "release"):
                data.release()  # Our share; the offer has its own.
        return bool(done[0])

    def _wait_for_window(self, job: SendJob) -> str | None:
        """Wait until the edge has room for one payload more; else why not."""
        if self._config.window_size < 0:
            return None
        while (held := _unconsumed(self._connector)) is not None:
            if held < self._config.window_size:
                return None
            if self._stop.wait(_WINDOW_LOOK):
                return "closed"
            if time.monotonic() >= job.deadline:
                logger.warning(
                    "window_size %s: %s payloads are put and not consumed",
                    self._config.window_size, held,
                )  # fmt: skip
                return "timed_out"
        return None


def _reason_of(error: Exception) -> str:
    if isinstance(error, Error):
        return error.reason
    # What JSON cannot hold, and layers that are none.
    return "invalid_argument" if isinstance(error, TypeError | ValueError) else "system"


def _same(kept: Sequence[Any], given: Sequence[Any]) -> bool:
    return len(kept) == len(given) and all(a is b for a, b in zip(kept, given, strict=True))


def _unconsumed(connector: Any) -> int | None:
    """Payloads that are put and not consumed; None: the connector cannot tell, or sees to it."""
    health: Mapping[str, Any] = connector.health()
    offers = health.get("offers")
    return None if offers is None else int(offers)
