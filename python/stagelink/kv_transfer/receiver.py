"""Gets the KV cache of a request from all ranks that have a part of it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _core
from ..errors import Corrupt, Error, Incompatible
from ..pull.log_limit import quiet_logger
from .arrays import CacheMemory
from .config import KvTransferConfig
from .counters import KvCounters
from .endpoints import SenderEndpoints
from .gets import KvGets, release
from .straight import ReadCache, StraightGets

__all__ = ["KvReceiver"]

logger = quiet_logger("stagelink.kv")

_Cache = dict[str, Any]


class KvReceiver:
    """Gets, joins and gives out caches. All methods may be called from any thread."""

    def __init__(
        self,
        config: KvTransferConfig,
        connector: Any,
        rank_map: _core.KvRankMap,
        rank: int,
        counters: KvCounters,
    ) -> None:
        """Look up whom to ask."""
        self._config = config
        self._map = rank_map
        self._rank = rank
        self._counters = counters
        self._routes = rank_map.gets(rank)
        self._stages = config.receive_stages()
        heads = config.kv_heads
        self._heads = max(1, heads // config.to_tp) if heads and not config.mla else 0
        self._gets = KvGets(connector, *self._stages)
        self._straight: StraightGets | None = None
        if StraightGets.suits(connector):
            self._straight = StraightGets(connector, self._stages, rank, self._heads, self._routes)

    @property
    def kept(self) -> int:
        """Payloads that came while others of their request did not."""
        return self._gets.kept

    def close(self) -> None:
        """End what waits."""
        if self._straight is not None:
            self._straight.close()
        self._gets.close()

    def receive(
        self, request_id: str, senders: SenderEndpoints, device: Any, timeout: float
    ) -> tuple[_Cache | None, int]:
        """Return the cache and the bytes of its payloads; ``(None, 0)`` says in the log why not."""
        started = time.monotonic()
        wanted: dict[str, Mapping[str, Any] | None] = {}
        names: dict[str, str] = {}
        for from_rank, _, _ in self._routes:
            key = self._map.key(request_id, *self._stages, from_rank, self._rank)
            wanted[key] = senders.metadata(from_rank)
            names[key] = senders.name(from_rank)
        logger.info(
            "Wait for KV cache for request %s from stage %s to %s via %s key(s)...",
            request_id, *self._stages, len(wanted),
        )  # fmt: skip
        if self._straight is not None:
            try:
                got = self._straight.get(
                    request_id, list(wanted), list(wanted.values()), started + timeout
                )
            except (Error, ValueError, TypeError) as error:
                if getattr(error, "reason", "") != "unsupported":
                    self._refused(request_id, len(wanted), error)
                    return None, 0
                # One of vLLM-Omni's senders: its payloads are pulled as a whole.
            else:
                if isinstance(got, ReadCache):
                    size = self._succeeded(
                        request_id, len(wanted), got.payload_bytes, started, got.read_seconds
                    )
                    return self._cache_of(request_id, got, device), size
                missing = [key for key, why in zip(wanted, got, strict=True) if why != "ok"]
                self._timed_out(request_id, timeout, missing, names)
                return None, 0
        return self._receive_whole(request_id, wanted, names, device, started, timeout)

    def _receive_whole(
        self,
        request_id: str,
        wanted: Mapping[str, Mapping[str, Any] | None],
        names: Mapping[str, str],
        device: Any,
        started: float,
        timeout: float,
    ) -> tuple[_Cache | None, int]:
        """Get payload by payload, then join them."""
        found = self._gets.get_all(wanted, started + timeout)
        if len(found) < len(wanted):
            self._timed_out(request_id, timeout, [k for k in wanted if k not in found], names)
            self._gets.keep(found)
            return None, 0
        arrived = time.perf_counter()
        try:
            cache = self._joined(request_id, [found[key][0] for key in wanted], device)
        except (Error, ValueError, TypeError) as error:
            self._refused(request_id, len(wanted), error)
            return None, 0
        finally:
            for data, _ in found.values():
                release(data)
        total = sum(size for _, size in found.values())
        joining = time.perf_counter() - arrived
        return cache, self._succeeded(request_id, len(found), total, started, joining)

    def _timed_out(
        self, request_id: str, timeout: float, missing: Sequence[str], names: Mapping[str, str]
    ) -> None:
        for _ in missing:
            self._counters.count("received", "timed_out")
        self._counters.count("requests_received", "timed_out")
        logger.error(
            "Timeout waiting for KV cache for request %s after %ss: nothing from %s",
            request_id, timeout, ", ".join(f"{names[key]} ({key})" for key in missing),
        )  # fmt: skip

    def _succeeded(
        self, request_id: str, keys: int, total: int, started: float, link: float
    ) -> int:
        for at in range(keys):
            self._counters.count("received", "ok", total if at == 0 else 0)
        self._counters.count("requests_received", "ok")
        logger.info(
            "Successfully received KV cache for %s, %s bytes across %s key(s), "
            "wait=%.3fs, link=%.1fms",
            request_id, total, keys, time.monotonic() - started, link * 1e3,
        )  # fmt: skip
        return total

    def _refused(self, request_id: str, keys: int, error: Exception) -> None:
        reason = error.reason if isinstance(error, Error) else "corrupt"
        for _ in range(keys):
            self._counters.count("received", reason)
        self._counters.count("requests_received", reason)
        what = "deserialize" if isinstance(error, Corrupt) else "join"
        if isinstance(error, Incompatible):
            what = "use"
        logger.error("Failed to %s KV cache for %s: %s", what, request_id, error)

    def _joined(self, request_id: str, payloads: Sequence[Any], device: Any) -> _Cache:
        if any(isinstance(payload, Mapping) for payload in payloads):
            return self._only_dict(payloads, device)
        views = [_bytes_of(payload) for payload in payloads]
        merge = _core.kv_merge(views, self._routes, request_id, self._rank, self._heads)
        memory = CacheMemory(merge.nbytes)
        for part, view in enumerate(views):
            merge.place(part, view, memory.bytes)
        return self._cache_of(
            request_id,
            ReadCache(
                memory, merge.tensors, merge.num_layers, merge.metadata[0], merge.block_ids[0]
            ),
            device,
        )

    def _cache_of(self, request_id: str, read: ReadCache, device: Any) -> _Cache:
        read.memory.to(device)
        keys: list[Any] = [None] * read.num_layers
        values: list[Any] = [None] * read.num_layers
        for is_value, layer, dtype, shape, offset, nbytes in read.tensors:
            tensor = read.memory.view(offset, nbytes, dtype, shape)
            (values if is_value else keys)[layer] = tensor
        return {
            "request_id": request_id,
            "layer_blocks": {"key_cache": keys, "value_cache": values},
            "block_ids": read.block_ids,
            "metadata": self._metadata(json.loads(read.metadata)),
        }

    def _metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Of the first payload; with what was done to the heads, as vLLM-Omni notes it."""
        first, count, of = self._routes[0][2]
        given = metadata.get("tp_head_slice")
        if count == of or (isinstance(given, Mapping) and given.get("applied")):
            return metadata
        metadata["tp_head_slice"] = {
            "applied": True,
            "side": "receiver",
            "target_rank": self._rank,
            "from_tp": self._config.from_tp,
            "to_tp": self._config.to_tp,
            "offset_in_shard": first // count,
            "num_slices": of // count,
        }
        return metadata

    def _only_dict(self, payloads: Sequence[Any], device: Any) -> _Cache:
        """Return what a sender has put as an object, because its metadata is no JSON."""
        share = self._routes[0][2]
        payload = payloads[0]
        if len(payloads) > 1 or share[1] != share[2] or "layer_blocks" not in payload:
            raise Incompatible("a KV cache that came as an object can be neither joined nor sliced")
        cache = dict(payload)
        if device is not None:
            cache["layer_blocks"] = {
                name: [one if one is None else one.to(device) for one in tensors]
                for name, tensors in payload["layer_blocks"].items()
            }
        return cache


def _bytes_of(payload: Any) -> Any:
    """The bytes of a payload in memory of the host, without a copy where they are there."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return payload
    if isinstance(payload, _core.PullBuffer) and not payload.on_device:
        return memoryview(payload)
    tensor = payload.tensor if hasattr(payload, "release") else payload
    if not hasattr(tensor, "data_ptr") or tensor.dim() != 1 or tensor.element_size() != 1:
        raise Incompatible(f"a KV payload of type {type(payload).__name__}")
    return tensor.cpu()
