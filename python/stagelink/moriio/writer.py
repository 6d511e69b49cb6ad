"""``MoRIIOWriter``: write mode of a prefill worker."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Sequence
from typing import Any
from weakref import ref

from .. import _core, errors
from ..pull.log_limit import quiet_logger
from .data import get_port_offset

logger = quiet_logger("stagelink.moriio")

DEFAULT_DEFER_TIMEOUT = 60.0


class _Host:
    """Answers the writer's thread out of vLLM's worker."""

    def __init__(self, worker: ref[Any]) -> None:
        self._worker_ref = worker

    def _worker(self) -> Any:
        return _alive(self._worker_ref)

    def consumer_of(
        self, _block_ids: list[int], decode_rank: int, task: Any
    ) -> tuple[str, int] | None:
        """The notify port of the rank whose blocks are written: that of its pod."""
        hosts = getattr(task, "multi_pod_hosts", None) or []
        local_size = getattr(task, "remote_dp_size_local", 0)
        host, rank = task.remote_ip, decode_rank
        if local_size > 0:
            pod, rank = divmod(decode_rank, local_size)
            if pod < len(hosts):
                host = hosts[pod]
        if not host:
            return None
        offset = get_port_offset(rank, self._worker().tp_rank)
        return host.removeprefix("[").removesuffix("]"), int(task.remote_notify_port) + offset

    def plan(
        self, block_ids: list[int], decode_rank: int, tasks: Sequence[Any]
    ) -> list[tuple[Any, Any, Any, Any]]:
        """For each layer: session, local offsets, remote offsets, sizes."""
        worker = self._worker()
        parameters = inspect.signature(worker._compute_block_transfer_offsets).parameters
        names_engine = "remote_engine_id" in parameters or any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
        )
        moves = []
        for task in tasks:
            engine = worker.get_engine_name_with_dp(task.dst_engine_id, decode_rank)
            sessions, remote = worker._get_built_session(engine)
            local_offsets, remote_offsets, sizes = worker._compute_block_transfer_offsets(
                task.layer_name,
                task.local_block_ids,
                block_ids,
                remote,
                **({"remote_engine_id": engine} if names_engine else {}),
            )
            session = sessions[_session_index(worker, task.layer_name)]
            moves.append((session, local_offsets, remote_offsets, sizes))
        return moves

    def post(
        self, session: Any, local_offsets: list[int], remote_offsets: list[int], sizes: list[int]
    ) -> Any:
        wrapper = self._worker().moriio_wrapper
        return wrapper.write_remote_data(sizes, local_offsets, remote_offsets, session)


def _alive(reference: ref[Any]) -> Any:
    worker = reference()
    if worker is None:
        raise RuntimeError("Parent worker has been garbage collected")
    return worker


def _session_index(worker: Any, layer: str) -> int:
    indices = getattr(worker, "_region_session_indices", None)
    if indices is not None:
        return int(indices(layer)[0])
    return list(worker.layer_name_to_local_kv_cache_metadata).index(layer)


class MoRIIOWriter:
    """A thread in C++ plans, posts and completes; many transfers are under way at the same time.

    Thread-safety: all methods may be called at the same time. None of them waits for a peer but
    abort() and shutdown().
    """

    def __init__(self, worker: Any) -> None:
        """`worker` as vLLM 0.32's MoRIIOConnectorWorker; it is not kept alive."""
        self._worker_ref = ref(worker)
        config = getattr(worker, "moriio_config", None)
        self._defer_timeout = float(getattr(config, "defer_timeout", DEFAULT_DEFER_TIMEOUT))
        self._lock = threading.Lock()
        self._push: _core.MoriioPush | None = None
        self._counts: dict[str, int] = {}  # Of callers that do not seal.

    @property
    def worker(self) -> Any:
        return _alive(self._worker_ref)

    def ensure_worker_started(self) -> None:
        self._started()

    def schedule_write(self, task: Any) -> bool:
        """False if the layer is scheduled already, its transfer has ended, or it cannot be
        scheduled, which is logged. A task without a transfer id is known by its request id, and
        its transfer is complete with `worker.num_layers` layers."""
        transfer_id = getattr(task, "transfer_id", None) or task.request_id
        age = max(0.0, time.perf_counter() - getattr(task, "enqueue_time", time.perf_counter()))
        try:
            scheduled = self._started().schedule(
                task, task.request_id, transfer_id, task.layer_name, age
            )
        except errors.Error as error:
            logger.error("Write of %s, layer %s: %s", transfer_id, task.layer_name, error)
            return False
        if scheduled and not hasattr(task, "transfer_id"):
            self._count(transfer_id)
        return scheduled

    def is_scheduled(self, transfer_id: str, layer_name: str) -> bool:
        return self._started().is_scheduled(transfer_id, layer_name)

    def seal_pending_transfers(self) -> None:
        """What is scheduled so far is all there is of these transfers. Never waits or raises."""
        with self._lock:
            push = self._push
        if push is not None:
            push.seal_pending()

    def abort(self, transfer_id: str, timeout: float = 5.0) -> None:
        """When it returns nothing of the transfer touches memory any more. Raises TimedOut, and
        goes on."""
        self._started().abort(transfer_id, timeout)

    def state(self, transfer_id: str) -> str:
        return self._started().state(transfer_id)

    def shutdown(self) -> None:
        """Aborts what is under way. Idempotent."""
        with self._lock:
            push = self._push
        if push is not None:
            push.close()

    def _started(self) -> _core.MoriioPush:
        worker = self.worker
        with self._lock:
            if self._push is None:
                config = getattr(worker, "moriio_config", None)
                self._push = _core.MoriioPush(
                    worker.moriio_wrapper.control,
                    _Host(self._worker_ref),
                    tp_rank=worker.tp_rank,
                    defer_timeout=self._defer_timeout,
                    transfer_timeout=float(getattr(config, "transfer_timeout", 30.0)),
                )
            return self._push

    def _count(self, transfer_id: str) -> None:
        with self._lock:
            count = self._counts.pop(transfer_id, 0) + 1
            if count < self.worker.num_layers:
                self._counts[transfer_id] = count
                return
        self.seal_pending_transfers()
