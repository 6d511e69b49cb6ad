"""Stands in for ``mooncake.engine``, on stagelink's engine.

``TransferEngine`` has the calls of Mooncake's that vLLM uses, with their arguments and answers: 0
is success, anything else is not, and nothing is raised. It moves memory of the host, between
processes and hosts. ``enable()`` lets ``from mooncake.engine import TransferEngine`` find it where
the package is not installed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence

import stagelink as sl

from ..pull.log_limit import quiet_logger
from .addressed import AddressedEngine
from .stand_in import stand_in

__all__ = ["TransferEngine", "enable"]

_logger = quiet_logger(__name__)

_FAILED = -1

# Protocols of the original, which leave the choice to the engine, and ours.
_TRANSPORTS: dict[str, list[str] | None] = {
    **dict.fromkeys(("", "auto", "rdma", "efa", "nvlink")),
    **{name: [name] for name in ("shm", "cma", "unix", "tcp")},
}


class TransferEngine:
    """Reads and writes memory of peers by address. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engine: AddressedEngine | None = None

    def initialize(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str
    ) -> int:
        """Listen at ``local_hostname``, with or without ``:port``.

        ``metadata_server`` has to be ``P2PHANDSHAKE``: peers are asked for what they have.
        """
        if metadata_server != "P2PHANDSHAKE":
            _logger.error("metadata server %r: only P2PHANDSHAKE is known", metadata_server)
            return _FAILED
        if protocol not in _TRANSPORTS:
            known = ", ".join(filter(None, _TRANSPORTS))
            _logger.error("protocol %r is none of %s", protocol, known)
            return _FAILED
        with self._lock:
            if self._engine is not None:
                _logger.error("the engine is initialized already")
                return _FAILED

            def open_it() -> None:
                self._engine = AddressedEngine(_with_port(local_hostname), _TRANSPORTS[protocol])

            return _code_of(open_it)

    def get_rpc_port(self) -> int:
        """Return the port that peers connect to, -1 before ``initialize``."""
        engine = self._engine
        return -1 if engine is None else engine.port

    def register_memory(self, buffer_addr: int, capacity: int) -> int:
        """Let peers read and write memory. Ranges must not overlap."""
        return self._do(lambda engine: engine.register(buffer_addr, capacity))

    def unregister_memory(self, buffer_addr: int) -> int:
        """Take a registration back, by the address that it begins at."""
        return self._do(lambda engine: engine.unregister(buffer_addr))

    def batch_register_memory(self, buffer_addrs: Sequence[int], capacities: Sequence[int]) -> int:
        """Register all or, where one cannot be, none."""
        if len(buffer_addrs) != len(capacities):
            _logger.error("there must be a length for each address")
            return _FAILED
        done: list[int] = []
        for address, length in zip(buffer_addrs, capacities, strict=True):
            if self.register_memory(address, length) != 0:
                self.batch_unregister_memory(done)
                return _FAILED
            done.append(address)
        return 0

    def batch_unregister_memory(self, buffer_addrs: Sequence[int]) -> int:
        """Take several back; one that fails keeps no other."""
        codes = [self.unregister_memory(address) for address in buffer_addrs]
        return next((code for code in codes if code != 0), 0)

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
    ) -> int:
        """Write ranges of the peer at ``host:port`` and wait for all of them."""

        def write(engine: AddressedEngine) -> None:
            _go_together(buffers, peer_buffer_addresses, lengths)
            engine.write(target_hostname, buffers, peer_buffer_addresses, lengths)

        return self._do(write)

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
    ) -> int:
        """Read ranges of the peer at ``host:port`` and wait for all of them."""

        def read(engine: AddressedEngine) -> None:
            _go_together(buffers, peer_buffer_addresses, lengths)
            engine.read(target_hostname, buffers, peer_buffer_addresses, lengths)

        return self._do(read)

    def close(self) -> None:
        """End what runs and give everything back. Ours alone; also when the object goes."""
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            _code_of(engine.close)

    def _do(self, work: Callable[[AddressedEngine], None]) -> int:
        engine = self._engine
        if engine is None:
            _logger.error("the engine is not initialized")
            return _FAILED
        return _code_of(lambda: work(engine))


def enable() -> bool:
    """Make ``mooncake.engine`` mean this module, in this process, where it is not installed.

    An installed package stays as it is. Returns whether ``mooncake.engine`` is this module now;
    when it is not, a warning is logged that says so.
    """
    return stand_in(sys.modules[__name__], "mooncake", "engine")


def _with_port(hostname: str) -> str:
    """``host`` or ``host:port``; an IPv6 address may come without brackets."""
    if hostname.startswith("["):
        return hostname if "]:" in hostname else f"{hostname}:0"
    if hostname.count(":") > 1:
        return f"[{hostname}]:0"
    return hostname if ":" in hostname else f"{hostname}:0"


def _go_together(buffers: Sequence[int], addresses: Sequence[int], lengths: Sequence[int]) -> None:
    if not len(buffers) == len(addresses) == len(lengths):
        raise sl.InvalidArgument("buffers, addresses and lengths differ in number")
    if len(lengths) == 0 or min(lengths) <= 0:
        raise sl.InvalidArgument("there must be a range, and each of a length above 0")


def _code_of(work: Callable[[], None]) -> int:
    try:
        work()
    except (sl.Error, OverflowError, TypeError, ValueError) as error:
        _logger.error("%s", error)
        return _FAILED
    return 0
