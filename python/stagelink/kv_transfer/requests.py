"""Caches as the pipelines of vLLM-Omni find them at their requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from ..pull.log_limit import limited

__all__ = ["RequestCaches"]

logger = limited("stagelink.kv")

# (request id, ids of its companions, manager, device) -> what goes to the sampling parameters.
Collect = Callable[[str, Any, Any, Any], dict[str, Any] | None]


class RequestCaches(ABC):
    """Receives caches and puts them where a pipeline looks for them. A manager adds how one is
    received and how ranks agree."""

    def receive_kv_cache(self, req: Any, target_device: Any = None) -> bool:
        """Receive the cache of a request and attach it; False: it was not had."""
        info = getattr(req, "kv_sender_info", None)
        request_id = getattr(req, "request_id", None)
        if not request_id:
            logger.warning("Request has no ID, cannot receive KV cache")
            return False
        data, _ = self.receive_kv_cache_for_request(
            request_id, target_device, sender_info=info or None
        )
        if data is None:
            return False
        self.apply_kv_cache_to_request(req, data)
        return True

    def receive_multi_kv_cache(
        self, req: Any, cfg_kv_collect_func: Collect | None = None, target_device: Any = None
    ) -> bool:
        """Receive the cache of a request, and by the model's function those of its companions.

        False: the request's own was not had, on this rank or, where ranks agree, on another one;
        then the request has none.
        """
        received = self.receive_kv_cache(req, target_device)
        parameters = getattr(req, "sampling_params", None)
        companions = getattr(parameters, "cfg_kv_request_ids", None)
        if companions and cfg_kv_collect_func is not None:
            request_id = getattr(req, "request_id", None)
            try:
                found = cfg_kv_collect_func(str(request_id), companions, self, target_device)
                for name, value in (found or {}).items():
                    setattr(parameters, name, value)
                if found:
                    logger.info("Applied CFG KV caches: %s", list(found))
            except Exception:
                logger.exception("Failed to collect CFG KV caches for %s", request_id)
        if self._agreed(received):
            return True
        if received:
            logger.warning(
                "KV state for %s diverged across ranks: another one has none; dropping it here",
                getattr(req, "request_id", None),
            )
        self.clear_kv_cache_of_request(req)
        return False

    def apply_kv_cache_to_request(self, req: Any, data: Mapping[str, Any]) -> None:
        """Attach a received cache to a request and to its sampling parameters."""
        holders = [req]
        if getattr(req, "sampling_params", None) is not None:
            holders.append(req.sampling_params)
        blocks = data.get("layer_blocks")
        for holder in holders:
            if blocks is not None:
                holder.past_key_values = SimpleNamespace(**blocks)
            if "metadata" in data:
                holder.kv_metadata = data["metadata"]
        if blocks is not None:
            layers = [one for one in blocks["key_cache"] if one is not None]
            logger.info(
                "[KV Reuse] %s: %s layers of %s tokens",
                getattr(req, "request_id", None),
                len(layers),
                layers[0].shape[0] if layers else 0,
            )

    @staticmethod
    def clear_kv_cache_of_request(req: Any) -> None:
        """Take whatever cache was attached away, so that the request is computed anew."""
        for holder in (req, getattr(req, "sampling_params", None)):
            for name in list(vars(holder)) if hasattr(holder, "__dict__") else []:
                companion = name.startswith("cfg_") and name.endswith(
                    ("_past_key_values", "_kv_metadata")
                )
                if companion or name in ("past_key_values", "kv_metadata"):
                    setattr(holder, name, None)

    @abstractmethod
    def receive_kv_cache_for_request(
        self,
        request_id: str,
        target_device: Any = None,
        *,
        sender_info: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> tuple[dict[str, Any] | None, int]:
        """Receive one cache."""

    @abstractmethod
    def _agreed(self, received: bool) -> bool:
        """Whether all ranks of this stage have received, from whether this one has."""
