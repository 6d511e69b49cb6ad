"""The scheduler's half: which embeddings are fetched, and when a request may go on.

Embeddings are found and brought to this process in the background, by threads of the library. A
request waits only while that is under way; what cannot be had is encoded here.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ..._core import EncoderCacheFetcher
from ...pull.log_limit import quiet_logger
from .metadata import ECMooncakeConnectorMetadata, ECMooncakeLoadSpec, ECMooncakeWorkerMetadata
from .pushes import PushPlanner, transfer_of
from .settings import CacheSettings
from .stats import ECMooncakeStats, UsageDelta

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ECConnectorOutput
    from vllm.v1.request import Request

logger = quiet_logger("vllm.stagelink.encoder_cache")

UNDER_WAY = ("looking", "expected", "loading")
# How long a report counts. Workers report in each step that reaches them; where empty steps do not,
# the engine is not kept at work by what nobody takes back.
PUSHES_COUNT_S = 1.0


class CacheScheduler:
    """Thread-safety: none; the scheduler's thread."""

    def __init__(
        self, settings: CacheSettings, is_producer: bool, is_consumer: bool, config: VllmConfig
    ) -> None:
        self._is_producer = is_producer
        self._is_push = settings.is_push
        self._planner = PushPlanner(config) if is_producer and settings.is_push else None
        self._fetcher: EncoderCacheFetcher | None = None
        if is_consumer:
            if not settings.registry_url and not settings.is_push:
                raise ValueError(
                    "ec_consumer with ECMooncakeConnector requires "
                    "ec_connector_extra_config['remote_registry_url']."
                )
            self._fetcher = EncoderCacheFetcher(settings.fetcher_json(), settings.tp_size)
            if settings.is_push:
                logger.info("EC Mooncake takes pushes at %s", self._fetcher.consumer_zmq)
        self._delta = UsageDelta()
        self._wanters: defaultdict[str, set[str]] = defaultdict(set)  # Requests, by hash.
        self._wanted: defaultdict[str, set[str]] = defaultdict(set)  # Hashes, by request.
        self._resident: set[str] = set()  # In the workers' encoder caches.
        self._loads: dict[str, ECMooncakeLoadSpec] = {}
        self._touched: set[str] = set()
        self._failed_saves = 0
        self._has_pushes_until = 0.0

    def ensure_cache_available(self, request: Request, num_computed_tokens: int) -> bool:
        if self._is_producer:
            self._touched.update(feature.identifier for feature in request.mm_features)
        if self._planner is not None:
            self._planner.plan(request, num_computed_tokens)
        fetcher = self._fetcher
        if fetcher is None:
            return True
        complete = True
        for index, feature in enumerate(request.mm_features):
            position = feature.mm_position
            if feature.identifier in self._resident:
                self._refuse(fetcher, request, index)
                continue
            if position.offset + position.length <= num_computed_tokens:
                continue
            if self._seek(fetcher, request, index, feature.identifier) in UNDER_WAY:
                complete = False
        return complete

    def has_cache_item(self, identifier: str) -> bool:
        if self._fetcher is None:
            return False
        return self._fetcher.look(identifier)[0] == "ready"

    def update_state_after_alloc(self, request: Request, index: int) -> None:
        fetcher = self._fetcher
        if fetcher is None:
            return
        mm_hash = request.mm_features[index].identifier
        self._resident.add(mm_hash)
        state, why, place = fetcher.look(mm_hash)
        if state != "ready" or place is None:
            fetcher.count_fallback()
            logger.info("EC Mooncake: %s is encoded here: %s", mm_hash, why or "not asked for")
            fetcher.drop(mm_hash)
            return
        nbytes, shape, dtype, producer_zmq, generation = place
        self._loads[mm_hash] = ECMooncakeLoadSpec(
            mm_hash=mm_hash,
            num_token=request.get_num_encoder_embeds(index),
            nbytes=nbytes,
            shape=tuple(shape),
            dtype=dtype,
            producer_zmq=producer_zmq,
            generation=generation,
        )
        fetcher.handed_on(mm_hash)

    def build_connector_meta(self, output: SchedulerOutput) -> ECMooncakeConnectorMetadata:
        for mm_hash in output.free_encoder_mm_hashes:
            if mm_hash not in self._loads:
                self._resident.discard(mm_hash)
        orders = [] if self._planner is None else self._planner.take_orders()
        metadata = ECMooncakeConnectorMetadata(list(self._loads.values()), self._touched, orders)
        self._loads = {}
        self._touched = set()
        return metadata

    def update_connector_output(self, output: ECConnectorOutput) -> None:
        told = output.ec_connector_worker_meta
        if isinstance(told, ECMooncakeWorkerMetadata):
            self._failed_saves += len(told.failed_saves)
            self._has_pushes_until = time.monotonic() + PUSHES_COUNT_S if told.has_pushes else 0.0
            if self._planner is not None:
                self._planner.failed(told.failed_pushes)

    def has_pending_push_work(self) -> bool:
        """Whether the engine is to go on with its steps, so that one that is being shut down ends
        no push, and failures are told."""
        return time.monotonic() < self._has_pushes_until

    def take_unavailable_requests(self) -> set[str]:
        """Return those that encoded in vain: the host ends them, to be tried again."""
        return set() if self._planner is None else self._planner.take_failed_requests()

    def request_finished(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        if self._planner is not None:
            self._planner.finished(request)
        for mm_hash in self._wanted.pop(request.request_id, ()):
            wanters = self._wanters[mm_hash]
            wanters.discard(request.request_id)
            if not wanters:
                del self._wanters[mm_hash]
                if self._fetcher is not None:
                    self._fetcher.drop(mm_hash)
        return False, None

    def take_stats(self) -> ECMooncakeStats | None:
        usage = None if self._fetcher is None else self._fetcher.usage
        return self._delta.stats_of(usage, self._failed_saves)

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()

    def _refuse(self, fetcher: EncoderCacheFetcher, request: Request, index: int) -> None:
        """What the workers have need not be pushed, unless this request has it from that push."""
        transfer_id = transfer_of(request, index) if self._is_push else None
        mm_hash = request.mm_features[index].identifier
        if transfer_id is None or mm_hash in self._wanted[request.request_id]:
            return
        self._wanted[request.request_id].add(mm_hash)
        self._wanters[mm_hash].add(request.request_id)
        fetcher.refuse(transfer_id)  # Should it be freed before its turn, it is encoded here.

    def _want(self, fetcher: EncoderCacheFetcher, request: Request, index: int) -> None:
        mm_hash = request.mm_features[index].identifier
        if not self._is_push:
            fetcher.want(mm_hash)
            return
        transfer_id = transfer_of(request, index)
        if transfer_id is not None:
            fetcher.expect(mm_hash, transfer_id)

    def _seek(
        self, fetcher: EncoderCacheFetcher, request: Request, index: int, mm_hash: str
    ) -> str:
        """Return how far it is."""
        name = request.request_id
        state, why, place = fetcher.look(mm_hash)
        if name not in self._wanters[mm_hash]:
            self._wanters[mm_hash].add(name)
            self._wanted[name].add(mm_hash)
            if state == "missing":
                fetcher.drop(mm_hash)  # For an earlier request; it may be there by now.
                state = "unknown"
            if state == "unknown" or self._is_push:
                self._want(fetcher, request, index)
                state, why, place = fetcher.look(mm_hash)
        if state == "ready" and place is not None:
            count = request.get_num_encoder_embeds(index)
            if not place[1] or place[1][0] != count:
                logger.warning(
                    "EC Mooncake: %s has shape %s at its producer, but %d embeddings are expected",
                    mm_hash,
                    list(place[1]),
                    count,
                )
                fetcher.drop(mm_hash)
                return "missing"
        return state
