"""What importing the package does, what the module carries, and what its types say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import stagelink as sl
from stagelink import _core, errors

SOURCE = Path(__file__).parents[3]
MODULE = Path(_core.__file__)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments, "-c", code], capture_output=True, text=True, timeout=60
    )


def test_importing_starts_no_thread_and_opens_nothing() -> None:
    done = run_python(
        "import os\n"
        "look = lambda: (os.listdir('/proc/self/task'), os.listdir('/proc/self/fd'),\n"
        "                [l for l in open('/proc/self/maps') if 'memfd' in l or '/dev/shm' in l])\n"
        "before = look()\n"
        "import stagelink\n"
        "assert look() == before, (before, look())\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_needs_neither_numpy_nor_torch() -> None:
    done = run_python(
        "import sys, stagelink as sl\n"
        "with sl.Engine() as engine: engine.register(bytearray(8)).deregister()\n"
        "print([m for m in ('numpy', 'torch') if m in sys.modules])"
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_module_needs_only_the_c_and_cpp_runtime() -> None:
    text = subprocess.run(["readelf", "-d", MODULE], capture_output=True, text=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
    allowed = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0"}
    allowed |= {"librt.so.1", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    if "san.so" in text:
        pytest.skip("a sanitizer build")
    assert needed <= allowed


def test_the_module_exports_its_entry_point_and_nothing_else() -> None:
    text = subprocess.run(
        ["nm", "-D", "--defined-only", MODULE], capture_output=True, text=True, check=True
    ).stdout
    assert [line.split()[-1] for line in text.splitlines()] == ["PyInit__core"]


def test_the_plug_in_of_the_broker_exports_its_entry_point_and_nothing_else() -> None:
    places = (Path(MODULE).parent, Path(MODULE).parents[2])  # Installed, or in a build folder.
    found = [at for at in (place / "stagelink-yuanrong-sdk.so" for place in places) if at.exists()]
    if not found:
        pytest.skip("what the broker's plug-in exports was not looked at: it was not built")
    text = subprocess.run(
        ["nm", "-D", "--defined-only", found[0]], capture_output=True, text=True, check=True
    ).stdout
    assert [line.split()[-1] for line in text.splitlines()] == ["stagelink_sdk_plugin"]


def test_every_code_has_its_exception_and_every_exception_its_code() -> None:
    classes = {
        cls.code: cls.scope
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, sl.Error) and cls is not sl.Error
    }
    assert classes == _core.scopes()
    assert len(classes) == 16
    assert set(_core.reasons().values()) == set(classes)


def test_exceptions_are_exported_and_read_well() -> None:
    error = sl.Limit("1025 peers, at most 1024", "too_many_peers")
    assert str(error) == "1025 peers, at most 1024 [too_many_peers]"
    assert str(sl.PeerLost("gone", "peer_lost")) == "gone"
    assert issubclass(sl.TimedOut, TimeoutError)
    assert issubclass(sl.InvalidArgument, ValueError)
    assert {name for name in vars(errors) if isinstance(vars(errors)[name], type)} <= set(dir(sl))


def test_capabilities_say_why_something_is_missing() -> None:
    found = sl.capabilities()
    assert found["version"] == sl.__version__
    assert found["transports"]["shm"] == {"available": True, "detail": ""}
    assert found["transports"]["unix"]["available"]
    assert found["transports"]["tcp"]["available"]
    for part in found["transports"].values():
        assert part["available"] or part["detail"]


def test_the_stub_is_the_one_that_nanobind_generates(tmp_path: Path) -> None:
    pytest.importorskip("nanobind")
    stub = tmp_path / "_core.pyi"
    patterns = SOURCE / "python" / "stagelink" / "_core.pyi.patterns"
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "stagelink._core"]
        + ["-p", patterns, "-o", stub],
        check=True,
        timeout=60,
    )
    assert stub.read_text() == (SOURCE / "python/stagelink/_core.pyi").read_text()


def test_the_package_and_the_examples_are_strictly_typed() -> None:
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", SOURCE / "pyproject.toml"],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
