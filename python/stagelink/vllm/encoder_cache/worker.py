"""The worker's half: embeddings of a producer are kept, those of a consumer put in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..._core import EncoderCacheConsumer, EncoderCacheProducer
from ...pull.log_limit import quiet_logger
from .metadata import ECMooncakeConnectorMetadata, ECMooncakeLoadSpec, ECMooncakeWorkerMetadata
from .settings import CacheSettings

if TYPE_CHECKING:
    from collections.abc import MutableMapping

logger = quiet_logger("vllm.stagelink.encoder_cache")


def is_first_rank() -> bool:
    """Whether this worker saves: embeddings are the same on all ranks of an engine."""
    from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank

    return get_tensor_model_parallel_rank() == 0 and get_pp_group().is_first_rank


class CacheWorker:
    """Thread-safety: none; the model's thread."""

    def __init__(self, settings: CacheSettings, is_producer: bool, is_consumer: bool) -> None:
        self._settings = settings
        self._is_producer = is_producer
        self._producer: EncoderCacheProducer | None = None
        self._consumer: EncoderCacheConsumer | None = None
        self._failed_saves: set[str] = set()
        self._had_pushes = False  # When it was last told.
        self._device = torch.device(settings.buffer_device)
        if is_consumer and self._device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(
                "ECMooncakeConnector requires CUDA for ec_buffer_device=cuda; "
                "this host has none: set ec_buffer_device to cpu"
            )

    def start_services(self) -> None:
        """Listens before the first embedding is there, so that a port that is taken is told now."""
        if self._is_producer and self._producer is None and is_first_rank():
            self._producer = EncoderCacheProducer(self._settings.producer_json())
            logger.info("EC Mooncake pull listener at %s", self._producer.producer_zmq)
            if self._producer.registry_url:
                logger.info("EC Mooncake registry at %s", self._producer.registry_url)

    def load(
        self, orders: ECMooncakeConnectorMetadata, encoder_cache: MutableMapping[str, torch.Tensor]
    ) -> None:
        """All at once. The scheduler has them in its memory, so that only its end can fail it."""
        if not orders.loads:
            return
        if self._consumer is None:
            self._consumer = EncoderCacheConsumer(self._settings.worker_json())
        tensors = [empty_for(spec) for spec in orders.loads]
        outcomes = self._consumer.load(
            [
                (spec.mm_hash, [spec.place], tensor)
                for spec, tensor in zip(orders.loads, tensors, strict=True)
            ],
            handed_on=True,
        )
        for spec, tensor, failure in zip(orders.loads, tensors, outcomes, strict=True):
            if failure is not None:
                raise RuntimeError(f"EC Mooncake pull failed: {spec.mm_hash}: {failure[1]}")
            encoder_cache.setdefault(spec.mm_hash, tensor.to(self._device))
            logger.debug("Loaded EC tensor for mm_hash=%s via Mooncake", spec.mm_hash)
        if self._settings.sync_after_transfer and self._device.type == "cuda":
            torch.cuda.synchronize(device=self._device)

    def save(self, mm_hash: str, tensor: torch.Tensor) -> None:
        self.start_services()
        if self._producer is None:
            return
        held = tensor.detach()
        if held.device.type != "cpu":
            held = held.to("cpu")  # Waits for the kernels that make it.
        held = held.contiguous()
        dtype = str(held.dtype).removeprefix("torch.")
        if self._producer.save(mm_hash, tuple(held.shape), dtype, held):
            logger.debug("Published EC tensor mm_hash=%s to registry", mm_hash)
        else:
            self._failed_saves.add(mm_hash)

    def push(self, orders: ECMooncakeConnectorMetadata) -> None:
        """Announce, so that consumers make room while the encoder is at work."""
        if not orders.pushes:
            return
        self.start_services()
        if self._producer is None:
            return
        for spec in orders.pushes:
            info = (spec.nbytes, spec.shape, spec.dtype)
            self._producer.push(spec.transfer_id, spec.consumer_zmq, spec.mm_hash, info)

    def save_again(
        self, orders: ECMooncakeConnectorMetadata, encoder_cache: MutableMapping[str, torch.Tensor]
    ) -> None:
        """What a request uses without encoding it, and we have given up meanwhile."""
        for mm_hash in orders.wanted:
            tensor = encoder_cache.get(mm_hash)
            if tensor is None or (self._producer is not None and self._producer.has(mm_hash)):
                continue
            self.save(mm_hash, tensor)

    def take_report(self) -> ECMooncakeWorkerMetadata | None:
        """None: nothing has changed, and no push is under way."""
        failures: list[tuple[str, str, str]] = []
        has_pushes = False
        if self._producer is not None and self._settings.is_push:
            has_pushes = self._producer.usage["pushes_pending"] > 0  # Before: it may fail now.
            failures = self._producer.take_push_failures()
        had_pushes, self._had_pushes = self._had_pushes, has_pushes
        if not (self._failed_saves or failures or has_pushes or had_pushes):
            return None
        failed = {name for name, _, _ in failures}
        report = ECMooncakeWorkerMetadata(self._failed_saves, failed, has_pushes)
        self._failed_saves = set()
        return report

    def close(self) -> None:
        for end in (self._producer, self._consumer):
            if end is not None:
                end.close()


def empty_for(spec: ECMooncakeLoadSpec) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"Unsupported torch dtype string: {spec.dtype!r}")
    return torch.empty(spec.shape, dtype=dtype)
