"""``ECMooncakeConnector``: vLLM's contract, answered by a scheduler half or a worker half."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.ec_transfer.ec_connector.base import (
    ECConnectorBase,
    ECConnectorMetadata,
    ECConnectorRole,
    ECConnectorWorkerMetadata,
)

from .metadata import ECMooncakeConnectorMetadata
from .scheduler import CacheScheduler
from .settings import read_settings
from .stats import ECMooncakePromMetrics, ECMooncakeStats
from .worker import CacheWorker

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorStats
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ECConnectorOutput
    from vllm.v1.request import Request

__all__ = ["ECMooncakeConnector", "StagelinkECConnector"]


class ECMooncakeConnector(ECConnectorBase):
    """Encoder outputs of other engines, by the hash of their item."""

    def __init__(self, vllm_config: VllmConfig, role: ECConnectorRole) -> None:
        super().__init__(vllm_config=vllm_config, role=role)
        settings = read_settings(vllm_config)
        self._scheduler: CacheScheduler | None = None
        self._worker: CacheWorker | None = None
        if role is ECConnectorRole.SCHEDULER:
            self._scheduler = CacheScheduler(
                settings, self.is_producer, self.is_consumer, vllm_config
            )
        else:
            self._worker = CacheWorker(settings, self.is_producer, self.is_consumer)

    @property
    def scheduler(self) -> CacheScheduler:
        assert self._scheduler is not None, "a method of the scheduler half"
        return self._scheduler

    @property
    def worker(self) -> CacheWorker:
        assert self._worker is not None, "a method of the worker half"
        return self._worker

    # The worker half.

    def start_worker_services(self) -> None:
        self.worker.start_services()

    def start_save_caches(self, **kwargs: Any) -> None:
        if self.is_producer and "encoder_cache" in kwargs:
            self.worker.push(self._orders())
            self.worker.save_again(self._orders(), kwargs["encoder_cache"])

    def start_load_caches(self, encoder_cache: dict[str, torch.Tensor], **kwargs: Any) -> None:
        self.worker.load(self._orders(), encoder_cache)

    def save_caches(
        self, encoder_cache: dict[str, torch.Tensor], mm_hash: str, **kwargs: Any
    ) -> None:
        if self.is_producer and self._worker is not None:
            self._worker.save(mm_hash, encoder_cache[mm_hash])

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Nothing: no request is held back for a transfer."""
        return None, None

    def build_connector_worker_meta(self) -> ECConnectorWorkerMetadata | None:
        return self.worker.take_report()

    def get_ec_connector_stats(self) -> ECConnectorStats | None:
        return self._scheduler.take_stats() if self._scheduler is not None else None

    # The scheduler half.

    def has_cache_item(self, identifier: str) -> bool:
        return self._scheduler is not None and self._scheduler.has_cache_item(identifier)

    def ensure_cache_available(self, request: Request, num_computed_tokens: int) -> bool:
        return self.scheduler.ensure_cache_available(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, index: int) -> None:
        self.scheduler.update_state_after_alloc(request, index)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> ECConnectorMetadata:
        return self.scheduler.build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: ECConnectorOutput) -> None:
        self.scheduler.update_connector_output(connector_output)

    def has_pending_push_work(self) -> bool:
        return self.scheduler.has_pending_push_work()

    def take_unavailable_requests(self) -> set[str]:
        return self.scheduler.take_unavailable_requests()

    def request_finished(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        return self.scheduler.request_finished(request)

    def shutdown(self) -> None:
        if self._scheduler is not None:
            self._scheduler.close()
        if self._worker is not None:
            self._worker.close()

    def _orders(self) -> ECMooncakeConnectorMetadata:
        orders = self._get_connector_metadata()
        assert isinstance(orders, ECMooncakeConnectorMetadata)
        return orders

    # The class.

    @classmethod
    def build_ec_connector_stats(cls, data: dict[str, Any] | None = None) -> ECConnectorStats:
        return ECMooncakeStats(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[Any], type[Any]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> ECMooncakePromMetrics:
        return ECMooncakePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


class StagelinkECConnector(ECMooncakeConnector):
    """The same under a name that the host has not given to its own."""
