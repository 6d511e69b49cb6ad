"""What has no form is refused when it is written, and by its place; a bad frame when it is read."""

import datetime
import sys
from typing import Any

import numpy as np
import pytest

import stagelink.errors as errors
from stagelink import serializer

REFUSED = [
    ({"a": [1, np.float32(2)]}, r"numpy\.float32 at \$\['a'\]\[1\]: convert it with \.item\(\)"),
    ([np.bool_(True)], r"bool(_)? at \$\[0\]"),
    ({np.int64(3): 1}, r"numpy\.int64 at \$\["),
    ({"z": 1j}, r"complex at \$\['z'\]: store its real and imaginary part"),
    ([[np.array([object()])]], r"\$\[0\]\[0\]: elements of type `object`"),
    (np.zeros(2, [("a", "i4")]), r"at \$: elements of type"),
    (np.zeros(2, "V4"), r"elements of type `\|V4`"),
    (np.ma.masked_array([1], mask=[True]), r"its mask would be lost"),
    ({"f": print}, r"builtin_function_or_method at \$\['f'\]"),
    ([{1}, range(3)], r"range at \$\[1\]"),
    ({"k": [memoryview(b"abcd")[::2]]}, r"\$\['k'\]\[0\]: it is not one run"),
    ({(1, np.float64(2)): 1}, r"numpy\.float64 at"),
]


@pytest.mark.parametrize("wire", ["compat", "fast"])
@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[text for _, text in REFUSED])
def test_a_value_without_a_form_is_refused_by_its_place(
    value: Any, message: str, wire: serializer.Wire
) -> None:
    with pytest.raises(TypeError, match=message):
        serializer.encode(value, wire)


def test_integers_beyond_64_bits_are_refused_on_both_sides() -> None:
    for value in (2**64 - 1, -(2**63)):
        assert serializer.decode(serializer.encode(value)) == value
    for value in (2**64, -(2**63) - 1):
        with pytest.raises(OverflowError, match=r"\$\['n'\]"):
            serializer.encode({"n": value})


def test_depth_is_bounded_on_both_sides() -> None:
    value: list[Any] = []
    for _ in range(511):
        value = [value]
    assert repr(serializer.decode(serializer.encode(value))) == repr(value)
    with pytest.raises(errors.Limit, match="nested deeper than 512"):
        serializer.encode([value])
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(errors.Limit, match="does it hold itself"):
        serializer.encode(endless)


def test_a_container_that_changes_meanwhile_is_refused() -> None:
    table: dict[str, Any] = {}
    rows: list[Any] = []

    class Growing(datetime.tzinfo):
        def utcoffset(self, when: datetime.datetime | None) -> datetime.timedelta:
            table[f"k{len(table)}"] = 1
            rows.append(1)
            return datetime.timedelta(0)

    moment = datetime.datetime(2026, 1, 1, tzinfo=Growing())
    table["a"] = moment
    rows.append(moment)
    for value in (table, rows):
        with pytest.raises(TypeError, match="changed while it was encoded"):
            serializer.encode(value)


def test_other_forms_are_refused_by_name() -> None:
    with pytest.raises(errors.InvalidArgument, match="`json`"):
        serializer.encode(1, "json")  # type: ignore[arg-type]


HOSTILE = [
    b"",
    b"\xc1",
    b"\x92\x01",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff\x01\x01",
    b"\xc6\xff\xff\xff\xff",
    b"\xd9\xff",
    b"\x81\x80\x01",
    b"\xa1\xff",
    b"\xc7\x00\x05",
    b"\x00\x00",
    b"\x91" * 600 + b"\xc0",
]


@pytest.mark.parametrize("frame", HOSTILE, ids=[frame[:8].hex() for frame in HOSTILE])
def test_a_hostile_frame_is_corrupt(frame: bytes) -> None:
    with pytest.raises(errors.Corrupt):
        serializer.decode(frame)


def test_arrays_that_python_itself_cannot_make_are_corrupt() -> None:
    for dtype, shape in (("<f4", [1 << 62, 0]), ("<M8[ns]", [0, 1 << 63 - 1, 1 << 40])):
        frame = {"__ndarray__": True, "dtype": dtype, "shape": shape, "data": b""}
        with pytest.raises(errors.Corrupt):
            serializer.decode(serializer.encode(frame))


def test_every_cut_and_every_flipped_bit_gives_an_answer() -> None:
    value = {"a": np.arange(5, dtype="<i2"), "t": ("x", {2}), "n": [None, -1.5, "é"]}
    for wire in ("compat", "fast"):
        whole = serializer.encode(value, wire)  # type: ignore[arg-type]
        for size in range(len(whole)):
            with pytest.raises(errors.Corrupt):
                serializer.decode(whole[:size])
        for at in range(len(whole) * 8):
            frame = bytearray(whole)
            frame[at // 8] ^= 1 << at % 8
            try:
                serializer.decode(frame)
            except (errors.Corrupt, errors.Incompatible):
                pass


def test_a_damaged_byte_is_found_where_the_sum_is_asked_for() -> None:
    frame = bytearray(serializer.encode({"a": np.arange(1000)}, "fast", checksum=True))
    serializer.decode(frame)
    frame[-1] ^= 1
    with pytest.raises(errors.Corrupt) as failure:
        serializer.decode(frame)
    assert failure.value.reason == "checksum"


def test_neither_torch_nor_pillow_is_imported_for_payloads_without_them() -> None:
    before = set(sys.modules)
    serializer.decode(serializer.encode({"a": np.arange(3), "b": [object.__name__, (1,)]}, "fast"))
    assert not {"torch", "PIL", "PIL.Image"} & (set(sys.modules) - before)
