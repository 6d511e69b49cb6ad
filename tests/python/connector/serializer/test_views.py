"""Views keep the buffer alive and cannot be written to; plans write in place."""

import gc
import mmap
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import zoo  # noqa: E402

import stagelink.errors as errors  # noqa: E402
from stagelink import serializer  # noqa: E402


class Owner(bytearray):
    """A buffer that can be watched."""


@pytest.mark.parametrize("wire", ["compat", "fast"])
def test_views_keep_the_buffer_and_only_they(wire: serializer.Wire) -> None:
    owner = Owner(serializer.encode({"a": np.arange(100), "b": [np.ones(3)], "s": "text"}, wire))
    seen = weakref.ref(owner)
    back = serializer.decode(owner)
    with pytest.raises(BufferError):
        owner.append(1)  # It would move.
    del owner
    gc.collect()
    assert seen() is not None
    last = back.pop("b")[0]
    del back
    gc.collect()
    assert seen() is not None
    assert last.sum() == 3
    del last
    gc.collect()
    assert seen() is None


def test_a_view_lies_in_the_buffer_and_is_read_only() -> None:
    frame = bytearray(serializer.encode({"a": np.arange(100)}, "fast"))
    array = serializer.decode(frame)["a"]
    assert np.shares_memory(array, np.frombuffer(frame, np.uint8))
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    own = serializer.decode(frame, copy=True)["a"]
    assert not np.shares_memory(own, np.frombuffer(frame, np.uint8))
    own[0] = 1


def test_arrays_of_the_fast_form_are_aligned() -> None:
    arrays = [np.arange(n, dtype=np.uint8) for n in (1, 63, 64, 65)]
    frame = serializer.encode(arrays, "fast")
    with mmap.mmap(-1, len(frame)) as memory:
        memory[:] = frame
        back = serializer.decode(memory)
        assert [array.ctypes.data % 64 for array in back] == [0, 0, 0, 0]
        del back


def test_buffers_of_any_shape_are_read() -> None:
    raw = np.frombuffer(serializer.encode(list(range(21))), np.uint8)
    for buffer in (raw, raw.reshape(3, -1), memoryview(raw), raw.tobytes()):
        assert serializer.decode(buffer) == list(range(21))
    with pytest.raises(BufferError):
        serializer.decode(np.zeros((4, 4), np.uint8).T)


def test_a_plan_fills_what_it_is_given_in_pieces_too() -> None:
    value: dict[str, Any] = {"a": zoo.arrays()["transposed"], "b": "x" * 5000, "c": b"y" * 5000}
    for wire in ("compat", "fast"):
        plan = serializer.plan(value, wire, checksum=True)  # type: ignore[arg-type]
        whole = plan.to_bytes()
        assert len(whole) == plan.nbytes
        for cut in (1, 20, 100, 6000):
            target = bytearray(plan.nbytes)
            view = memoryview(target)
            plan.write_into([view[:cut], view[cut:]])
            assert target == whole
        with pytest.raises(errors.InvalidArgument, match="room for"):
            plan.write_into(bytearray(plan.nbytes + 1))
        with pytest.raises(BufferError):
            plan.write_into(bytes(plan.nbytes))


def test_a_plan_keeps_what_it_reads() -> None:
    plan = serializer.plan({"a": np.arange(10_000) * 3, "b": "long" * 2000, "c": bytes(9999)})
    gc.collect()
    back = serializer.decode(plan.to_bytes())
    assert zoo.same(back["a"], np.arange(10_000) * 3)
    assert back["b"] == "long" * 2000
