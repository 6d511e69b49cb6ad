"""stagelink.ObjectStore: what Python adds to the store."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from child import Child

import stagelink as sl

MIB = 1 << 20


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sl-store-", dir="/dev/shm") as name:
        yield Path(name)
        gc.collect()
        assert os.listdir(name) == []


@pytest.fixture
def store(folder: Path) -> Iterator[sl.ObjectStore]:
    with sl.ObjectStore(directory=str(folder), capacity=4 * MIB, max_objects=64) as opened:
        yield opened


OTHER = """
import stagelink as sl
store = sl.ObjectStore(directory=folder, capacity=4 << 20, max_objects=64)
"""


def test_what_one_process_puts_another_gets(
    store: sl.ObjectStore, folder: Path, child: Callable[..., Child]
) -> None:
    other = child()
    other.run(OTHER, folder=str(folder))
    store.put("text", b"hello")
    assert other.run("bytes(store.get('text'))") == b"hello"
    other.start("bytes(store.get('late', timeout=20))")
    store.put("late", np.arange(3, dtype=np.uint8))
    assert other.finish() == bytes([0, 1, 2])
    other.run("store.close()")


def test_falsy_values_are_values(store: sl.ObjectStore) -> None:
    for key in ("none", b"none"):
        with pytest.raises(sl.NotFound):
            store.get(key)
    store.put("empty", b"")
    with store.get("empty") as view:
        assert len(view) == 0 and view.nbytes == 0 and bytes(view) == b""
    assert store.exists("empty") and not store.exists("none")


def test_arrays_go_in_as_they_lie_and_come_out_as_views(store: sl.ObjectStore) -> None:
    array = np.arange(10_000, dtype=np.float32).reshape(100, 100)
    generation = store.put("array", array)
    view = store.get("array")
    assert view.generation == generation and view.address % 64 == 0
    got = np.frombuffer(view, np.float32).reshape(100, 100)
    assert (got == array).all() and not got.flags.writeable
    del view
    store.put("array", b"replaced")
    store.erase("array")
    gc.collect()
    assert (got == array).all()
    assert store.usage()["leased"] == 1
    del got
    assert store.usage()["used_bytes"] == 0
    for wrong in (array[:, ::2], array.T):
        with pytest.raises(sl.InvalidArgument, match="not_contiguous"):
            store.put("array", wrong)


def test_a_writer_is_filled_in_place(store: sl.ObjectStore) -> None:
    with store.create("key", 8) as writer:
        (piece,) = writer.pieces()
        piece[:] = b"01234567"
        assert writer.size == 8 and writer.generation == 0
        writer.seal()
        assert writer.generation > 0
    with pytest.raises(sl.InvalidState):
        writer.seal()
    assert bytes(store.get("key")) == b"01234567"
    with store.create("dropped", 8) as writer:
        writer.append(b"0123")
        with pytest.raises(sl.InvalidArgument, match="out_of_bounds"):
            writer.append(b"45678")
    with pytest.raises(sl.NotFound):
        store.get("dropped")


def test_memory_of_an_aborted_put_stays_while_somebody_looks_at_it(store: sl.ObjectStore) -> None:
    writer = store.create("key", MIB)
    memory = np.frombuffer(writer.pieces()[0], np.uint8)
    writer.abort()
    assert store.usage()["used_bytes"] == MIB
    memory[:] = 1
    del memory
    gc.collect()
    assert store.usage()["used_bytes"] == 0


def test_release_ends_the_lease_when_no_buffer_is_left(store: sl.ObjectStore) -> None:
    store.put("key", b"1234")
    view = store.get("key")
    buffer = memoryview(view)
    view.release()
    view.release()
    assert bytes(buffer) == b"1234" and store.usage()["leased"] == 1
    with pytest.raises(sl.InvalidState):
        view.nbytes  # noqa: B018
    with pytest.raises(BufferError):
        memoryview(view)
    buffer.release()
    assert store.usage()["leased"] == 0


def test_each_outcome_has_its_exception(store: sl.ObjectStore) -> None:
    with pytest.raises(sl.TimedOut):
        store.get("none", timeout=0.01)
    with pytest.raises(sl.Limit, match="too_large"):
        store.create("key", 4 * MIB + 1)
    store.put("full", bytes(4 * MIB))
    with pytest.raises(sl.NoSpace):
        store.put("more", b"1", timeout=0)
    store.expire("full", 0)
    with pytest.raises(sl.Superseded, match="expired"):
        store.get("full")
    with pytest.raises(sl.InvalidArgument, match="key"):
        store.put("", b"")
    with pytest.raises(sl.InvalidArgument, match="did you mean `capacity`"):
        sl.ObjectStore(capacty=1)
    store.put("a", b"1")
    first, second = store.get_many(["a", "b"])
    assert isinstance(first, sl.ObjectView) and isinstance(second, sl.NotFound)


def test_a_time_to_live_of_none_is_the_store_s_and_zero_is_for_ever(folder: Path) -> None:
    with sl.ObjectStore(directory=str(folder), capacity=MIB, max_objects=16, ttl="1ns") as store:
        store.put("default", b"1")
        store.put("for ever", b"1", ttl=0)
        store.put("long", b"1", ttl="1h")
        assert [store.exists(key) for key in ("default", "for ever", "long")] == [
            False,
            True,
            True,
        ]


def test_a_waiting_get_lets_other_threads_run(store: sl.ObjectStore) -> None:
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(bytes(store.get("key", timeout=20))))
    thread.start()
    counted = 0
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        counted += 1
    store.put("key", b"1")
    thread.join()
    assert counted > 100 and found == [b"1"]


def test_control_c_ends_a_wait(folder: Path) -> None:
    code = (
        "import stagelink as sl\n"
        f"store = sl.ObjectStore(directory={str(folder)!r}, capacity=1 << 20)\n"
        "try:\n    print('ready', flush=True)\n    store.get('never', timeout=60)\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.read() == "interrupted\n"
    assert child.returncode == 0


def test_a_store_that_is_left_open_goes_with_the_interpreter(folder: Path) -> None:
    code = (
        "import stagelink as sl\n"
        f"store = sl.ObjectStore(directory={str(folder)!r}, capacity=1 << 20)\n"
        "store.put('key', b'1')\nview = store.get('key')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert os.listdir(folder) == []
