"""What 16 MiB of a NumPy array cost through an embedded store. Prints one JSON object:

put_over_memcpy  a put, over copying the array into another one
get_us           a get as a view, in another process than the put
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

try:
    import stagelink as sl
except ImportError:  # Not installed: the one that was built beside the command.
    sys.path.append(str(Path(__file__).resolve().parent.parent / "build" / "release" / "python"))
    import stagelink as sl

SIZE = 16 << 20
ROUNDS = 60


def open_store(name: str) -> sl.ObjectStore:
    return sl.ObjectStore(backend="shm", name=name, capacity=4 * SIZE)


def run_reader(name: str) -> None:
    """Gets each key that comes by a line; says how long it took."""
    with open_store(name) as store:
        print("ready", flush=True)
        for line in sys.stdin:
            store.exists("another")  # The pipe has put this process to sleep; a stage is awake.
            start = time.perf_counter()
            view = store.get(line.strip())
            took = time.perf_counter() - start
            assert view.nbytes == SIZE
            view.release()
            print(took, flush=True)


def main() -> None:
    name = f"bench-large-{os.getpid()}"
    source = np.random.default_rng(1).integers(0, 255, SIZE, dtype=np.uint8)
    copy = np.zeros_like(source)
    ratios: list[float] = []
    gets: list[float] = []
    with open_store(name) as store:
        reader = subprocess.Popen(
            [sys.executable, __file__, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert reader.stdin is not None and reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        for i in range(ROUNDS):
            start = time.perf_counter()
            np.copyto(copy, source)
            between = time.perf_counter()
            store.put(f"key-{i}", source)
            end = time.perf_counter()
            ratios.append((end - between) / (between - start))
            print(f"key-{i}", file=reader.stdin, flush=True)
            gets.append(float(reader.stdout.readline()))
            store.erase(f"key-{i}")
        reader.stdin.close()
        reader.wait()
    warm = slice(10, None)  # The first ones touch fresh pages.
    print(
        json.dumps(
            {
                "put_over_memcpy": statistics.median(ratios[warm]),
                "get_us": statistics.median(gets[warm]) * 1e6,
            }
        )
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_reader(sys.argv[1])
    else:
        main()
