"""What every test gets: a runtime directory of its own, and a check that nothing is left over."""

import faulthandler
import gc
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # Else a fork ends threads that were not ours.

import numpy as np  # noqa: E402
import pytest  # noqa: E402

import stagelink as sl  # noqa: E402
from stagelink.pull.log_limit import LineLimit  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))

from child import Child  # noqa: E402

SETTLE_S = 5.0

faulthandler.enable()


def pytest_collection_finish() -> None:
    # What the imports have made stays; looking through it around each test takes most of the time.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def runtime_dir() -> Iterator[Path]:
    # Not pytest's tmp_path: the path of a UNIX socket has 107 bytes.
    with tempfile.TemporaryDirectory(prefix="sl-") as folder:
        path = Path(folder) / "run"
        os.environ["STAGELINK_RUNTIME_DIR"] = str(path)
        # For what does not read that: no other process may take the folder away in between.
        os.environ["XDG_RUNTIME_DIR"] = folder
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
def fresh_log_limits() -> None:
    """What earlier tests have logged takes no line from this one."""
    for name in ("stagelink.pull", "stagelink.kv"):
        for limit in logging.getLogger(name).filters:
            if isinstance(limit, LineLimit):
                limit.forget()


@pytest.fixture(autouse=True)
def nothing_left_over(runtime_dir: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """File descriptors, threads and runtime files are after the test what they were before."""
    gc.collect()
    before = _snapshot(runtime_dir)
    yield
    request.node.funcargs.clear()  # Closed objects may keep a mapping; pytest keeps the objects.
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
    with sl.Engine():
        pass  # Clears away what killed processes left.


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module that names TRANSPORTS runs its tests of two engines with each of them."""
    choices = getattr(metafunc.module, "TRANSPORTS", None)
    if choices and "transports" in metafunc.fixturenames:
        metafunc.parametrize("transports", choices.values(), ids=choices.keys(), indirect=True)


@pytest.fixture
def transports(request: pytest.FixtureRequest) -> list[str] | None:
    return getattr(request, "param", None)


@pytest.fixture
def engine(nothing_left_over: None, transports: list[str] | None) -> Iterator[sl.Engine]:
    with sl.Engine(name="here", transports=transports) as engine:
        yield engine


@pytest.fixture
def other(nothing_left_over: None, transports: list[str] | None) -> Iterator[sl.Engine]:
    """A second engine in this process, for what does not depend on a second one."""
    with sl.Engine(name="there", transports=transports) as engine:
        yield engine


@pytest.fixture
def link(engine: sl.Engine, other: sl.Engine) -> Iterator["Link"]:
    """64 KiB on each side and a session between them."""
    yield Link(engine, other)


class Link:
    def __init__(self, engine: sl.Engine, other: sl.Engine) -> None:
        self.engine = engine
        self.other = other
        self.pool = engine.allocate("64KiB")
        self.theirs = other.allocate("64KiB")
        self.peer = engine.connect(other.descriptor())
        self.session = self.peer.session(local=[self.pool], remote=[self.theirs.descriptor()])
        self.local = np.asarray(self.pool)
        self.remote = np.asarray(self.theirs)
        self.remote[:] = np.arange(self.remote.size, dtype=np.uint32).astype(np.uint8)
