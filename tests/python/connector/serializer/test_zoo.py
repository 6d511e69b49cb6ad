"""Every kind of value comes back equal and typed, in both forms."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import zoo  # noqa: E402

from stagelink import serializer  # noqa: E402

pytestmark = pytest.mark.parametrize("wire", ["compat", "fast"])


def there_and_back(value: Any, wire: serializer.Wire, **options: bool) -> Any:
    return serializer.decode(serializer.encode(value, wire), **options)


def test_plain_values_come_back(wire: serializer.Wire) -> None:
    for value in [*zoo.FALSY, *zoo.INTEGERS, *zoo.TEXTS, 5e-324, float("inf"), float("nan")]:
        assert zoo.same(there_and_back(value, wire), value), value
        assert zoo.same(there_and_back({"v": [value]}, wire), {"v": [value]}), value


def test_nested_containers_come_back(wire: serializer.Wire) -> None:
    assert zoo.same(there_and_back(zoo.NESTED, wire), zoo.NESTED)


def test_bytes_of_any_length_come_back(wire: serializer.Wire) -> None:
    for size in (0, 1, 255, 256, 4095, 4096, 65535, 65536, 1 << 21):
        raw = np.random.default_rng(size).bytes(size)
        assert there_and_back(raw, wire) == raw
        for kind in (bytearray, memoryview):
            assert zoo.same(there_and_back([kind(raw), 1], wire), [raw, 1])


@pytest.mark.parametrize("name", zoo.NUMPY_TYPES + zoo.ML_TYPES)
def test_every_bit_pattern_of_a_dtype_comes_back(wire: serializer.Wire, name: str) -> None:
    source = zoo.every_pattern(name)
    assert zoo.same(there_and_back({"a": source}, wire)["a"], source)
    assert zoo.same(there_and_back(source[::-3], wire, copy=True), source[::-3].copy())


def test_arrays_of_any_layout_come_back(wire: serializer.Wire) -> None:
    for copy in (False, True):
        back = there_and_back(zoo.arrays(), wire, copy=copy)
        assert zoo.same(back, {name: array.copy() for name, array in zoo.arrays().items()})


def test_pictures_come_back(wire: serializer.Wire) -> None:
    pytest.importorskip("PIL", reason="needs Pillow")
    modes = zoo.IMAGE_MODES + (zoo.FAST_IMAGE_MODES if wire == "fast" else [])
    for copy in (False, True):
        pictures = zoo.images(modes)
        assert zoo.same(there_and_back(pictures, wire, copy=copy), pictures)


def test_dataclasses_become_dicts(wire: serializer.Wire) -> None:
    value = zoo.Part(1, [zoo.Part(2, np.arange(3))])
    back = there_and_back(value, wire)
    assert zoo.same(back, {"count": 1, "values": [{"count": 2, "values": np.arange(3)}]})


def test_tuples_and_sets_are_lists_in_the_compatible_form_only(wire: serializer.Wire) -> None:
    value = (1, {2}, frozenset([3]), [(4,)], {(5, 6): ()})
    lists = [1, [2], [3], [[4]], {(5, 6): []}]
    assert there_and_back(value, wire) == (value if wire == "fast" else lists)


@pytest.mark.timeout(900)
def test_arrays_behind_the_second_gigabyte_come_back(wire: serializer.Wire) -> None:
    if not os.environ.get("STAGELINK_TEST_LARGE"):
        pytest.skip("takes 8 GiB of memory: set STAGELINK_TEST_LARGE")
    source = np.zeros((1 << 31) + 11, np.uint8)
    source[:: 1 << 20] = 7
    source[-1] = 9
    raw = serializer.encode({"large": source, "last": 1}, wire)
    back = serializer.decode(raw)
    assert back["last"] == 1
    assert np.array_equal(back["large"], source)
