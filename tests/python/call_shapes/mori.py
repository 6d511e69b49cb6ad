"""The calls of mori's `IOEngine` on stagelink: descriptors, offsets, sessions, batches."""

import itertools
import pickle
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import stagelink as sl


class StatusCode(IntEnum):
    SUCCESS = 0
    INIT = 1
    IN_PROGRESS = 2
    ERR_INVALID_ARGS = 11
    ERR_NOT_FOUND = 12
    ERR_RDMA_OP = 13
    ERR_BAD_STATE = 14


_CODES = {
    "call": StatusCode.ERR_INVALID_ARGS,
    "region": StatusCode.ERR_NOT_FOUND,
    "engine": StatusCode.ERR_BAD_STATE,
}


class TransferStatus:
    def __init__(self, transfer: sl.Transfer | None, error: sl.Error | None = None) -> None:
        self._transfer = transfer
        self._error = error

    def Code(self) -> StatusCode:
        if self._transfer is not None and self._transfer.poll() == "running":
            return StatusCode.IN_PROGRESS
        error = self._failure()
        if error is None:
            return StatusCode.SUCCESS
        return _CODES.get(error.scope, StatusCode.ERR_RDMA_OP)

    def Message(self) -> str:
        return "" if self._failure() is None else str(self._failure())

    def InProgress(self) -> bool:
        return self.Code() is StatusCode.IN_PROGRESS

    def Succeeded(self) -> bool:
        return self.Code() is StatusCode.SUCCESS

    def Failed(self) -> bool:
        return self.Code() > 10

    def Wait(self) -> None:
        try:
            if self._transfer is not None:
                self._transfer.wait()
        except sl.Error:
            pass  # Told by Code() and Message().

    def _failure(self) -> sl.Error | None:
        return self._error if self._transfer is None else self._transfer.error


@dataclass
class EngineDesc:
    key: str
    blob: bytes

    def pack(self) -> bytes:
        return pickle.dumps(self)

    @staticmethod
    def unpack(packed: bytes) -> "EngineDesc":
        desc = pickle.loads(packed)
        assert isinstance(desc, EngineDesc)
        return desc


@dataclass
class MemoryDesc:
    engine_key: str
    id: int
    data: int
    size: int
    blob: bytes

    def pack(self) -> bytes:
        return pickle.dumps(self)

    @staticmethod
    def unpack(packed: bytes) -> "MemoryDesc":
        desc = pickle.loads(packed)
        assert isinstance(desc, MemoryDesc)
        return desc


@dataclass
class IOEngineConfig:
    host: str = "127.0.0.1"
    port: int = 0


@dataclass
class IOEngineSession:
    peer: sl.Peer
    session: sl.Session
    uids: "itertools.count[int]" = field(default_factory=itertools.count)

    def allocate_transfer_uid(self) -> int:
        return next(self.uids)

    def alive(self) -> bool:
        return self.peer.phase == "connected"

    def batch_read(self, local: Any, remote: Any, sizes: Any, uid: int) -> TransferStatus:
        return self._submit(self.session.read, local, remote, sizes, uid)

    def batch_write(self, local: Any, remote: Any, sizes: Any, uid: int) -> TransferStatus:
        return self._submit(self.session.write, local, remote, sizes, uid)

    read = batch_read
    write = batch_write

    def _submit(self, start: Any, local: Any, remote: Any, sizes: Any, uid: int) -> TransferStatus:
        try:
            transfer: sl.Transfer = start(local, remote, sizes)
            self.peer.notify(uid.to_bytes(8, "little"), after=transfer)
            return TransferStatus(transfer)
        except sl.Error as error:
            return TransferStatus(None, error)


class IOEngine:
    def __init__(self, key: str, config: IOEngineConfig) -> None:
        self.engine = sl.Engine(name=key, bind=f"{config.host}:{config.port}")
        self._peers: dict[str, sl.Peer] = {}
        self._regions: dict[int, sl.Region] = {}
        self._inbound: dict[tuple[str, int], StatusCode] = {}
        self._ids = itertools.count()

    def get_engine_desc(self) -> EngineDesc:
        return EngineDesc(self.engine.name, self.engine.descriptor())

    def register_remote_engine(self, desc: EngineDesc) -> None:
        self._peers[desc.key] = self.engine.connect(desc.blob)

    def deregister_remote_engine(self, desc: EngineDesc) -> None:
        self._peers.pop(desc.key).close()

    def register_memory(self, address: int, size: int) -> MemoryDesc:
        return self._keep(self.engine.register((address, size)))

    def register_torch_tensor(self, tensor: object) -> MemoryDesc:
        try:
            return self._keep(self.engine.register(tensor))
        except sl.InvalidArgument as error:
            raise RuntimeError(str(error)) from error

    def deregister_memory(self, desc: MemoryDesc) -> None:
        self._regions.pop(desc.id).deregister()

    def create_session(self, local: MemoryDesc, remote: MemoryDesc) -> IOEngineSession | None:
        peer = self._peers.get(remote.engine_key)
        region = self._regions.get(local.id)
        if peer is None or region is None:
            return None
        session = peer.session(local=[region], remote=[sl.RegionDesc.unpack(remote.blob)])
        return IOEngineSession(peer, session)

    def pop_inbound_transfer_status(self, remote_key: str, uid: int) -> StatusCode | None:
        for message in self.engine.notifications():
            code = StatusCode.SUCCESS if message.outcome == "ok" else StatusCode.ERR_RDMA_OP
            self._inbound[message.source_name, int.from_bytes(message.payload, "little")] = code
        return self._inbound.pop((remote_key, uid), None)

    def close(self) -> None:
        self.engine.close()

    def _keep(self, region: sl.Region) -> MemoryDesc:
        number = next(self._ids)
        self._regions[number] = region
        return MemoryDesc(
            self.engine.name, number, region.address, region.nbytes, region.descriptor()
        )
