"""For a child: the ascend path with memory of the host in the place of an NPU's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from stagelink.pull import ascend


class HostPool:
    """What stagelink.pull.ascend.NpuPool is, without an NPU."""

    def __init__(self, size: int) -> None:
        self._memory = np.zeros(size, np.uint8)
        self.address = self._memory.ctypes.data
        self.nbytes = size
        self.queued: list[Callable[[], None]] = []  # What a device would still be doing.

    def view(self, offset: int, size: int) -> Any:
        return self._memory[offset : offset + size]

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.view(offset, size))

    def write(self, offset: int, data: Any) -> None:
        raw = np.frombuffer(data, np.uint8)
        self.view(offset, raw.size)[:] = raw

    def synchronize(self) -> None:
        while self.queued:
            self.queued.pop(0)()


def prepare(plug_in: str) -> None:
    """Give the engine of yr.datasystem a data plane of the host, and connectors a pool of it."""
    ctypes.CDLL(plug_in, mode=ctypes.RTLD_GLOBAL)
    ascend.make_pool = lambda device, size: HostPool(size)
