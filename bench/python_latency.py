"""How long one read of 8 bytes takes from Python: submit and wait. Prints {"p50_us": ...}.

The target is a process of its own, started as this script with the word `target`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

try:
    import stagelink as sl
except ImportError:  # Not installed: the one that was built beside the command.
    sys.path.append(str(Path(__file__).resolve().parent.parent / "build" / "release" / "python"))
    import stagelink as sl

REGION = 1 << 20
READS = 20_000
TRANSPORTS = ["shm"]


def run_target() -> None:
    """Prints its descriptors, then lives until its standard input is closed."""
    with sl.Engine(name="bench-python-target", transports=TRANSPORTS) as engine:
        pool = engine.allocate(REGION)
        memoryview(pool).cast("B")[:] = bytes(range(256)) * (REGION // 256)
        print(engine.descriptor().hex(), pool.descriptor().hex(), flush=True)
        sys.stdin.read()


def measure(engine_desc: bytes, region_desc: bytes) -> float:
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
        return statistics.median(took) * 1e6


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
        print(json.dumps({"p50_us": measure(engine_desc, region_desc)}))


if __name__ == "__main__":
    main()
