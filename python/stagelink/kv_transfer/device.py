"""Caches in the memory of a device: their blocks go through memory of the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _core

__all__ = ["blocks_on_host", "event_of", "is_on_device"]


def is_on_device(layer: Any) -> bool:
    """Whether a layer, a tensor or a pair of them, is not in memory of the host."""
    first = layer[0] if isinstance(layer, tuple | list) else layer
    device = getattr(first, "device", None)
    return getattr(device, "type", "cpu") != "cpu"


def event_of(layers: Sequence[Any]) -> Any:
    """An event behind what the calling thread has queued on the device; None: no device."""
    for layer in layers:
        if layer is not None and is_on_device(layer):
            import torch

            event = torch.Event(device=(layer[0] if isinstance(layer, tuple) else layer).device)
            event.record()
            return event
    return None


def blocks_on_host(
    layers: Sequence[Any], block_ids: Sequence[int], block_size: int, mla: bool, layout: str
) -> list[Any]:
    """Copies of the blocks, in their order, in layers of the same kind."""
    import torch

    ids = torch.tensor(list(block_ids))

    def copy(tensor: Any, axis: int) -> Any:
        return tensor.index_select(axis, ids.to(tensor.device)).cpu()

    copies: list[Any] = []
    for layer in layers:
        if layer is None:
            copies.append(None)
        elif isinstance(layer, tuple | list):
            copies.append(tuple(copy(part, 0) for part in layer))
        else:
            axis = _core.kv_block_axis(list(layer.shape), block_size, mla, layout)
            copies.append(copy(layer, axis))
    return copies
