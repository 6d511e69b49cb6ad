"""This rank's cache: the memory it lies in, and what the planner must know of each layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..._core import CacheLayer

if TYPE_CHECKING:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheConfig


@dataclass(frozen=True)
class Memory:
    """One allocation that holds layers."""

    address: int
    nbytes: int


def layers_of(
    kv_cache_config: KVCacheConfig, caches: Mapping[str, torch.Tensor]
) -> tuple[list[Memory], list[CacheLayer]]:
    """In the order of `caches`, which both sides share."""
    memories: list[Memory] = []
    index: dict[int, int] = {}
    layers = []
    for name, cache in caches.items():
        storage = cache.untyped_storage()
        address = storage.data_ptr()
        if address not in index:
            index[address] = len(memories)
            memories.append(Memory(address, storage.nbytes()))
        group = kv_cache_config.transfer_group_index_by_layer[name]
        spec = _spec_of(kv_cache_config.transfer_groups[group].kv_cache_spec, name)
        layer = CacheLayer(
            name,
            place=(group, index[address]),
            base=cache.data_ptr() - address,
            shape=list(cache.shape),
            strides=list(cache.stride()),
            element_bytes=cache.element_size(),
        )
        _describe(layer, cache, spec)
        layers.append(layer)
    return memories, layers


def _spec_of(spec: Any, name: str) -> Any:
    specs = getattr(spec, "kv_cache_specs", None)
    return specs[name] if specs is not None else spec


def _describe(layer: CacheLayer, cache: torch.Tensor, spec: Any) -> None:
    from vllm.v1.kv_cache_interface import MLAAttentionSpec, SlidingWindowMLASpec

    layer.describe(
        # Rows of a block and heads of its page: fewer or more than tokens and KV heads where the
        # backend packs them.
        block_size=spec.num_states,
        kv_heads=spec.num_heads,
        head_size=spec.head_size,
        content_bytes=spec.state_content_size_bytes,
        mla=isinstance(spec, MLAAttentionSpec | SlidingWindowMLASpec),
        # Caches of CPUs are packed for their instruction set: blocks move whole.
        opaque=cache.device.type == "cpu",
    )
