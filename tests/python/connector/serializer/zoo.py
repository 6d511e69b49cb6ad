"""Payloads of every kind that needs neither torch nor vLLM-Omni, and how to compare them."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import ml_dtypes
import numpy as np

NUMPY_TYPES = "b1 u1 i1 u2 i2 u4 i4 u8 i8 f2 f4 f8 c8 c16 >i2 >f8 U3 S5 M8[ns] m8[s]".split()
ML_TYPES = (
    "bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
    "float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float6_e2m3fn float6_e3m2fn float4_e2m1fn "
    "int4 uint4 int2 uint2"
).split()
INTEGERS = [0, *(s * (1 << n) + d for n in (5, 7, 8, 15, 16, 31, 32, 63) for s in (1, -1)
                 for d in (-1, 0, 1) if -(2**63) <= s * (1 << n) + d < 2**64)]  # fmt: skip
FALSY = [{}, [], 0, b"", None, "", False, 0.0, -0.0]
TEXTS = ["a", "é" * 31, "中" * 100, "\U0001f600" * 5000, "\0"]
NESTED = {
    "prompt": {"ids": [1, 2, {"deep": [None, [True, {"x": -1.5}]]}], "": ""},
    "int keys": {7: 2, None: 3, True: 4, 1.5: 5, b"k": 6, (1, (2, "x")): 7},
    "wide": {str(i): i for i in range(70_000)},
    "long": list(range(70_000)),
}
IMAGE_MODES = "1 L P RGB RGBA CMYK YCbCr LA HSV LAB".split()
FAST_IMAGE_MODES = "I F I;16".split()


def dtype_named(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name) if name in ML_TYPES else name)


def every_pattern(name: str) -> np.ndarray[Any, Any]:
    """All pairs of bytes: NaN with every payload, -0.0, denormals, and all 256 bytes."""
    dtype = dtype_named(name)
    if dtype.kind == "U":
        return np.array([chr(i) * 2 for i in range(1, 4000)], dtype)
    pairs = np.arange(65536, dtype=np.uint16).view(np.uint8)
    return pairs[: pairs.size // dtype.itemsize * dtype.itemsize].view(dtype)


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    base = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    return {
        "empty": np.empty((0, 128), np.float32),
        "no axes": np.array(3.25),
        "no axes bf16": np.array(1.5, ml_dtypes.bfloat16),
        "transposed": base.T,
        "sliced": base[:, ::2, 1:, ::-3],
        "broadcast": np.broadcast_to(np.float32(7), (3, 4)),
        "one column": base.reshape(24, 5)[:, :1],
        "fortran": np.asfortranarray(base),
        "fp8 strided": np.arange(64, dtype=np.uint8).view(ml_dtypes.float8_e5m2)[::3],
        "read only": np.frombuffer(b"12345678", "<u4"),
    }


def images(modes: list[str]) -> dict[str, Any]:
    """None of them where Pillow is not installed."""
    if importlib.util.find_spec("PIL") is None:
        return {}
    from PIL import Image

    out = {}
    for mode in modes:
        noise = np.random.default_rng(5).integers(0, 256, (5, 7, 4), np.uint8)
        picture = Image.new(mode, (7, 5))
        if mode in ("I", "F", "I;16"):
            kind = {"I": np.int32, "F": np.float32, "I;16": np.uint16}[mode]
            picture = Image.fromarray(noise.astype(np.uint32).sum(axis=2).astype(kind))
        elif mode == "1":
            picture = Image.fromarray(noise[:, :, 0]).convert("1")
        else:
            bands = len(picture.getbands())
            picture = Image.frombytes(mode, (7, 5), noise[:, :, :bands].tobytes())
        assert picture.mode == mode
        out[mode] = picture
    return out


@dataclasses.dataclass
class Part:
    count: int
    values: Any


def same(one: Any, other: Any) -> bool:
    """Equal in type and in every bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "getbands"):
        return bool(
            one.mode == other.mode and one.size == other.size and one.tobytes() == other.tobytes()
        )
    return repr(one) == repr(other)
