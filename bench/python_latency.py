"""What calls from Python cost. Prints one JSON object:

p50_us             one read of 8 bytes, submit and wait
lists_over_arrays  submitting 15,000 ranges as lists, over submitting them as arrays

The target is a process of its own, started as this script with the word `target`.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

try:
    import stagelink as sl
except ImportError:  # Not installed: the one that was built beside the command.
    sys.path.append(str(Path(__file__).resolve().parent.parent / "build" / "release" / "python"))
    import stagelink as sl

REGION = 1 << 20
READS = 20_000
RANGES = 15_000
BATCHES = 50
TRANSPORTS = ["shm"]


def run_target() -> None:
    """Prints its descriptors, then lives until its standard input is closed."""
    with sl.Engine(name="bench-python-target", transports=TRANSPORTS) as engine:
        pool = engine.allocate(REGION)
        memoryview(pool).cast("B")[:] = bytes(range(256)) * (REGION // 256)
        print(engine.descriptor().hex(), pool.descriptor().hex(), flush=True)
        sys.stdin.read()


def submit_us(session: sl.Session, offsets: Sequence[int], sizes: Sequence[int]) -> float:
    took: list[float] = []
    for _ in range(BATCHES):
        start = time.perf_counter()
        transfer = session.read(offsets, offsets, sizes)
        took.append(time.perf_counter() - start)
        transfer.wait()
    return statistics.median(took) * 1e6


def lists_over_arrays(session: sl.Session) -> float:
    """The same scattered ranges either way, in turns."""
    offsets = [8 * i for i in random.Random(1).sample(range(REGION // 8), RANGES)]
    sizes = [8] * RANGES
    arrays = array("Q", offsets), array("Q", sizes)
    ratios = [submit_us(session, offsets, sizes) / submit_us(session, *arrays) for _ in range(5)]
    return statistics.median(ratios)


def measure(engine_desc: bytes, region_desc: bytes) -> dict[str, float]:
    with sl.Engine(name="bench-python", transports=TRANSPORTS) as engine:
        buffer = bytearray(REGION)
        region = engine.register(buffer)
        peer = engine.connect(engine_desc, timeout="5s")
        session = peer.session(local=[region], remote=[sl.RegionDesc.unpack(region_desc)])
        took: list[float] = []
        for i in range(READS):
            offset = i % 1000 * 8
            start = time.perf_counter()
            session.read(offset, offset, 8).wait()
            took.append(time.perf_counter() - start)
        if buffer[:8000] != (bytes(range(256)) * 32)[:8000]:
            raise SystemExit("wrong bytes were read")
        return {
            "p50_us": statistics.median(took) * 1e6,
            "lists_over_arrays": lists_over_arrays(session),
        }


def pin(core: int) -> None:
    if core in os.sched_getaffinity(0):
        os.sched_setaffinity(0, {core})


def main() -> None:
    if sys.argv[1:] == ["target"]:
        pin(1)
        run_target()
        return
    command = [sys.executable, __file__, "target"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as target:
        assert target.stdout is not None
        engine_desc, region_desc = (bytes.fromhex(x) for x in target.stdout.readline().split())
        pin(0)
        print(json.dumps(measure(engine_desc, region_desc)))


if __name__ == "__main__":
    main()
