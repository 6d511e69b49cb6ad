"""A prefill worker and a decode worker in one process, as the wrapper and the writer see them."""

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from stagelink import _core
from stagelink.moriio import MoRIIOWrapper, MoRIIOWriter, WriteTask

BLOCK = 4096
BLOCKS = 16
LAYERS = ("layer.0", "layer.1", "layer.2")


class Tensor:
    """What the engine asks of a torch tensor."""

    device = SimpleNamespace(type="cpu", index=None)

    def __init__(self, fill: int) -> None:
        self.memory = (ctypes.c_ubyte * (BLOCK * BLOCKS))()
        ctypes.memset(self.memory, fill, len(self.memory))

    def is_contiguous(self) -> bool:
        return True

    def nelement(self) -> int:
        return len(self.memory)

    def element_size(self) -> int:
        return 1

    def data_ptr(self) -> int:
        return ctypes.addressof(self.memory)

    def block(self, index: int) -> bytes:
        return bytes(self.memory[index * BLOCK : (index + 1) * BLOCK])

    def set_block(self, index: int, value: int) -> None:
        ctypes.memset(ctypes.byref(self.memory, index * BLOCK), value, BLOCK)


class Event:
    """Of a layer that is computed when somebody says so."""

    def __init__(self) -> None:
        self.computed = threading.Event()

    def synchronize(self) -> None:
        assert self.computed.wait(30)


@dataclass
class Worker:
    """The part of vLLM's worker that the writer needs."""

    moriio_wrapper: MoRIIOWrapper
    tp_rank: int = 0
    moriio_config: Any = field(
        default_factory=lambda: SimpleNamespace(defer_timeout=30.0, transfer_timeout=30.0)
    )
    caches: dict[str, Tensor] = field(default_factory=dict)
    sessions: list[Any] = field(default_factory=list)
    failure: Exception | None = None

    def get_engine_name_with_dp(self, engine: str, dp_rank: int) -> str:
        return f"{engine}_dp{dp_rank}"

    def _get_built_session(self, engine: str) -> tuple[list[Any], Any]:
        assert engine == "decode_dp0"
        return self.sessions, None

    def _region_session_indices(self, layer: str) -> list[int]:
        return [LAYERS.index(layer)]

    def _compute_block_transfer_offsets(
        self,
        _layer: str,
        local_ids: list[int],
        remote_ids: list[int],
        _meta: Any,
        remote_engine_id: str = "",
    ) -> tuple[list[int], list[int], list[int]]:
        if self.failure is not None:
            raise self.failure
        assert remote_engine_id == "decode_dp0"
        pairs = list(zip(local_ids, remote_ids, strict=True))
        return [BLOCK * a for a, _ in pairs], [BLOCK * b for _, b in pairs], [BLOCK] * len(pairs)


class Pair:
    def __init__(self, consumer: MoRIIOWrapper | None = None) -> None:
        self.engines = [_core.IOEngine(name, _core.IOEngineConfig()) for name in ("p", "d")]
        self.producer = MoRIIOWrapper(self.engines[0], role="producer")
        self.consumer = consumer or MoRIIOWrapper(self.engines[1], role="consumer")
        self.consumer.set_moriio_engine(self.engines[1])
        self.worker = Worker(self.producer)
        self.remote = [Tensor(0) for _ in LAYERS]
        for wrapper in (self.producer, self.consumer):
            wrapper.set_backend_type(_core.BackendType.RDMA)
            wrapper.notify_port = 0
        self.producer.register_remote_engine(self.consumer.get_agent_metadata())
        for index, layer in enumerate(LAYERS):
            self.worker.caches[layer] = Tensor(index + 1)
            local = self.producer.register_local_tensor(self.worker.caches[layer])
            remote = self.consumer.register_local_tensor(self.remote[index])
            unpack = self.producer.get_unpack_memory_metadata
            self.worker.sessions.append(self.producer.build_session(unpack(local), unpack(remote)))
        self.writer = MoRIIOWriter(self.worker)

    def listen(self) -> None:
        self.producer.async_wait_reqid()
        self.consumer.async_wait_reqid()

    def task(self, transfer_id: str, layer: str, event: Any = None, **fields: Any) -> WriteTask:
        host, port = self.consumer.notify_address or ("", 0)
        values = {
            "request_id": "request",
            "transfer_id": transfer_id,
            "dst_engine_id": "decode",
            "local_block_ids": [1, 2],
            "remote_block_ids_hint": None,
            "layer_name": layer,
            "event": event,
            "remote_notify_port": port,
            "remote_ip": host,
        }
        return WriteTask(**(values | fields))

    def close(self) -> None:
        self.writer.shutdown()
        self.producer.shutdown()
        self.consumer.shutdown()
        self.worker.sessions.clear()
        for engine in self.engines:
            engine.close()


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return condition()
        time.sleep(0.001)
    return True
