"""Eight gets are pending and one object comes: how soon it is delivered. Prints one JSON object:

pending_ms        the 90th percentile, from the return of the put to the return of the get
pending_get_us    one get that finds nothing

The receiver is a loop as vLLM-Omni has it: one thread asks for every pending request in turn and
pauses for 1 ms where none came. `get_sub_timeout_ms` is absent from the configuration.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

try:
    import stagelink
except ImportError:  # Not installed: the one that was built beside the command.
    sys.path.append(str(Path(__file__).resolve().parent.parent / "build" / "release" / "python"))
    import stagelink
from stagelink.connectors import YuanrongConnector

PENDING = 8
ROUNDS = 60

assert stagelink.__version__


def connect(namespace: str) -> YuanrongConnector:
    return YuanrongConnector({"namespace": namespace, "capacity": "16MiB", "max_objects": 256})


def run_sender(namespace: str) -> None:
    """Put what a line names; say when it was there."""
    with connect(namespace) as connector:
        print("ready", flush=True)
        for line in sys.stdin:
            assert connector.put("0", "1", line.strip(), {"at": line})[0]
            print(time.monotonic_ns(), flush=True)


def deliver(connector: YuanrongConnector, pending: list[str]) -> int:
    """When the first of them came."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for key in pending:
            if connector.get("0", "1", key) is not None:
                return time.monotonic_ns()
        time.sleep(0.001)
    raise TimeoutError("nothing was delivered")


def measure() -> dict[str, float]:
    namespace = f"bench-pending-{os.getpid()}"
    sender = subprocess.Popen(
        [sys.executable, __file__, namespace],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert sender.stdin is not None and sender.stdout is not None
    with connect(namespace) as connector:
        assert sender.stdout.readline() == "ready\n"
        late = []
        for at in range(ROUNDS):
            pending = [f"r{at}_{number}" for number in range(PENDING)]
            sender.stdin.write(pending[at % PENDING] + "\n")
            sender.stdin.flush()
            came = deliver(connector, pending)
            late.append(max(0, came - int(sender.stdout.readline())) / 1e6)
        start = time.perf_counter()
        for _ in range(1000):
            connector.get("0", "1", "none")
        miss_us = (time.perf_counter() - start) * 1000
    sender.stdin.close()
    sender.wait(20)
    return {"pending_ms": sorted(late)[int(0.9 * len(late))], "pending_get_us": miss_us}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_sender(sys.argv[1])
    else:
        print(json.dumps(measure()))
