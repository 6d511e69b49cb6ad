"""The data plane of ``protocol: ascend``: memory of an NPU behind the engine of yr.datasystem.

Keys, claims, waiting and time limits are the connector's own, as with every protocol; only the
bytes travel by the package's ``TransferEngine``, from NPU to NPU.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import socket
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidArgument, NoSpace, NotFound, PeerLost

__all__ = ["AscendPlane", "EngineMissing"]

PACKAGE = "openyuanrong-datasystem==0.8.1"
_AUTO = frozenset({"", "auto"})
_AUTO_HOSTS = frozenset({"", "auto", "*", "0.0.0.0", "::"})
_RANK_VARIABLES = (
    "LOCAL_RANK",
    "VLLM_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
)
_PORT_TRIES = 8
_SIOCGIFADDR = 0x8915
_TURNS = 64


class EngineMissing(NotFound, ImportError):
    """What ``protocol: ascend`` needs is not installed; the message says what and how to get it."""


class AscendPlane:
    """A registered pool on an NPU, and reads into it.

    The package's engine pairs the reads of two peers in the order that they come in: those from one
    peer take turns here. It knows no time limit of its own but ten seconds without a byte.

    Thread-safety: all methods may run at the same time.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Register the pool. Raises EngineMissing, or InvalidArgument naming the option."""
        self.device_name = device_of(options["device_name"])
        make_engine = load_engine()
        device = options["pool_device"]
        self._pool = make_pool(
            self.device_name if device == "npu" else device, options["memory_pool_size"]
        )
        self._turns = [threading.Lock() for _ in range(_TURNS)]
        self._engine = make_engine()
        self._host = _host_of(options)
        self._port = self._initialize(options)
        registered = self._engine.register_memory(self._pool.address, self._pool.nbytes)
        if registered.is_error():
            self._engine.finalize()
        self._check(registered, f"register memory pool ({self._pool.nbytes} bytes)")

    # What stagelink's connector calls: bindings/pull/py_data_plane.h.

    def memory(self) -> tuple[int, int]:
        """Address and size of the pool."""
        return self._pool.address, self._pool.nbytes

    def endpoint(self) -> tuple[str, int]:
        """Where peers' engines reach this one."""
        return self._host, self._port

    def copy_in(self, sources: Sequence[tuple[int, int]], target: int) -> str | None:
        """Copy memory of the host into the pool, one run behind the other."""
        for address, size in sources:
            self._pool.write(
                target - self._pool.address,
                memoryview((ctypes.c_char * size).from_address(address)),
            )
            target += size
        return None

    def read(
        self,
        host: str,
        port: int,
        local: list[int],
        remote: list[int],
        sizes: list[int],
        seconds: float,
    ) -> str | None:
        """Read ranges of a peer's pool; None, or why not."""
        target = f"{host}:{port}"
        turn = self._turns[hash(target) % _TURNS]
        if not turn.acquire(timeout=max(seconds, 0.001)):
            return f"read from {target}: other reads from there took all of {seconds:.1f} s"
        try:
            result = self._engine.batch_transfer_sync_read(target, local, remote, sizes)
        finally:
            turn.release()
        self._pool.synchronize()
        return f"read from {target} failed: {result.to_string()}" if result.is_error() else None

    # What the class in Python calls.

    def view(self, address: int, size: int) -> Any:
        """Return a piece of the pool as a tensor of uint8."""
        return self._pool.view(address - self._pool.address, size)

    def to_bytes(self, address: int, size: int) -> bytes:
        """Return a copy of a piece of the pool."""
        raw: bytes = self._pool.read(address - self._pool.address, size)
        return raw

    def write(self, address: int, tensor: Any) -> None:
        """Copy a tensor's bytes into a piece of the pool."""
        self._pool.write(address - self._pool.address, tensor)

    def synchronize(self) -> None:
        """Wait until all that was queued on the device is done."""
        self._pool.synchronize()

    def close(self) -> None:
        """Take the pool back from the engine and end it."""
        for result in (
            self._engine.unregister_memory(self._pool.address),
            self._engine.finalize(),
        ):
            if result.is_error():
                raise PeerLost(f"closing the transfer engine: {result.to_string()}")

    def _initialize(self, options: Mapping[str, Any]) -> int:
        wanted = options["rpc_port"]
        for last in (False,) * (_PORT_TRIES - 1) + (True,):
            port = wanted or _free_port(self._host)  # The engine takes no port 0.
            endpoint = f"{self._host}:{port}"
            result = self._engine.initialize(endpoint, "ascend", self.device_name)
            if not result.is_error():
                return int(self._engine.get_rpc_port())
            if wanted or last:
                self._check(result, f"initialize transfer engine on {endpoint}")
        raise AssertionError("the last try has raised")

    @staticmethod
    def _check(result: Any, action: str) -> None:
        if result.is_error():
            raise InvalidArgument(f"{action} failed: {result.to_string()}", "unsupported")


