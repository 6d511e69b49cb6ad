"""Payloads go into a store in place and are read from it in place."""

import gc
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import zoo  # noqa: E402

import stagelink as sl  # noqa: E402
from stagelink import serializer  # noqa: E402

LARGE = 64 << 20


def store_of(capacity: int) -> sl.ObjectStore:
    return sl.ObjectStore(backend="shm", name=f"test-payload-{os.getpid()}", capacity=capacity)


def peak_mib(reset: bool = False) -> float:
    """The most memory that this process has had since the reset, shared memory included."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmHWM")


@pytest.mark.parametrize("wire", ["compat", "fast"])
def test_put_and_get_of_every_kind_of_payload(wire: serializer.Wire) -> None:
    with store_of(64 << 20) as store:
        values: dict[str, Any] = {"arrays": zoo.arrays(), "texts": zoo.TEXTS, "falsy": zoo.FALSY}
        for key, value in values.items():
            size = serializer.put(store, key, value, wire, checksum=True)
            assert size == store.get(key).nbytes
            back = serializer.get(store, key)
            expected = serializer.decode(serializer.encode(value))
            assert zoo.same(back, expected)
            del back


def test_a_payload_that_is_refused_leaves_nothing_in_the_store() -> None:
    with store_of(1 << 20) as store:
        with pytest.raises(TypeError):
            serializer.put(store, "key", {"a": np.float32(1)})
        with pytest.raises(sl.Error):
            serializer.put(store, "key", np.zeros(2 << 20, np.uint8), timeout=0)
        assert not store.exists("key")
        assert store.usage()["used_bytes"] == 0


def test_views_outlive_the_object_the_view_and_the_store() -> None:
    with store_of(16 << 20) as store:
        serializer.put(store, "key", {"a": np.arange(100_000)})
        array = serializer.get(store, "key")["a"]
        store.erase("key")
        serializer.put(store, "key", {"a": np.zeros(100_000)})
        assert store.usage()["leased"] == 1
    assert (array == np.arange(100_000)).all()
    del array
    gc.collect()


def test_a_large_payload_is_copied_once_and_read_where_it_lies() -> None:
    source = np.ones(LARGE // 2, np.float16)
    with store_of(2 * LARGE) as store:
        try:
            before = peak_mib(reset=True)
        except OSError as error:
            pytest.skip(f"the peak of memory cannot be reset here: {error}")
        serializer.put(store, "key", {"meta": {"id": "r"}, "x": source})
        back = serializer.get(store, "key")
        assert back["x"][::4096].sum() == source[::4096].sum()
        grown = peak_mib() - before
        del back
    # The object itself is shared memory that the put has touched for the first time.
    assert grown < 1.1 * LARGE / (1 << 20)


def test_no_byte_of_a_tensor_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("pickled")

    for name in ("dumps", "loads", "dump", "load", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    for wire in ("compat", "fast"):
        frame = serializer.encode({"x": np.arange(1000)}, wire)  # type: ignore[arg-type]
        assert np.arange(1000).tobytes() in frame
        serializer.decode(frame)
