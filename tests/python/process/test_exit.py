"""Programs that end with engines open: exit code 0 and not a word on stderr."""

import itertools
import os
import subprocess
import sys

import pytest

import stagelink as sl

PREAMBLE = """
import signal, threading
signal.alarm(60)
import stagelink as sl
other = sl.Engine()
engine = sl.Engine()
pool = engine.allocate("1MiB")
peer = engine.connect(other.descriptor())
theirs = other.allocate("1MiB")
session = peer.session([pool], [theirs.descriptor()])
xfer = session.read(0, 0, 1 << 20)
xfer.wait("5s")
"""

ENDS = {
    "with everything open": "",
    "with views alive": "views = [memoryview(pool), memoryview(theirs)]",
    "closed twice": "engine.close(); engine.close(); other.close(); other.close()",
    "closed in another order": "other.close(); engine.close()",
    "by sys.exit": "import sys; sys.exit(0)",
    "by os._exit": "import os; os._exit(0)",
    "by an exit handler that closes": "import atexit; atexit.register(engine.close)",
    "with a cycle": "class Box: pass\nbox = Box(); box.things = [box, engine, pool, xfer]",
    "with a waiting daemon thread": (
        "begun = threading.Event()\n"
        "def wait():\n"
        "    begun.set()\n"
        "    while True: other.notifications('50s')\n"
        "threading.Thread(target=wait, daemon=True).start()\n"
        "begun.wait()\n"
    ),
    "with an engine made in a daemon thread": (
        "made = []\n"
        "thread = threading.Thread(target=lambda: made.append(sl.Engine()), daemon=True)\n"
        "thread.start(); thread.join()\n"
    ),
}


# Transfers that the exit cuts off are failures, with a line each in the log.
ENDS_IN_TRAFFIC = {
    "with a transfer under way": "session.read(0, 0, 1 << 20)",
    "with busy daemon threads": (
        "def work():\n"
        "    while True: session.read(0, 0, 1 << 20).wait('5s')\n"
        "for _ in range(3): threading.Thread(target=work, daemon=True).start()\n"
        "for _ in range(50): session.read(0, 0, 1 << 20).wait('5s')\n"
    ),
}


def run_program(code: str, **env: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with sl.Engine():
        pass  # Clears away what os._exit() left.


@pytest.mark.parametrize("end", ENDS, ids=str)
def test_a_program_ends_quietly(end: str) -> None:
    run_program(PREAMBLE + ENDS[end])


@pytest.mark.parametrize("end", ENDS_IN_TRAFFIC, ids=str)
def test_a_program_ends_in_the_middle_of_traffic(end: str) -> None:
    run_program(PREAMBLE + ENDS_IN_TRAFFIC[end], STAGELINK_LOG_LEVEL="off")


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["stagelink", "numpy", "multiprocessing.util"])), ids=str
)
def test_a_program_ends_quietly_in_every_order_of_imports(order: tuple[str, ...]) -> None:
    imports = "\n".join(f"import {name}" for name in order)
    run_program(imports + PREAMBLE + "import numpy as np\nvalues = np.asarray(pool)")
