"""The memory that a cache is received into: torch's tensors, or arrays where there is no torch."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from ..errors import InvalidArgument
from ..pull import arguments

__all__ = ["CacheMemory", "check_device", "check_dtype"]

_ALIGN = 64
# What a host may say that names a type of elements; "auto" and "fp8" do not.
_TYPES = frozenset(
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 uint8 int8 int16 int32".split()
)


class CacheMemory:
    """One piece of memory of the host, aligned to 64 bytes, and views of it."""

    def __init__(self, nbytes: int) -> None:
        """Take the memory; what it holds is anybody's guess."""
        self._torch: Any = None
        try:
            self._torch = importlib.import_module("torch")
        except ModuleNotFoundError:
            numpy = importlib.import_module("numpy")
            raw = numpy.empty(nbytes + _ALIGN, numpy.uint8)
            first = -raw.ctypes.data % _ALIGN
            self.bytes = raw[first : first + nbytes]
        else:
            self.bytes = self._torch.empty(nbytes, dtype=self._torch.uint8)

    def to(self, device: Any) -> None:
        """Move it to a device of torch, if it is given one that is not the host."""
        if device is None:
            return
        if self._torch is None:
            if str(device) != "cpu":
                raise TypeError(f"a cache for {device} needs torch, which is not installed")
        elif self._torch.device(device).type != "cpu":
            self.bytes = self.bytes.to(device)

    def view(self, offset: int, nbytes: int, dtype: str, shape: Sequence[int]) -> Any:
        """Return a part of it as a tensor."""
        part = self.bytes[offset : offset + nbytes]
        if self._torch is not None:
            return part.view(getattr(self._torch, dtype)).reshape(tuple(shape))
        return part.view(_numpy_dtype(dtype)).reshape(tuple(shape))


def _numpy_dtype(name: str) -> Any:
    numpy = importlib.import_module("numpy")
    try:
        return numpy.dtype(name)
    except TypeError:
        return numpy.dtype(getattr(importlib.import_module("ml_dtypes"), name))


def check_device(name: str, device: Any) -> None:
    """Refuse what no cache can be moved to, before one is received."""
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        if device is not None and str(device) != "cpu":
            arguments.refuse(name, device, "None or cpu: torch is not installed")
        return
    try:
        if device is not None:
            torch.device(device)
    except (TypeError, RuntimeError):
        arguments.refuse(name, device, "a device of torch")


def check_dtype(layers: Sequence[Any], said: str) -> None:
    """Raise ``InvalidArgument`` where tensors are of another type than is said of them."""
    name = said.removeprefix("torch.")
    if name not in _TYPES:
        return
    for at, layer in enumerate(layers):
        for tensor in layer if isinstance(layer, tuple | list) else (layer,):
            own = str(getattr(tensor, "dtype", name)).removeprefix("torch.")
            if own != name:
                raise InvalidArgument(f"cache_dtype = {said!r}: layer {at} is {own}")
