"""The calls of Mooncake's `TransferEngine` on stagelink: "host:port", addresses, 0 or -1."""

from collections.abc import Callable

import stagelink as sl
from stagelink.compat.addressed import AddressedEngine


def _as_code(work: Callable[[], None]) -> int:
    try:
        work()
    except (sl.Error, KeyError):
        return -1
    return 0


class TransferEngine:
    def __init__(self) -> None:
        self._made: AddressedEngine | None = None

    @property
    def _engine(self) -> AddressedEngine:
        assert self._made is not None
        return self._made

    def initialize(self, host: str, metadata: str, protocol: str, device_name: str) -> int:
        if metadata != "P2PHANDSHAKE":
            return -1

        def open_it() -> None:
            self._made = AddressedEngine(host if ":" in host else f"{host}:0")

        return _as_code(open_it)

    def get_rpc_port(self) -> int:
        return self._engine.port

    def register_memory(self, address: int, size: int) -> int:
        return _as_code(lambda: self._engine.register(address, size))

    def unregister_memory(self, address: int) -> int:
        return _as_code(lambda: self._engine.unregister(address))

    def batch_register_memory(self, addresses: list[int], sizes: list[int]) -> int:
        codes = [self.register_memory(*pair) for pair in zip(addresses, sizes, strict=True)]
        return min(codes, default=0)

    def batch_unregister_memory(self, addresses: list[int]) -> int:
        return min((self.unregister_memory(address) for address in addresses), default=0)

    def transfer_sync_write(self, target: str, source: int, destination: int, size: int) -> int:
        return self.batch_transfer_sync_write(target, [source], [destination], [size])

    def transfer_sync_read(self, target: str, destination: int, source: int, size: int) -> int:
        return self.batch_transfer_sync_read(target, [destination], [source], [size])

    def batch_transfer_sync_write(
        self, target: str, sources: list[int], destinations: list[int], sizes: list[int]
    ) -> int:
        return _as_code(lambda: self._engine.write(target, sources, destinations, sizes))

    def batch_transfer_sync_read(
        self, target: str, destinations: list[int], sources: list[int], sizes: list[int]
    ) -> int:
        return _as_code(lambda: self._engine.read(target, destinations, sources, sizes))

    def close(self) -> None:
        self._engine.close()
