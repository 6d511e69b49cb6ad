"""What 1 KiB costs through vLLM-Omni's SharedMemoryConnector, put and get in two processes.

Prints one JSON object: p50_us, the sum of both calls, the object there before the get. Runs in a
Python that has vllm-omni 0.30; only its package of connectors is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import statistics
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

ROUNDS = 500
BYTES = 1024
CONNECTORS = "vllm_omni.distributed.omni_connectors.connectors"
PACKAGES = (
    "vllm_omni",
    "vllm_omni.distributed",
    "vllm_omni.distributed.omni_connectors",
    "vllm_omni.distributed.omni_connectors.utils",
    "vllm_omni.config",
    "vllm_omni.entrypoints",
    "vllm_omni.platforms",
    CONNECTORS,
)


def make_connector() -> Any:
    found = importlib.util.find_spec("vllm_omni")
    if found is None or found.origin is None:
        raise SystemExit("vllm-omni is not installed")
    root = Path(found.origin).parent
    for name in PACKAGES:  # Their __init__ would import the whole stack.
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    vars(sys.modules["vllm_omni.platforms"])["current_omni_platform"] = None  # Named, not used.
    logging.disable(logging.WARNING)
    module = importlib.import_module(f"{CONNECTORS}.shm_connector")
    return module.SharedMemoryConnector({"shm_threshold_bytes": 0})


def run_putter() -> None:
    """Puts one object for each line; answers with what it took and what get needs."""
    connector = make_connector()
    payload = {"data": bytes(BYTES)}
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        _, _, metadata = connector.put("0", "1", line.strip(), payload)
        took = time.perf_counter() - start
        print(json.dumps({"took": took, "metadata": metadata}), flush=True)


def main() -> None:
    connector = make_connector()
    putter = subprocess.Popen(
        [sys.executable, __file__, "put"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},  # Of segments that the reader removed.
    )
    assert putter.stdin is not None and putter.stdout is not None
    while putter.stdout.readline() != "ready\n":
        assert putter.poll() is None
    sums: list[float] = []
    for i in range(ROUNDS):
        print(f"req-{i}", file=putter.stdin, flush=True)
        answer = json.loads(putter.stdout.readline())
        start = time.perf_counter()
        got = connector.get("0", "1", f"req-{i}", answer["metadata"])
        took = time.perf_counter() - start
        assert got is not None and len(got[0]["data"]) == BYTES
        sums.append(answer["took"] + took)
    putter.stdin.close()
    putter.wait()
    print(json.dumps({"p50_us": statistics.median(sums) * 1e6}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_putter()
    else:
        main()
