"""The worker half: carries out a step's orders and reports how transfers ended.

Nothing here waits for a peer: handshakes have threads of their own, transfers belong to the C++
reader and writer. The exceptions are said where they are: a synchronous load, and the fence before
preempted blocks are reused.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.utils.network_utils import get_ip

from ..pull.log_limit import quiet_logger
from .caches.memory import CacheAllocation, Placement, place
from .fingerprint import describe
from .groups import Span
from .orders import FinishOrder, OfferOrder, Orders, ReadOrder, ReceiveOrder, WriteOrder
from .rank import Rank
from .settings import EnginePlace, Settings, place_of, read
from .stats import MoRIIOStats

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from ..heartbeat import HeartbeatSender
    from .scheduler import StepOrders

logger = quiet_logger("vllm.stagelink.moriio")

IDLE_WAIT = 0.001  # Of a step that has nothing to compute, for a transfer to end.


@dataclass
class _Inbound:
    """A load of this rank, from its order to its report."""

    request_id: str
    blocks: tuple[Span, ...]
    started: float


@dataclass
class _Outbound:
    """A transfer of this rank's blocks to another engine."""

    request_id: str
    finished: bool = False  # The scheduler waits for the end.
    ended: bool = False


class ConnectorWorker:
    """Thread-safety: none; the worker's thread. What other threads do is in `rank`."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
        config = vllm_config.kv_transfer_config
        assert config is not None
        self.settings = read(config.kv_connector_extra_config, get_ip())
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._stats = MoRIIOStats()
        self._inbound: dict[str, _Inbound] = {}  # By transfer id.
        self._outbound: dict[str, _Outbound] = {}
        self._transfer_of: dict[str, str] = {}  # Request id to transfer id, of both.
        self._invalid: set[int] = set()
        self._written_layers: set[str] = set()  # In this step.
        self._idle = False
        self._on_device = False
        self._single_group = len(kv_cache_config.kv_cache_groups) == 1
        self._context: CacheAllocation | None = None
        self.placement: Placement | None = None
        self.place = place_of(vllm_config, get_tensor_model_parallel_rank())
        model = vllm_config.model_config
        kv_heads = 1 if model.use_mla else model.get_total_num_kv_heads()
        self.rank = Rank(self.settings, self.place, role_of(config.kv_role), kv_heads)
        self._heartbeat = start_heartbeat(self.settings, self.place, config.kv_role)

    # The cache.

    def allocation_context(self) -> CacheAllocation | None:
        if not self.settings.shared_cache:
            return None
        self._context = CacheAllocation(self.rank.allocate)
        return self._context

    def register_kv_caches(self, caches: dict[str, torch.Tensor]) -> None:
        wanted = self._kv_cache_config.transfer_group_index_by_layer
        caches = {name: cache for name, cache in caches.items() if name in wanted}
        if not caches:
            raise ValueError("MoRIIOConnector: no layer of this model takes part in KV transfer")
        allocate = self.rank.allocate if self.settings.shared_cache else None
        self.placement = place(caches, self._context, allocate)
        compat = describe(self._vllm_config, self._kv_cache_config, caches, self.place.tp_size)
        self._on_device = next(iter(caches.values())).device.type != "cpu"
        self.rank.serve(self._kv_cache_config, caches, compat)

    # A step, in the order in which vLLM calls.

    def fence_preempted(self, orders: Orders) -> None:
        """Returns when nothing reads the blocks of preempted requests any more: the forward that
        follows may give them to others."""
        for request_id in orders.preempted:
            transfer_id = self._transfer_of.get(request_id)
            if transfer_id is not None:
                self.rank.abort_write(
                    transfer_id, "the request was preempted", self.settings.transfer_timeout
                )

    def start_load(self, step: StepOrders) -> None:
        orders = step.orders
        self._idle = step.idle
        for read_order in orders.reads:
            self._start_read(read_order)
        for receive in orders.receives:
            self._start_receive(receive)
        for release in orders.releases:
            self.rank.release(release.transfer_id, release.peer)
        for offer in orders.offers:
            self._offer(offer)
        for request_id in orders.aborts:
            self._abort(request_id)

    def layer_computed(self, step: StepOrders, layer: str) -> None:
        """The blocks of this step are complete in this layer."""
        if not step.orders.writes or layer in self._written_layers:
            return
        self._written_layers.add(layer)
        event = self._event()
        for order in step.orders.writes:
            self._write(order, layer, event)

    def step_computed(self, step: StepOrders) -> None:
        for layer in self.rank.layers if step.orders.writes else ():
            self.layer_computed(step, layer)  # Those whose attention calls no hook.
        for order in step.orders.writes:
            self.rank.chunk_done(order)
        self._written_layers.clear()
        for finish in step.orders.finishes:
            self._finish(finish)

    def take_results(self) -> tuple[set[str], set[str], set[str]]:
        """Requests whose blocks are free, whose loads have ended, and which of these failed."""
        sent, received, failed = set(), set(), set()
        wait = IDLE_WAIT if self._idle and (self._inbound or self._outbound) else 0.0
        for event in self.rank.events(wait):
            inbound = self._inbound.pop(event.transfer_id, None) if event.received else None
            if inbound is not None:
                self._transfer_of.pop(inbound.request_id, None)
                received.add(inbound.request_id)
                if event.reason is not None and self._load_failed(inbound, event.reason):
                    failed.add(inbound.request_id)
                elif event.reason is None:
                    seconds = time.monotonic() - inbound.started
                    self._stats.succeeded(seconds, event.nbytes, event.ranges)
            elif not event.received and event.transfer_id in self._outbound:
                self._outbound[event.transfer_id].ended = True
                if event.reason is not None:
                    self._stats.failed(event.reason)
        for transfer_id, outbound in list(self._outbound.items()):
            if outbound.finished and outbound.ended:
                del self._outbound[transfer_id]
                self._transfer_of.pop(outbound.request_id, None)
                sent.add(outbound.request_id)
        return sent, received, failed

    def take_invalid_blocks(self) -> set[int]:
        invalid, self._invalid = self._invalid, set()
        return invalid

    def take_stats(self) -> MoRIIOStats | None:
        return self._stats.take()

    def close(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.close()
        self.rank.close()

    # Loads.

    def _start_read(self, order: ReadOrder) -> None:
        self._add_inbound(order.request_id, order.transfer_id, order.spans)
        until = None if order.until is None else order.until - time.time()
        timeout = self.settings.recv_abort_timeout
        if until is not None:
            timeout = min(timeout, until)
        if order.pairs is None:
            self.rank.refuse(order.transfer_id, order.peer, "params", "the peer lacks blocks")
            return
        if until is not None and until <= 0:
            self.rank.refuse(order.transfer_id, order.peer, "lease", "the lease has run out")
            return
        self.rank.read(order.transfer_id, order.peer, order.pairs, timeout)
        if order.synchronous:
            # The forward of this step reads the blocks; a failure is reported in the same step.
            self.rank.wait_received(order.transfer_id, timeout)

    def _start_receive(self, order: ReceiveOrder) -> None:
        self._add_inbound(order.request_id, order.transfer_id, order.spans)
        self.rank.receive(order, self.settings.recv_abort_timeout)

    def _add_inbound(self, request_id: str, transfer_id: str, spans: tuple[Span, ...]) -> None:
        self._inbound[transfer_id] = _Inbound(request_id, spans, time.monotonic())
        self._transfer_of[request_id] = transfer_id

    def _abort(self, request_id: str) -> None:
        """Its end is reported when nothing touches its blocks any more."""
        transfer_id = self._transfer_of.get(request_id)
        if transfer_id in self._inbound:
            assert transfer_id is not None
            self.rank.cancel_load(transfer_id)

    def _load_failed(self, inbound: _Inbound, reason: str) -> bool:
        """One group: told by blocks, which keeps the prefix that was cached here; more: told by
        request, as ids of blocks are unique within a group only. True in the second case."""
        self._stats.failed(reason)
        if not self._single_group:
            return True
        self._invalid.update(_block_ids(inbound.blocks))
        return False

    # Handing over.

    def _offer(self, order: OfferOrder) -> None:
        self._outbound[order.transfer_id] = _Outbound(order.request_id, finished=True)
        self.rank.offer(order)

    def _write(self, order: WriteOrder, layer: str, event: Any) -> None:
        if not self._start_write(order).ended:  # Else the other engine has gone, or wants none.
            self.rank.write(order, layer, event)

    def _start_write(self, order: WriteOrder | FinishOrder) -> _Outbound:
        """Once for each transfer."""
        outbound = self._outbound.get(order.transfer_id)
        if outbound is not None:
            return outbound
        outbound = self._outbound[order.transfer_id] = _Outbound(order.request_id)
        self._transfer_of[order.request_id] = order.transfer_id
        failure = self.rank.start_write(order)
        if failure is not None:
            logger.warning("Transfer %s: %s (%s)", order.transfer_id, failure.text, failure.reason)
            self._stats.failed(failure.reason)
            outbound.ended = True
        return outbound

    def _event(self) -> Any:
        """When the layer that was launched last is computed; None: it is."""
        if not self._on_device:
            return None
        import torch

        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream())
        return event

    def _finish(self, order: FinishOrder) -> None:
        outbound = self._start_write(order)
        outbound.finished = True
        if order.aborted and not outbound.ended:
            outbound.ended = self.rank.abort_write(order.transfer_id, "the request was aborted")


def start_heartbeat(
    settings: Settings, place: EnginePlace, kv_role: str | None
) -> HeartbeatSender | None:
    """Of the first rank of the engine, where a proxy is configured."""
    if not settings.proxy_ip or place.tp_rank != 0 or place.dp_rank != 0:
        return None
    from ..heartbeat import HeartbeatSender, encode_heartbeat

    message = encode_heartbeat(
        role="D" if kv_role == "kv_consumer" else "P",
        host_ip=settings.host_ip,
        http_port=settings.http_port,
        handshake_port=settings.handshake_port,
        notify_port=settings.notify_port,
        dp_size=place.dp_size,
        tp_size=place.tp_size,
        transfer_mode="READ" if settings.read_mode else "WRITE",
    )
    return HeartbeatSender(settings.proxy_ip, settings.proxy_ping_port, message)


def role_of(kv_role: str | None) -> str:
    """As the ranks call it."""
    return {"kv_producer": "producer", "kv_consumer": "consumer"}.get(kv_role or "", "both")


def _block_ids(spans: Iterable[Span]) -> set[int]:
    return {block for span in spans for block in span.ids if block}
