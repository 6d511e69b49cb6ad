"""What a dict with 64 MiB of a tensor costs to encode and to decode. Prints one JSON object:

encode_x, decode_x        vLLM-Omni's serializer over ours: its bytes over ours in place, views
encode_bytes_x            the same into a bytes object of its own, as vLLM-Omni's does
fast_encode_x             the same with our fast form, in place
encode_memcpy             copying the tensor over encoding it in place
fast_encode_memcpy        the same with our fast form
fast_put_get_memcpy       put and get of an embedded store over one copy of the tensor
small_put_get_us          put and get of a dict of 1 KiB

Needs torch and vLLM-Omni (tests/omni/run.sh says how); without them only the last four are printed.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

try:
    import stagelink as sl
except ImportError:  # Not installed: the one that was built beside the command.
    sys.path.append(str(Path(__file__).resolve().parent.parent / "build" / "release" / "python"))
    import stagelink as sl
from stagelink import serializer

SIZE = 64 << 20
ROUNDS = 15
PARTS = ("", ".distributed", ".distributed.omni_connectors", ".distributed.omni_connectors.utils")


def omni_serializer() -> Any:
    """Import vLLM-Omni's serializer without the rest of the stack; None where it is missing."""
    found = importlib.util.find_spec("vllm_omni")
    if found is None or found.origin is None:
        return None
    root = Path(found.origin).parent
    for part in PARTS:
        module = types.ModuleType("vllm_omni" + part)
        module.__path__ = [str(root.joinpath(*part.split(".")[1:]))]
        sys.modules[module.__name__] = module
    try:
        return importlib.import_module(
            "vllm_omni.distributed.omni_connectors.utils.serialization"
        ).OmniSerializer
    except ImportError:
        return None


def median_of(*steps: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Run the steps in turns, so that all see the same machine; their medians in seconds."""
    took: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for step, times in zip(steps, took, strict=True):
            start = time.perf_counter()
            kept = step()
            times.append(time.perf_counter() - start)
            del kept
    return [statistics.median(times) for times in took]


def payload(tensor: Any) -> dict[str, Any]:
    return {"meta": {"request": "r-1", "ids": list(range(16)), "finished": False}, "x": tensor}


def in_place(value: Any, wire: serializer.Wire) -> Callable[[], object]:
    target = bytearray(serializer.plan(value, wire).nbytes)
    return lambda: serializer.plan(value, wire).write_into(target)


def compare(omni: Any, numbers: dict[str, float]) -> None:
    import torch

    value = payload(torch.from_numpy(np.random.default_rng(1).random(SIZE // 4, np.float32)))
    raw = serializer.encode(value)
    assert raw == omni.serialize(value)
    theirs, ours, fast, whole = median_of(
        lambda: omni.serialize(value),
        in_place(value, "compat"),
        in_place(value, "fast"),
        lambda: serializer.encode(value),
    )
    numbers["encode_x"] = theirs / ours
    numbers["fast_encode_x"] = theirs / fast
    numbers["encode_bytes_x"] = theirs / whole
    theirs, ours = median_of(lambda: omni.deserialize(raw), lambda: serializer.decode(raw))
    numbers["decode_x"] = theirs / ours


def measure_copies(numbers: dict[str, float]) -> None:
    source = np.random.default_rng(1).random(SIZE // 4, np.float32)
    value = payload(source)
    copy = np.zeros_like(source)
    memcpy, compat, fast = median_of(
        lambda: np.copyto(copy, source), in_place(value, "compat"), in_place(value, "fast")
    )
    numbers["encode_memcpy"] = memcpy / compat
    numbers["fast_encode_memcpy"] = memcpy / fast
    name = f"bench-serializer-{os.getpid()}"
    with sl.ObjectStore(backend="shm", name=name, capacity=4 * SIZE) as store:

        def there_and_back(value: Any) -> object:
            serializer.put(store, "key", value)
            back = serializer.get(store, "key")
            store.erase("key")
            return back

        large, memcpy = median_of(lambda: there_and_back(value), lambda: np.copyto(copy, source))
        (small,) = median_of(lambda: there_and_back({"x": "y" * 1000, "n": 1}), rounds=2000)
    numbers["fast_put_get_memcpy"] = large / memcpy
    numbers["small_put_get_us"] = small * 1e6


def main() -> None:
    numbers: dict[str, float] = {}
    omni = omni_serializer()
    if omni is not None:
        compare(omni, numbers)
    measure_copies(numbers)
    print(json.dumps(numbers))


if __name__ == "__main__":
    main()
