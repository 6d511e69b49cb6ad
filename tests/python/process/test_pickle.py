"""A pickle that is sent to an engine stays bytes, and the package never makes objects of bytes."""

import pickle
import re
import socket
import struct
from pathlib import Path

import pytest
from stranger import Bomb, listening_doors

import stagelink as sl


def frame(kind: int, payload: bytes) -> bytes:
    return b"SLK1" + struct.pack("<HHIIQ", kind, 0, len(payload), 0, 0) + payload


def failures(engine: sl.Engine) -> int:
    samples = re.findall(r"^stagelink_failures_total\{.*\} (\d+)$", engine.metrics_text(), re.M)
    return sum(map(int, samples))


def test_a_pickle_at_every_listening_socket_is_refused_and_told_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "unpickled"
    bomb = pickle.dumps(Bomb(marker))
    request = b"POST / HTTP/1.1\r\nContent-Type: application/x-pickle\r\n\r\n" + bomb
    # Raw, as a request of another protocol, and as the payload of a hello.
    tries = [bomb, request, frame(1, bomb)]
    with sl.Engine(name="target") as engine:
        doors = list(listening_doors())
        assert {socket.AF_INET, socket.AF_UNIX} <= {door.family for door in doors}, doors
        throws = [(door, raw) for door in doors for raw in tries]
        for count, (door, raw) in enumerate(throws, start=1):
            door.throw(raw)
            assert failures(engine) == count
        log = [line for line in capfd.readouterr().err.splitlines() if "[target]" in line]
        assert len(log) == len(throws), log
        assert not any("unpickled" in line for line in log), "a guest's bytes stand in the log"
        with sl.Engine(name="honest") as honest:
            honest.connect(engine.descriptor())
    assert not marker.exists()


def test_the_marker_is_made_by_whoever_unpickles(tmp_path: Path) -> None:
    marker = tmp_path / "unpickled"
    pickle.loads(pickle.dumps(Bomb(marker)))
    assert marker.exists()


FORBIDDEN = re.compile(
    r"\bpickle\b|\bmarshal\b|\bshelve\b|recv_pyobj|torch\.load|yaml\.(unsafe_|full_)?load\b"
    r"|\beval\s*\(|\bexec\s*\(|\b__import__\s*\("
)


def test_the_installed_package_never_makes_objects_of_bytes() -> None:
    package = Path(sl.__file__).parent
    sources = [path for path in package.rglob("*") if path.suffix in {".py", ".pyi"}]
    assert sources
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sources
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if FORBIDDEN.search(line)
    ]
    assert not found
    assert FORBIDDEN.search("obj = pickle.loads(raw)")
