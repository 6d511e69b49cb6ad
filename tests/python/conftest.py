"""What every test gets: a runtime directory of its own, and a check that nothing is left over."""

import faulthandler
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from child import Child  # noqa: E402

SOURCE = Path(__file__).parents[2]
SETTLE_S = 5.0


@pytest.fixture(scope="session", autouse=True)
def runtime_dir() -> Iterator[Path]:
    # Not pytest's tmp_path: the path of a UNIX socket has 107 bytes.
    with tempfile.TemporaryDirectory(prefix="sl-") as folder:
        path = Path(folder) / "run"
        os.environ["STAGELINK_RUNTIME_DIR"] = str(path)
        yield path


def _open_files() -> list[str]:
    files = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            files.append(f"{entry} -> {os.readlink(f'/proc/self/fd/{entry}')}")
        except OSError:
            pass  # The directory's own.
    return sorted(files)


def _snapshot(runtime: Path) -> dict[str, list[str]]:
    return {
        "files": _open_files(),
        "threads": sorted(os.listdir("/proc/self/task")),
        "runtime": sorted(os.listdir(runtime)) if runtime.exists() else [],
    }


@pytest.fixture(autouse=True)
def nothing_left_over(runtime_dir: Path) -> Iterator[None]:
    """File descriptors, threads and runtime files are after the test what they were before."""
    gc.collect()
    before = _snapshot(runtime_dir)
    yield
    until = time.monotonic() + SETTLE_S
    while True:
        gc.collect()
        after = _snapshot(runtime_dir)
        if after == before or time.monotonic() > until:
            break
        time.sleep(0.01)
    assert after == before


@pytest.fixture
def child(nothing_left_over: None) -> Iterator[Callable[..., Child]]:
    """Starts processes that end with the test."""
    children: list[Child] = []

    def start(**env: str) -> Child:
        children.append(Child(env))
        return children[-1]

    yield start
    for process in children:
        process.close()


faulthandler.enable()
