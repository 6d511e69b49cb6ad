"""Which embeddings a request wants pushed, and where to: ``ec_transfer_params`` of both sides.

``{"consumer_zmq": "tcp://host:port", "ec_items": [{"mm_hash"?, "transfer_id"}]}``: the same items
for the request that encodes and for the one that answers. An item stands for the feature at its
place, unless it names another one's hash.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...pull.log_limit import quiet_logger
from .metadata import ECMooncakePushSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm.config import VllmConfig
    from vllm.v1.request import Request

logger = quiet_logger("vllm.stagelink.encoder_cache")


def params_of(request: Request) -> Mapping[str, Any]:
    """Empty where a request has none, or what it has is none."""
    params = request.ec_transfer_params
    return params if isinstance(params, dict) else {}


def transfer_of(request: Request, index: int) -> str | None:
    """Return under which transfer a feature is pushed; None: it is not."""
    items = params_of(request).get("ec_items")
    if not isinstance(items, list):
        return None
    mm_hash = request.mm_features[index].identifier
    at_its_place = items[index] if index < len(items) else None
    for item in (at_its_place, *items):
        if not isinstance(item, dict) or not item.get("transfer_id"):
            continue
        named = item.get("mm_hash")
        if named == mm_hash or (named is None and item is at_its_place):
            return str(item["transfer_id"])
    return None


class PushPlanner:
    """The producer's scheduler: each transfer is ordered once. Thread-safety: none."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self._config = vllm_config
        self._ordered: dict[str, str] = {}  # Requests, by transfer.
        self._by_request: dict[str, set[str]] = {}
        self._new: list[ECMooncakePushSpec] = []
        self._failed: set[str] = set()

    def plan(self, request: Request, num_computed_tokens: int) -> None:
        """Order what the request is still to encode, before it is encoded."""
        consumer_zmq = params_of(request).get("consumer_zmq")
        if not consumer_zmq:
            return
        for index, feature in enumerate(request.mm_features):
            position = feature.mm_position
            if position.offset + position.length <= num_computed_tokens:
                continue
            transfer_id = transfer_of(request, index)
            if transfer_id is None:
                # Nobody would know it by a name that is made up here.
                logger.warning(
                    "EC Mooncake: item %d of request %s is not pushed: none of its ec_items has "
                    "its place or its mm_hash %s",
                    index,
                    request.request_id,
                    feature.identifier[:64],
                )
                continue
            if transfer_id in self._ordered:
                continue
            self._ordered[transfer_id] = request.request_id
            self._by_request.setdefault(request.request_id, set()).add(transfer_id)
            self._new.append(self._order(request, index, transfer_id, str(consumer_zmq)))

    def take_orders(self) -> list[ECMooncakePushSpec]:
        orders, self._new = self._new, []
        return orders

    def failed(self, transfers: set[str]) -> None:
        self._failed |= {self._ordered[name] for name in transfers if name in self._ordered}

    def take_failed_requests(self) -> set[str]:
        """Return requests that encoded what their consumers could not be given."""
        failed, self._failed = self._failed, set()
        return failed

    def finished(self, request: Request) -> None:
        for transfer_id in self._by_request.pop(request.request_id, ()):
            del self._ordered[transfer_id]

    def _order(
        self, request: Request, index: int, transfer_id: str, consumer_zmq: str
    ) -> ECMooncakePushSpec:
        feature = request.mm_features[index]
        model = self._config.model_config
        ec_config = self._config.ec_transfer_config
        assert ec_config is not None
        width = ec_config.mm_encoder_output_widths.get(feature.modality, model.get_hidden_size())
        shape = (request.get_num_encoder_embeds(index), int(width))
        return ECMooncakePushSpec(
            transfer_id=transfer_id,
            consumer_zmq=consumer_zmq,
            mm_hash=feature.identifier,
            nbytes=math.prod(shape) * model.dtype.itemsize,
            shape=shape,
            dtype=str(model.dtype).removeprefix("torch."),
        )
