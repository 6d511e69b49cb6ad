#!/usr/bin/env python3
"""Run everything that `make test` promises, cheap checks first, and add up the outcome.

A step that fails does not hide the others, but a tree that does not build ends the run. What a
machine cannot do (no clang, no Python module) is named as skipped and never counted as passed.
"""

from __future__ import annotations

import argparse
import base64
import functools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
JOBS = os.cpu_count() or 2
VENV_PYTHON = ROOT / ".venv" / "bin" / "python"
STEP_TIMEOUT_S = 1500
REASON_BYTES = 600
SANITIZED = ("unit_tests", "integration_tests")
# Of the unit tests under a sanitizer; a few for each core, as they do not take equally long.
UNIT_TEST_SHARDS = 4 * JOBS
# Some seconds of each target. Counted in runs and with a fixed seed, so that all machines judge the
# same tree the same way; seconds are only a bound for slow ones.
FUZZ_RUNS = 400_000
FUZZ_RUNS_OF_SLOW_TARGETS = {
    "fuzz_arena": 20_000,
    "fuzz_block_plan": 200_000,
    "fuzz_config": 100_000,
    "fuzz_kv_payload": 100_000,
    "fuzz_moriio_notify": 300_000,
    "fuzz_moriio_request_id": 200_000,
    "fuzz_omni_config": 150_000,
    "fuzz_payload": 200_000,
    "fuzz_payload_round": 100_000,
    "fuzz_push_messages": 30_000,
    "fuzz_registry_http": 50_000,
    "fuzz_stream_checked": 50_000,
    "fuzz_stream_server": 50_000,
    "fuzz_stream_staged": 50_000,
}


class Tally:
    """Counts of tests, and the names of the steps that failed or were left out."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0
        self.skipped = 0
        self.failures: list[str] = []
        self.left_out: list[str] = []
        self.reasons: list[str] = []  # One for each failed test or fuzzer, said at the very end.

    def add_junit(self, path: pathlib.Path) -> None:
        for case in ElementTree.parse(path).iter("testcase"):
            name = case.get("name", "")
            tests_of_shard = path.parent / f"{name}.xml"
            if ".shard_" in name and tests_of_shard.exists():
                self.add_junit(tests_of_shard)
                if case.find("failure") is None:
                    continue  # Else it counts itself: it may have failed at its end.
            if case.find("failure") is not None or case.find("error") is not None:
                self.failed += 1
                self.reasons.append(f"{case.get('classname', '')} {name}: {reason_of(case)}")
            elif case.find("skipped") is not None:
                self.skipped += 1
            else:
                self.passed += 1

    def add(self, name: str, ok: bool) -> None:
        self.passed += ok
        self.failed += not ok
        if not ok:
            self.failures.append(name)

    def leave_out(self, what: str, why: str) -> None:
        self.left_out.append(f"{what}: {why}")


def reason_of(case: ElementTree.Element) -> str:
    """The part of a failed test's output that says why, in a few hundred characters."""
    texts = [case.findtext(kind) or "" for kind in ("failure", "error", "system-out")]
    return key_lines("\n".join(texts).splitlines())


def key_lines(lines: Sequence[str]) -> str:
    marks = (": Failure", "ERROR:", "SUMMARY:", "WARNING: ThreadSanitizer", "E   ", "terminate")
    said = [at for at, line in enumerate(lines) if any(mark in line for mark in marks)]
    if said:
        lines = [line for at in said[:2] for line in lines[at : at + 5]]
    else:
        lines = lines[-6:]
    return " | ".join(line.strip() for line in lines if line.strip())[:REASON_BYTES]


def run(*command: object, **environment: str) -> bool:
    """True if the command exits with 0 within the time of a step."""
    return run_and_watch(command, environment, None)


