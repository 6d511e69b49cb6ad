"""What a stranger throws at the listening sockets of this process."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_LISTENING = "0A"
_ACCEPTS = 0x10000  # Of a UNIX socket: it accepts connections.


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., int], tuple[str]]:
        return (os.system, (f"touch {self.marker}",))


class Door(NamedTuple):
    """A socket that accepts connections."""

    family: socket.AddressFamily
    kind: socket.SocketKind
    address: tuple[str, int] | str

    def throw(self, raw: bytes, timeout_s: float = 10) -> None:
        """Say `raw` and wait until the other side has hung up, or says nothing for so long."""
        with socket.socket(self.family, self.kind) as guest:
            guest.settimeout(timeout_s)
            guest.connect(self.address)
            try:
                guest.sendall(raw)
                guest.shutdown(socket.SHUT_WR)
                while guest.recv(4096):
                    pass
            except OSError:
                pass  # It hung up at the first wrong byte.


def _own_socket_inodes() -> set[str]:
    inodes = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        if match := re.fullmatch(r"socket:\[(\d+)\]", target):
            inodes.add(match[1])
    return inodes


def listening_doors() -> Iterator[Door]:
    """Every listening socket of this process, as `ss -lp` shows them."""
    inodes = _own_socket_inodes()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and fields[9] in inodes:
                host = "127.0.0.1" if family == socket.AF_INET else "::1"
                port = int(fields[1].rsplit(":", 1)[1], 16)
                yield Door(family, socket.SOCK_STREAM, (host, port))
    for line in Path("/proc/self/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & _ACCEPTS and fields[6] in inodes and len(fields) > 7:
            yield Door(socket.AF_UNIX, socket.SocketKind(int(fields[4], 16)), fields[7])
