"""Stands in for the transfer engine of ``yr.datasystem``, on stagelink's engine.

``TransferEngine``, ``Result`` and ``ErrorCode`` have the names, arguments and answers of
openyuanrong-datasystem 0.8.1. Theirs moves memory of Ascend NPUs; this one moves memory of the
host, between processes and hosts. ``enable()`` lets ``from yr.datasystem import TransferEngine``
find it where the package is not installed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from enum import IntEnum

import stagelink as sl

from ..pull.log_limit import quiet_logger
from .addressed import AddressedEngine
from .stand_in import stand_in

__all__ = ["ErrorCode", "Result", "TransferEngine", "enable"]

_logger = quiet_logger(__name__)

# Protocols of the original, which leave the choice to the engine, and ours.
_TRANSPORTS: dict[str, list[str] | None] = {
    **dict.fromkeys(("", "auto", "ascend", "hccl", "npu", "p2p")),
    **{name: [name] for name in ("shm", "cma", "unix", "tcp")},
}


class ErrorCode(IntEnum):
    """The codes of the original."""

    kOk = 0
    kInvalid = 2
    kNotFound = 3
    kRuntimeError = 5
    kNotReady = 8
    kNotAuthorized = 9
    kNotSupported = 36


class Result:
    """What a call answers. Nothing is raised."""

    def __init__(self, code: ErrorCode = ErrorCode.kOk, message: str = "") -> None:
        self._code = code
        self._message = message

    def is_ok(self) -> bool:
        """Whether it was done."""
        return self._code is ErrorCode.kOk

    def is_error(self) -> bool:
        """Whether it was not."""
        return not self.is_ok()

    def get_code(self) -> ErrorCode:
        """What happened."""
        return self._code

    def get_msg(self) -> str:
        """The cause, in words."""
        return self._message

    def to_string(self) -> str:
        """Both, in one line."""
        return f"code={self._code.value}, msg={self._message}"

    def __repr__(self) -> str:
        return f"<Result {self._code.name}: {self._message}>"


class TransferEngine:
    """Reads memory of peers by address. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engine: AddressedEngine | None = None

    def initialize(self, local_hostname: str, protocol: str, device_name: str) -> Result:
        """Listen at ``host:port``; port 0 takes a free one. ``device_name`` is not needed here."""
        if protocol not in _TRANSPORTS:
            return Result(
                ErrorCode.kNotSupported,
                f"protocol {protocol!r} is none of {', '.join(filter(None, _TRANSPORTS))}",
            )
        with self._lock:
            if self._engine is not None:
                return Result(ErrorCode.kInvalid, "the engine is initialized already")

            def open_it() -> None:
                self._engine = AddressedEngine(local_hostname, _TRANSPORTS[protocol])

            return _result_of(open_it)

    def get_rpc_port(self) -> int:
        """Return the port that peers connect to, -1 before ``initialize``."""
        engine = self._engine
        return -1 if engine is None else engine.port

    def register_memory(self, buffer_addr: int, length: int) -> Result:
        """Let peers read memory. Ranges must not overlap."""
        return self._do(lambda engine: engine.register(buffer_addr, length))

    def batch_register_memory(self, buffer_addrs: Sequence[int], lengths: Sequence[int]) -> Result:
        """Register all or, where one cannot be, none."""
        if len(buffer_addrs) != len(lengths):
            return Result(ErrorCode.kInvalid, "there must be a length for each address")
        done: list[int] = []
        for address, length in zip(buffer_addrs, lengths, strict=True):
            result = self.register_memory(address, length)
            if result.is_error():
                self.batch_unregister_memory(done)
                return result
            done.append(address)
        return Result()

    def unregister_memory(self, buffer_addr: int) -> Result:
        """Take a registration back, by the address that it begins at."""
        return self._do(lambda engine: engine.unregister(buffer_addr), ErrorCode.kNotFound)

    def batch_unregister_memory(self, buffer_addrs: Sequence[int]) -> Result:
        """Take several back; the first failure is told, the others are taken back all the same."""
        results = [self.unregister_memory(address) for address in buffer_addrs]
        return next((result for result in results if result.is_error()), Result())

    def transfer_sync_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int
    ) -> Result:
        """Read one range of the peer at ``host:port`` and wait for it."""
        return self.batch_transfer_sync_read(
            target_hostname, [buffer], [peer_buffer_address], [length]
        )

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
    ) -> Result:
        """Read ranges of one peer and wait for all of them."""

        def read(engine: AddressedEngine) -> None:
            if not len(buffers) == len(peer_buffer_addresses) == len(lengths):
                raise sl.InvalidArgument("buffers, addresses and lengths differ in number")
            if len(lengths) == 0 or min(lengths) <= 0:
                raise sl.InvalidArgument("there must be a range, and each of a length above 0")
            engine.read(target_hostname, buffers, peer_buffer_addresses, lengths)

        return self._do(read)

    def finalize(self) -> Result:
        """End what runs and give everything back. May be called again."""
        with self._lock:
            engine, self._engine = self._engine, None
        return Result() if engine is None else _result_of(engine.close)

    def _do(
        self,
        work: Callable[[AddressedEngine], None],
        not_registered: ErrorCode = ErrorCode.kNotAuthorized,
    ) -> Result:
        engine = self._engine
        if engine is None:
            return Result(ErrorCode.kNotReady, "the engine is not initialized")
        return _result_of(lambda: work(engine), not_registered)


def enable() -> bool:
    """Make ``yr.datasystem`` mean this module, in this process, where it is not installed.

    An installed package stays as it is. Returns whether ``yr.datasystem`` is this module now; when
    it is not, a warning is logged that says so.
    """
    return stand_in(sys.modules[__name__], "yr", "datasystem")


def _result_of(
    work: Callable[[], None], not_registered: ErrorCode = ErrorCode.kNotAuthorized
) -> Result:
    try:
        work()
    except (sl.NotRegistered, sl.Superseded) as error:
        return Result(not_registered, str(error))
    except sl.Permission as error:
        return Result(ErrorCode.kNotAuthorized, str(error))
    except (sl.InvalidArgument, OverflowError, TypeError) as error:
        return Result(ErrorCode.kInvalid, str(error))
    except (sl.Unreachable, sl.PeerLost, sl.TimedOut, sl.Busy) as error:
        return Result(ErrorCode.kNotReady, str(error))
    except sl.Error as error:
        return Result(ErrorCode.kRuntimeError, str(error))
    return Result()
