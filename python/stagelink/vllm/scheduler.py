"""The scheduler half: translates requests for the two tables, and their orders for workers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.utils.network_utils import get_ip
from vllm.v1.request import RequestStatus

from ..pull.log_limit import quiet_logger
from .consumer import ConsumerOptions, ConsumerTable
from .orders import Orders
from .params import ParamsError, TransferParams, parse
from .producer import ProducerOptions, ProducerTable
from .settings import EnginePlace, Settings, groups_of, place_of, read
from .stats import MoRIIOStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import KVConnectorBlockState, SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = quiet_logger("vllm.stagelink.moriio")

GOOD_ENDS = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


class StepOrders(KVConnectorMetadata):
    """What one step's workers are told."""

    def __init__(self, orders: Orders, idle: bool) -> None:
        self.orders = orders
        self.idle = idle  # Nothing to compute: a worker may wait a moment for transfers.


class ConnectorScheduler:
    """Thread-safety: none; the scheduler's thread."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
        config = vllm_config.kv_transfer_config
        assert config is not None
        self.settings = read(config.kv_connector_extra_config, get_ip())
        self.place = place_of(vllm_config, 0)
        self._kv_cache_config = kv_cache_config
        self._stats = MoRIIOStats()
        groups = groups_of(vllm_config, kv_cache_config)
        write_mode = not self.settings.read_mode
        check_synchronous(self.settings, len(groups))
        self._producer = self._consumer = None
        if config.is_kv_producer:
            self._producer = ProducerTable(
                ProducerOptions(
                    groups,
                    write_mode,
                    self.settings.early_push,
                    self.settings.defer_timeout,
                    address_of(self.settings, self.place),
                ),
                self._refuse,
            )
        if config.is_kv_consumer:
            self._consumer = ConsumerTable(
                ConsumerOptions(
                    groups,
                    write_mode,
                    self.place.dp_rank,
                    self.settings.async_load or write_mode,
                    self.settings.lease_margin,
                ),
                self._refuse,
            )

    def on_new_request(self, request: Request) -> None:
        if not request.kv_transfer_params:
            return
        try:
            params = parse(request.kv_transfer_params, request.request_id)
        except ParamsError as error:
            self._refuse("params", f"{request.request_id}: {error}")
            return
        self._add(request, params)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        if self._consumer is None:
            return 0, False
        tokens = self._consumer.usable_tokens(
            request.request_id, request.num_prompt_tokens, num_computed_tokens
        )
        if not tokens:
            return tokens, False
        return tokens, self.settings.async_load or not self.settings.read_mode

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        if self._consumer is not None:
            ids = self._kv_cache_config.select_transfer_block_ids(blocks.get_block_ids())
            self._consumer.allocated(request.request_id, num_external_tokens, ids)

    def build_connector_meta(self, output: SchedulerOutput) -> StepOrders:
        orders = Orders()
        if self._producer is not None:
            for request_id in output.preempted_req_ids or ():
                self._producer.preempted(request_id)
            self._order_writes(self._producer, output)
            orders = self._producer.take()
        if self._consumer is not None:
            orders.add(self._consumer.take())
        return StepOrders(orders, output.total_num_scheduled_tokens == 0)

    def request_finished(
        self, request: Request, block_ids: Sequence[list[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        if self._consumer is not None:
            self._consumer.finished(request.request_id)
        if self._producer is None:
            return False, None
        return self._producer.finished(
            request.request_id,
            request.status in GOOD_ENDS,
            self._kv_cache_config.select_transfer_block_ids(block_ids),
            request.num_computed_tokens,
        )

    def update_connector_output(self, output: KVConnectorOutput) -> None:
        if self._consumer is not None:
            for request_id in output.finished_recving or ():
                self._consumer.received(request_id)
        if self._producer is not None:
            for request_id in output.finished_sending or ():
                self._producer.ended(request_id)

    def has_pending_push_work(self) -> bool:
        """Whether a step is needed to carry orders although no request is there."""
        tables = (self._producer, self._consumer)
        return any(table is not None and table.pending for table in tables)

    def take_stats(self) -> MoRIIOStats | None:
        return self._stats.take()

    def _add(self, request: Request, params: TransferParams) -> None:
        if params.prefill and self._producer is not None:
            self._producer.add(request.request_id, params, request.num_prompt_tokens)
        elif params.decode and self._consumer is not None:
            self._consumer.add(request.request_id, params)
        elif params.prefill or params.decode:
            wanted = "do_remote_decode" if params.prefill else "do_remote_prefill"
            self._refuse("params", f"{request.request_id}: {wanted}: not with this kv_role")

    def _order_writes(self, producer: ProducerTable, output: SchedulerOutput) -> None:
        state = output.kv_connector_block_state
        if state is None:
            return
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request_id, before in computed.items():
            if not producer.wants_blocks(request_id):
                continue
            after = before + output.num_scheduled_tokens[request_id]
            producer.scheduled(request_id, after, partial(self._transfer_blocks, state, request_id))

    def _transfer_blocks(
        self, state: KVConnectorBlockState, request_id: str
    ) -> tuple[list[int], ...]:
        return self._kv_cache_config.select_transfer_block_ids(state.resolve_block_ids(request_id))

    def _refuse(self, reason: str, text: str) -> None:
        self._stats.failed(reason)
        logger.warning("%s (%s)", text, reason)


def check_synchronous(settings: Settings, groups: int) -> None:
    """A synchronous load that fails is told by block ids, which several groups do not have."""
    if settings.read_mode and not settings.async_load and groups > 1:
        raise NotImplementedError(
            "kv_connector_extra_config.async_load: false works for one KV cache group only,"
            f" this model has {groups}"
        )


def address_of(settings: Settings, place: EnginePlace) -> dict[str, Any]:
    """How the decode leg finds this engine."""
    return {
        "remote_engine_id": settings.engine_id,
        "remote_host": settings.host_ip,
        "remote_handshake_port": settings.handshake_port,
        "remote_notify_port": settings.notify_port,
        "remote_dp_rank": place.dp_rank,
        "remote_dp_rank_override": True,
        "remote_dp_size": place.dp_size,
        "remote_dp_size_local": place.dp_size_local,
        "remote_tp_size": place.tp_size,
        "tp_size": place.tp_size,
    }
