"""A pickle that is sent to an engine stays bytes, and the package never makes objects of bytes."""

import os
import pickle
import re
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stagelink as sl

LISTENING = "0A"


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., int], tuple[str]]:
        return (os.system, (f"touch {self.marker}",))


def own_socket_inodes() -> set[str]:
    inodes = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        if match := re.fullmatch(r"socket:\[(\d+)\]", target):
            inodes.add(match[1])
    return inodes


def listening_sockets() -> Iterator[tuple[socket.AddressFamily, tuple[str, int] | str]]:
    """The address of every listening socket of this process, as `ss -lp` shows them."""
    inodes = own_socket_inodes()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in inodes:
                port = int(fields[1].rsplit(":", 1)[1], 16)
                yield family, ("127.0.0.1" if family == socket.AF_INET else "::1", port)
    for line in Path("/proc/self/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        # Flag 0x10000: it accepts connections.
        if int(fields[3], 16) & 0x10000 and fields[6] in inodes and len(fields) > 7:
            yield socket.AF_UNIX, fields[7]


def send_and_wait(family: socket.AddressFamily, address: tuple[str, int] | str, raw: bytes) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as guest:
        guest.settimeout(10)
        guest.connect(address)
        try:
            guest.sendall(raw)
            guest.shutdown(socket.SHUT_WR)
            while guest.recv(4096):
                pass
        except OSError:
            pass  # It hung up at the first wrong byte.


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
        sockets = list(listening_sockets())
        families = {family for family, _ in sockets}
        assert {socket.AF_INET, socket.AF_UNIX} <= families, sockets
        for count, (family, address, raw) in enumerate(
            ((family, address, raw) for family, address in sockets for raw in tries), start=1
        ):
            send_and_wait(family, address, raw)
            assert failures(engine) == count
        log = [line for line in capfd.readouterr().err.splitlines() if "[target]" in line]
        assert len(log) == len(sockets) * len(tries), log
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
