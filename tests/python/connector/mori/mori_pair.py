"""An IO engine here and one in another process, as the tests of the compat module use them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from child import Child

from stagelink.compat.mori.io import (
    BackendType,
    EngineDesc,
    IOEngine,
    IOEngineConfig,
    MemoryDesc,
    RdmaBackendConfig,
)

# A target that fills 1 MiB with numbers, and does nothing by itself.
TARGET = """
from stagelink.compat.mori.io import *
engine = IOEngine("target", IOEngineConfig("127.0.0.1", 0, options=options))
engine.create_backend(BackendType[backend])
memory = engine.allocate(1 << 20)
array = np.frombuffer(memory, dtype=np.uint32)
array[:] = np.arange(array.size)
desc = engine.register_memory(array.ctypes.data, array.nbytes)
engine.get_engine_desc().pack(), desc.pack()
"""

POP = """
status = None
while status is None:
    status = engine.pop_inbound_transfer_status(key, uid)
int(status.Code()), engine.pop_inbound_transfer_status(key, uid)
"""

# A stopped process is not taken for a lost one.
OPTIONS: dict[str, object] = {"heartbeat_interval": 10}


class FakeTensor:
    """What register_torch_tensor looks at, without torch."""

    class Device:
        def __init__(self, kind: str, index: int | None) -> None:
            self.type = kind
            self.index = index

    def __init__(self, array: np.ndarray[Any, Any], kind: str = "cpu", index: int | None = None):
        self.array = array
        self.device = self.Device(kind, index)

    def is_contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def nelement(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize


class Pair:
    def __init__(
        self,
        child: Callable[..., Child],
        backend: str = "RDMA",
        options: dict[str, object] | None = None,
        config: RdmaBackendConfig | None = None,
    ) -> None:
        self.process = child()
        packed = self.process.run(TARGET, backend=backend, options=OPTIONS)
        self.target = EngineDesc.unpack(packed[0])
        self.remote = MemoryDesc.unpack(packed[1])
        self.engine = IOEngine(
            key="initiator",
            config=IOEngineConfig(host="127.0.0.1", port=0, options=OPTIONS | (options or {})),
        )
        self.engine.create_backend(BackendType[backend], config)
        self.engine.register_remote_engine(self.target)
        self.array = np.zeros(1 << 18, np.uint32)
        self.local = self.engine.register_torch_tensor(FakeTensor(self.array))
        session = self.engine.create_session(self.local, self.remote)
        assert session is not None
        self.session = session

    def popped(self, uid: int) -> tuple[int, object]:
        """The code of the notice of this transfer in the target, and what a second look gives."""
        code, again = self.process.run(POP, key="initiator", uid=uid)
        return code, again
