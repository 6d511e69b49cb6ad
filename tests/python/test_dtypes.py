"""Bytes are bytes: every dtype arrives bit by bit, with its payloads of NaN."""

import numpy as np
import pytest
from conftest import Link

NAMES = ["float16", "bool", "complex64", "uint64", "float64", "int8", "datetime64[ns]"]
ML_NAMES = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"]


def dtype_named(name: str) -> np.dtype:
    if name in NAMES:
        return np.dtype(name)
    return np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))


@pytest.mark.parametrize("name", NAMES + ML_NAMES)
def test_every_bit_pattern_of_a_dtype_arrives(link: Link, name: str) -> None:
    dtype = dtype_named(name)
    pairs = np.arange(65536, dtype=np.uint16)  # All pairs of bytes: every value, NaN, denormal, -0.
    source = pairs.view(dtype).reshape(16, -1)
    target = np.zeros_like(source)
    theirs = link.other.register(source)
    session = link.peer.session([link.engine.register(target)], [theirs.descriptor()])
    session.read(0, 0, source.nbytes).wait("5s")
    assert target.tobytes() == source.tobytes()


def test_an_array_without_axes_arrives(link: Link) -> None:
    source, target = np.array(3.25), np.array(0.0)
    theirs = link.other.register(source)
    link.peer.session(link.engine.register(target), theirs.descriptor()).read(0, 0, 8).wait("5s")
    assert target.shape == () and target == 3.25