class NpuPool:
    """Memory of an NPU, as torch has it."""

    def __init__(self, torch: Any, device: str, size: int) -> None:
        self._torch = torch
        self._memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.address = int(self._memory.data_ptr())
        self.nbytes = size

    def view(self, offset: int, size: int) -> Any:
        """Return a piece as a tensor."""
        return self._memory[offset : offset + size]

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of a piece."""
        return bytes(self.view(offset, size).cpu().numpy().tobytes())

    def write(self, offset: int, data: Any) -> None:
        """Copy a tensor, or memory of the host, into a piece, and wait until it is there.

        Waits for all streams of the device: what was computed on any of them may be the source.
        """
        torch = self._torch
        if not isinstance(data, torch.Tensor):
            data = torch.frombuffer(data, dtype=torch.uint8)
        self.synchronize()
        self.view(offset, data.nbytes).copy_(data.reshape(-1).view(torch.uint8))
        self.synchronize()

    def synchronize(self) -> None:
        """Wait until everything that was queued on the device is done."""
        self._torch.npu.synchronize(self._memory.device)


def load_engine() -> Any:
    """Return the class ``TransferEngine`` of yr.datasystem."""
    try:
        from yr.datasystem import TransferEngine
    except (ImportError, AttributeError) as error:
        raise EngineMissing(
            "protocol `ascend` needs the transfer engine of the Yuanrong Datasystem, which is not "
            f"there ({error}): pip install {PACKAGE} (Python 3.9 to 3.11), or take `protocol: "
            "auto` with `memory_pool_device: cpu`",
            "unsupported",
        ) from error
    return TransferEngine


def make_pool(device: str, size: int) -> Any:
    """Return a pool on an NPU."""
    try:
        import torch
        import torch_npu  # noqa: F401 - makes torch.npu
    except ImportError as error:
        raise EngineMissing(
            f"protocol `ascend` keeps its pool on an NPU ({device}), for which torch and torch_npu "
            f"are needed ({error}); without an NPU take `protocol: auto` with "
            "`memory_pool_device: cpu`",
            "unsupported",
        ) from error
    try:
        return NpuPool(torch, device, size)
    except RuntimeError as error:
        raise NoSpace(
            f"memory_pool_size: {size} bytes on {device} cannot be had: {error}"
        ) from error


def device_of(name: str) -> str:
    """Return the NPU that ``device_name`` names: ``npu:N``, or of ``auto`` this process's."""
    if name.lower() in _AUTO:
        return f"npu:{_local_device()}"
    if re.fullmatch(r"npu:\d+", name) is None:
        raise InvalidArgument(
            f"device_name is {name!r}: protocol `ascend` takes `npu:N` or `auto`", "unsupported"
        )
    return name


def _local_device() -> int:
    """The device that the worker has chosen, else the rank that its launcher has given it.

    A rank among tensor-parallel ones alone would send the ranks of other groups to one device.
    """
    npu = getattr(sys.modules.get("torch"), "npu", None)
    if npu is not None and npu.is_initialized():
        return int(npu.current_device())
    for variable in _RANK_VARIABLES:
        value = os.environ.get(variable, "")
        if value.isdigit():
            return int(value)
    raise InvalidArgument(
        "device_name is `auto`, and which NPU is this process's is not known: no device is chosen "
        f"and none of {', '.join(_RANK_VARIABLES)} is set; write `device_name: npu:N`"
    )


def _host_of(options: Mapping[str, Any]) -> str:
    """The IPv4 address that the engine listens at; it knows no others."""
    host = str(options["advertise_host"] or options["host"])
    if host.lower() in _AUTO_HOSTS and options["interface"]:
        return _address_of(str(options["interface"]))
    if host.lower() in _AUTO_HOSTS:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))  # Sends nothing: asks for the route.
                return str(probe.getsockname()[0])
            except OSError:
                return "127.0.0.1"
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0])
    except OSError as error:
        raise InvalidArgument(
            f"host {host!r} has no IPv4 address, which protocol `ascend` needs: {error}"
        ) from error


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24])
        except OSError as error:
            raise InvalidArgument(
                f"interface {interface!r} has no IPv4 address, which protocol `ascend` needs: "
                f"{error}"
            ) from error


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