def run_and_watch(
    command: Sequence[object], environment: dict[str, str], unwanted: str | None
) -> bool:
    """The same; lines that hold `unwanted` are a failure too."""
    words = [str(word) for word in command]
    print("+", " ".join(words), flush=True)
    seen = False
    # A session of its own, so that everything it has started can be stopped.
    process = subprocess.Popen(
        words, cwd=ROOT, env=os.environ | environment, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    timer = threading.Timer(STEP_TIMEOUT_S, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            seen = seen or (unwanted is not None and unwanted in line)
            print(line, end="", flush=True)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        timer.cancel()
    status = process.wait()
    if status == -signal.SIGKILL:
        print(f"killed, perhaps after {STEP_TIMEOUT_S} s: {' '.join(words)}", flush=True)
    return status == 0 and not seen


def python_side() -> bool:
    """True if the virtual environment was made: without it there is no Python module."""
    return (ROOT / ".venv" / "requirements.sha256").exists()


def build(preset: str, *targets: str, options: tuple[str, ...] = ()) -> bool:
    """Configures the preset and builds these targets, or all. A warning is a failure."""
    command = ["cmake", "--build", "--preset", preset, "-j", str(JOBS)]
    command += ["--target", *targets] if targets else []
    return run("cmake", "--preset", preset, "--log-level=WARNING", *options) and run_and_watch(
        [*command, "--", "--quiet"], {}, "warning:"
    )


def ctest(tally: Tally, preset: str) -> None:
    report = BUILD / preset / "ctest.xml"
    for old in [report, *report.parent.glob("*.shard_*.xml")]:
        old.unlink(missing_ok=True)
    command: list[object] = ["ctest", "--preset", preset, "-j", JOBS, "--progress"]
    command += ["--no-label-summary", "--output-junit", report]
    command += ["--exclude-regex", "_NOT_BUILT"]  # Programs that this preset was not asked for.
    ok = run(*command)
    if report.exists():
        tally.add_junit(report)
    if not ok:
        tally.failures.append(f"ctest {preset}")
        tally.failed += not report.exists()


def step_shape(tally: Tally) -> None:
    tally.add("shape of the tree", run(sys.executable, "tools/check_shape.py"))


def step_venv(tally: Tally) -> None:
    tally.add("virtual environment for the Python side", run("tools/venv.sh"))


def step_python_lint(tally: Tally) -> None:
    if not python_side():
        tally.leave_out("python lint", "there is no virtual environment")
        return
    tally.add("python lint", run("tools/lint_python.sh"))


def step_release(tally: Tally, sanitized: bool) -> None:
    # The build that users run, with tests; what `make demo` has compiled is not compiled again.
    options: tuple[str, ...] = ("-DSTAGELINK_TESTS=ON",)
    # Where sanitizers are to come, unit tests run under them, and here only the files of which they
    # skip a test: compiling the rest once more is minutes.
    options += (f"-DSTAGELINK_UNIT_TESTS={'OFF' if sanitized else 'ON'}",)
    if python_side():
        options += ("-DSTAGELINK_PYTHON=ON", f"-DPython_EXECUTABLE={VENV_PYTHON}")
    if not build("release", options=options):
        sys.exit("make test: the tree does not build without warnings (preset release)")
    ctest(tally, "release")


def step_docs(tally: Tally) -> None:
    tally.add("docs", run(sys.executable, "tools/check_docs.py"))


def step_python(tally: Tally) -> None:
    tests = ROOT / "tests" / "python"
    if not python_side():
        tally.leave_out("pytest", "there is no virtual environment")
        return
    report = BUILD / "release" / "pytest.xml"
    report.unlink(missing_ok=True)
    environment = {"PYTHONPATH": str(BUILD / "release" / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    ok = run(VENV_PYTHON, "-m", "pytest", "-q", f"--junitxml={report}", tests, **environment)
    if report.exists():
        tally.add_junit(report)
    if not ok:
        tally.failures.append("pytest")
        tally.failed += not report.exists()


def step_asan(tally: Tally) -> None:
    # The fuzz preset is the asan preset with coverage: one build serves the tests and the fuzzers.
    fuzzers = [source.stem for source in fuzz_sources()]
    step_sanitizer(tally, "fuzz", fuzzers, ("-DSTAGELINK_TESTS=ON",))


def step_tsan(tally: Tally) -> None:
    step_sanitizer(tally, "tsan", [], ())


def step_sanitizer(
    tally: Tally, preset: str, more_targets: list[str], options: tuple[str, ...]
) -> None:
    if shutil.which("clang++") is None:
        tally.leave_out(f"tests with preset {preset}", "clang++ is not installed")
        return
    options += (f"-DSTAGELINK_TEST_SHARDS={UNIT_TEST_SHARDS}",)
    if build(preset, *SANITIZED, *more_targets, options=options):
        ctest(tally, preset)
    else:
        tally.add(f"build of preset {preset}", False)


@functools.cache
def fixed_addresses() -> tuple[str, ...]:
    """What to write before a command so that its addresses repeat, where that is allowed."""
    words = ("setarch", "-R")
    if shutil.which(words[0]) is None or subprocess.run([*words, "true"], check=False).returncode:
        return ()
    return words


def fuzz_command(program: pathlib.Path, work: pathlib.Path, seconds: int, seed: int) -> list[str]:
    name = program.name
    runs = FUZZ_RUNS_OF_SLOW_TARGETS.get(name, FUZZ_RUNS)
    options = [f"-runs={runs}", f"-seed={seed}", f"-max_total_time={seconds}"]
    options += ["-timeout=10", "-rss_limit_mb=2048", f"-artifact_prefix={work.parent}/{name}-"]
    # Neither the schedule by the time of a run, nor what comparisons teach: they see addresses.
    options += ["-entropic=0", "-use_cmp=0"]
    # Named one by one: the order in which a folder is read is the file system's.
    corpus = ROOT / "fuzz" / "corpus" / name.removeprefix("fuzz_")
    inputs = ",".join(str(path) for path in sorted(corpus.glob("*")))
    options += [f"-seed_inputs={inputs}"] if inputs else []
    return [*fixed_addresses(), str(program), *options, str(work)]


def fuzz_one(program: pathlib.Path, seconds: int, seed: int) -> tuple[str, str]:
    """The target's name, and why it failed: empty when it did not."""
    name = program.name
    work = BUILD / "fuzz" / "work" / name
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for old in work.parent.glob(f"{name}-*"):
        old.unlink()
    if not program.exists():
        print(f"{name}: not built", flush=True)
        return name, "not built"
    log = work.with_suffix(".log")
    with log.open("wb") as out:
        command = fuzz_command(program, work, seconds, seed)
        done = subprocess.run(command, stdout=out, stderr=out, check=False)
    tail = log.read_text(errors="replace").splitlines()[-60:]
    if done.returncode == 0:
        print(f"{name}: {tail[-1] if tail else 'silent'}", flush=True)
        return name, ""
    report = [f"{name}: exit status {done.returncode}, seed {seed}, see {log}", *tail]
    for artifact in sorted(work.parent.glob(f"{name}-*")):
        code = base64.b64encode(artifact.read_bytes()).decode()
        report.append(f"{name}: to run it again: echo {code} | base64 -d >input")
        report.append(f"{name}: and then: {program.relative_to(ROOT)} input")
    print("\n".join(report), flush=True)
    return name, f"exit status {done.returncode} | {key_lines(tail)}"


def fuzz_sources() -> list[pathlib.Path]:
    return sorted((ROOT / "fuzz").rglob("fuzz_*.cc"))


def step_fuzz(seconds: int, seed: int) -> Callable[[Tally], None]:
    def step(tally: Tally) -> None:
        programs = [BUILD / "fuzz" / source.stem for source in fuzz_sources()]
        if shutil.which("clang++") is None:
            tally.leave_out("fuzz targets", "clang++ is not installed")
            return
        with ThreadPoolExecutor(JOBS) as pool:
            for name, why in pool.map(lambda program: fuzz_one(program, seconds, seed), programs):
                tally.add(name, not why)
                if why:
                    tally.reasons.append(f"{name}: {why}")

    return step


def close(tally: Tally, started: float) -> int:
    print()
    for line in tally.left_out:
        print(f"left out: {line}")
    for line in tally.failures:
        print(f"failed: {line}")
    for line in tally.reasons:
        print(f"why: {line}")
    counts = [f"{tally.failed} failed"] if tally.failed else []
    counts.append(f"{tally.passed} passed")
    if tally.skipped:
        counts.append(f"{tally.skipped} skipped")
    print(f"==== {', '.join(counts)} in {time.monotonic() - started:.2f}s ====", flush=True)
    return 1 if tally.failures or tally.failed or not tally.passed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no sanitizers, no fuzzing")
    parser.add_argument("--fuzz-seed", type=int, default=1, help="of every fuzz target; 0: random")
    parser.add_argument("--fuzz-seconds", type=int, default=60, help="at most, for each target")
    arguments = parser.parse_args()

    sanitized = not arguments.quick and shutil.which("clang++") is not None
    steps: list[tuple[str, Callable[[Tally], None]]] = [
        ("shape", step_shape),
        ("docs", step_docs),
        ("venv", step_venv),
        ("release", functools.partial(step_release, sanitized=sanitized)),
        ("python", step_python),
        ("python lint", step_python_lint),
    ]
    if not arguments.quick:
        steps += [
            ("asan", step_asan),
            ("fuzz", step_fuzz(arguments.fuzz_seconds, arguments.fuzz_seed)),
            ("tsan", step_tsan),
        ]
    # In the background of a shell SIGINT is ignored, and children inherit that; tests raise it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tally = Tally()
    started = time.monotonic()
    for name, step in steps:
        begun = time.monotonic()
        print(f"\n==== {name} ====", flush=True)
        step(tally)
        print(f"==== {name}: {time.monotonic() - begun:.1f}s ====", flush=True)
    return close(tally, started)


if __name__ == "__main__":
    sys.exit(main())
