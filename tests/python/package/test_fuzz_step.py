"""The fuzz step of `make test`: the same runs everywhere, and a failure that can be run again."""

import base64
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[3]
INPUT = b"y\x00engine: \xff\n"


@pytest.fixture
def run_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """tools/run_tests.py with a tree of its own."""
    spec = importlib.util.spec_from_file_location("run_tests", SOURCE / "tools" / "run_tests.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "BUILD", tmp_path / "build")
    return module


def program(folder: Path, script: str) -> Path:
    path = folder / "build" / "fuzz" / "fuzz_config"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return path


def test_seed_runs_and_the_order_of_inputs_are_fixed(run_tests: ModuleType, tmp_path: Path) -> None:
    corpus = tmp_path / "fuzz" / "corpus" / "config"
    corpus.mkdir(parents=True)
    for name in ("b", "a", "c"):
        (corpus / name).touch()
    target = program(tmp_path, 'for word; do echo "$word" >>"$0.words"; done\necho fine\n')
    assert run_tests.fuzz_one(target, 60, 7) == ("fuzz_config", "")
    words = Path(f"{target}.words").read_text().splitlines()
    assert "-seed=7" in words
    assert f"-runs={run_tests.FUZZ_RUNS_OF_SLOW_TARGETS['fuzz_config']}" in words
    assert f"-seed_inputs={corpus}/a,{corpus}/b,{corpus}/c" in words
    assert words[-1] == str(tmp_path / "build" / "fuzz" / "work" / "fuzz_config")


def test_a_failure_prints_the_bytes_of_its_input(
    run_tests: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = base64.b64encode(INPUT).decode()
    target = program(
        tmp_path,
        "for word; do case $word in -artifact_prefix=*) prefix=${word#*=};; esac; done\n"
        f"echo {code} | base64 -d >${{prefix}}crash-1\necho deadly signal\nexit 77\n",
    )
    assert run_tests.fuzz_one(target, 60, 1) == ("fuzz_config", "exit status 77 | deadly signal")
    shown = capfd.readouterr().out
    assert "exit status 77, seed 1" in shown
    assert "deadly signal" in shown
    assert f"echo {code} | base64 -d >input" in shown
    # The next run starts afresh.
    assert run_tests.fuzz_one(program(tmp_path, "echo fine\n"), 60, 1) == ("fuzz_config", "")
    assert code not in capfd.readouterr().out


def test_a_program_that_was_not_built_is_a_failure(run_tests: ModuleType, tmp_path: Path) -> None:
    missing = tmp_path / "build" / "fuzz" / "fuzz_config"
    assert run_tests.fuzz_one(missing, 60, 1) == ("fuzz_config", "not built")
