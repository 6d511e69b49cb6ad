"""The calls of the Yuanrong `TransferEngine` on stagelink: "ip:port", addresses, a Result."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from call_shapes.addresses import AddressedEngine

import stagelink as sl


class ErrorCode(IntEnum):
    OK = 0
    INVALID = 2
    NOT_READY = 8
    NOT_AUTHORIZED = 9
    RUNTIME_ERROR = 5


@dataclass
class Result:
    code: ErrorCode = ErrorCode.OK
    message: str = ""

    def is_ok(self) -> bool:
        return self.code is ErrorCode.OK

    def is_error(self) -> bool:
        return not self.is_ok()

    def to_string(self) -> str:
        return f"{self.code.name}: {self.message}" if self.message else self.code.name


def _as_result(work: Callable[[], None]) -> Result:
    try:
        work()
    except (sl.NotRegistered, sl.Superseded, sl.Permission) as error:
        return Result(ErrorCode.NOT_AUTHORIZED, str(error))
    except sl.InvalidArgument as error:
        return Result(ErrorCode.INVALID, str(error))
    except (sl.Unreachable, sl.PeerLost, sl.TimedOut) as error:
        return Result(ErrorCode.NOT_READY, str(error))
    except sl.Error as error:
        return Result(ErrorCode.RUNTIME_ERROR, str(error))
    return Result()


class TransferEngine:
    def __init__(self) -> None:
        self._engine = AddressedEngine()

    def initialize(self, local_hostname: str, protocol: str, device_name: str) -> Result:
        return _as_result(lambda: self._engine.open(local_hostname))

    def get_rpc_port(self) -> int:
        assert self._engine.engine is not None
        return int(self._engine.engine.address.rsplit(":", 1)[1])

    def register_memory(self, address: int, size: int) -> Result:
        if self._engine.overlaps(address, size):
            return Result(ErrorCode.INVALID, "the range overlaps a registered one")
        return _as_result(lambda: self._engine.register(address, size))

    def batch_register_memory(self, addresses: list[int], sizes: list[int]) -> Result:
        results = [self.register_memory(*pair) for pair in zip(addresses, sizes, strict=True)]
        return next((result for result in results if result.is_error()), Result())

    def unregister_memory(self, address: int) -> Result:
        return _as_result(lambda: self._engine.unregister(address))

    def transfer_sync_read(self, target: str, local: int, peer: int, size: int) -> Result:
        return self.batch_transfer_sync_read(target, [local], [peer], [size])

    def batch_transfer_sync_read(
        self, target: str, local: list[int], peer: list[int], sizes: list[int]
    ) -> Result:
        return _as_result(lambda: self._engine.move(False, target, local, peer, sizes))

    def finalize(self) -> Result:
        return _as_result(self._engine.close)
