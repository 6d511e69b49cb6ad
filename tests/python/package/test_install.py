"""A wheel of this source in a fresh environment without a network."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3]
PROGRAM = """
import os, signal
signal.alarm(60)
import stagelink as sl
reader, writer = os.pipe()
pid = os.fork()
with sl.Engine() as engine:
    if pid == 0:
        pool = engine.allocate(4096)
        memoryview(pool)[:5] = b"hello"
        os.write(writer, len(engine.descriptor()).to_bytes(4, "little"))
        os.write(writer, engine.descriptor() + pool.descriptor())
        assert engine.notifications("30s")
    else:
        size = int.from_bytes(os.read(reader, 4), "little")
        blob = os.read(reader, 65536)
        mine = bytearray(5)
        peer = engine.connect(blob[:size])
        peer.session(engine.register(mine), blob[size:]).read(0, 0, 5).wait("10s")
        peer.notify(b"done")
        assert mine == b"hello"
        assert os.waitpid(pid, 0)[1] == 0
        print(sl.__version__, sl.capabilities()["transports"]["shm"])
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def run(*command: str | Path) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["LD_LIBRARY_PATH"] = ""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=3000, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("scikit_build_core")
    pytest.importorskip("nanobind")
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    run(*pip, "--wheel-dir", folder, SOURCE)
    [file] = folder.glob("stagelink-*.whl")
    return file


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin/python", "-m", "pip", "install", "--no-index", wheel)
    return folder


def test_the_wheel_holds_the_package_its_types_and_the_command(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("__init__.py", "errors.py", "_core.pyi", "py.typed"):
        assert f"stagelink/{name}" in names
    assert any(name.endswith(".data/scripts/stagelink") for name in names)
    assert not any(name.startswith(("tests/", "src/", "include/")) for name in names)
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert f"-{python}-{python}-linux" in wheel.name


def test_two_processes_transfer_from_the_installed_package(environment: Path) -> None:
    out = run(environment / "bin/python", "-c", PROGRAM)
    assert "'available': True" in out


def test_what_is_installed_needs_only_the_c_and_cpp_runtime(environment: Path) -> None:
    binaries = [*environment.rglob("stagelink/*.so"), environment / "bin/stagelink"]
    assert len(binaries) == 2
    for binary in binaries:
        needed = re.findall(r"\(NEEDED\).*\[(.*?)\.so", run("readelf", "-d", binary))
        assert set(needed) <= {"libc", "libm", "libstdc++", "libgcc_s", "libpthread", "libdl"} | {
            "librt",
            "ld-linux-x86-64",
            "ld-linux-aarch64",
        }


def test_the_command_is_installed(environment: Path) -> None:
    assert run(environment / "bin/stagelink", "--help")
