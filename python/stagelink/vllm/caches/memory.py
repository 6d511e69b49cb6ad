"""The KV cache in memory that peers on this host may map.

vLLM allocates the whole cache with one call of torch.zeros. The best way is to answer that call
with our memory (`context`): no copy, and every view is right by itself. If a later vLLM allocates
in another way, the tensors are moved afterwards (`rebind`). Otherwise the cache is registered where
it is, and peers reach it by the kernel's copies or a socket. What was done is logged once.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...pull.log_limit import quiet_logger

logger = quiet_logger("vllm.stagelink.moriio")

# Allocates that many bytes, zeroed and page aligned, as a writable buffer that keeps itself alive.
Allocate = Callable[[int], memoryview]


class Placement(enum.Enum):
    CONTEXT = "context"  # Allocated in shareable memory.
    REBIND = "rebind"  # Moved there.
    IN_PLACE = "in place"  # Registered where it is.


class CacheAllocation(TorchFunctionMode):
    """A context in which the cache's own allocation gets shareable memory.

    Thread-safety: the mode is the calling thread's; the object is for one use.
    """

    def __init__(self, allocate: Allocate) -> None:
        super().__init__()
        self._allocate = allocate
        self.tensors: list[torch.Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.zeros and _is_whole_cache(args, kwargs):
            try:
                tensor = torch.frombuffer(self._allocate(args[0]), dtype=torch.int8)
            except (OSError, RuntimeError, MemoryError) as error:
                logger.warning("No shareable memory for the KV cache of %d bytes: %s", *args, error)
            else:
                self.tensors.append(tensor)
                return tensor
        return func(*args, **kwargs)


def _is_whole_cache(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if len(args) != 1 or not isinstance(args[0], int) or kwargs.get("dtype") is not torch.int8:
        return False
    device = kwargs.get("device")
    return (
        device is not None
        and torch.device(device).type == "cpu"
        and set(kwargs)
        <= {
            "dtype",
            "device",
        }
    )


def place(
    caches: Mapping[str, torch.Tensor], context: CacheAllocation | None, allocate: Allocate | None
) -> Placement:
    """Finds where the cache lies, and moves it if that is needed and possible."""
    storages = {
        cache.untyped_storage().data_ptr(): cache.untyped_storage() for cache in caches.values()
    }
    if context is not None:
        ours = {tensor.untyped_storage().data_ptr() for tensor in context.tensors}
        if storages.keys() <= ours:
            return _log(Placement.CONTEXT, storages.values())
    if allocate is not None and all(cache.device.type == "cpu" for cache in caches.values()):
        try:
            _rebind(caches, storages, allocate)
        except (OSError, RuntimeError, MemoryError) as error:
            logger.warning("The KV cache stays where it is: %s", error)
        else:
            return _log(Placement.REBIND, storages.values())
    return _log(Placement.IN_PLACE, storages.values())


def _rebind(
    caches: Mapping[str, torch.Tensor], storages: dict[int, Any], allocate: Allocate
) -> None:
    """Gives every tensor of the cache the same view of a copy of its storage."""
    moved = {}
    for pointer, storage in storages.items():
        target = torch.frombuffer(allocate(storage.nbytes()), dtype=torch.uint8)
        target.copy_(torch.empty(0, dtype=torch.uint8).set_(storage))
        moved[pointer] = target.untyped_storage()
    for cache in caches.values():
        storage = moved[cache.untyped_storage().data_ptr()]
        cache.set_(storage, cache.storage_offset(), cache.size(), cache.stride())


def _log(placement: Placement, storages: Any) -> Placement:
    nbytes = sum(storage.nbytes() for storage in storages)
    logger.info("KV cache of %d bytes, shareable memory: %s", nbytes, placement.value)
    return placement
