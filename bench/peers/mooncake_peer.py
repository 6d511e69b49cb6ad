"""The Mooncake transfer engine on the work unit. Between two processes of one host its wheel has
TCP only. Its default queues refuse a batch of 4096 blocks, so they are made longer."""

from __future__ import annotations

import os
import struct
from importlib import metadata
from typing import Any

import numpy as np
import peer_harness as harness

QUEUE_LIMITS = (
    "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER",
    "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER",
)
HOST = "127.0.0.1"


def make_engine() -> Any:
    from mooncake.engine import (
        TransferEngine,
    )  # Reads the environment when it is loaded.

    engine = TransferEngine()
    if engine.initialize(HOST, "P2PHANDSHAKE", "tcp", "") != 0:
        raise SystemExit("Mooncake cannot start")
    return engine


def register(engine: Any, region: harness.Bytes) -> None:
    if engine.register_memory(region.ctypes.data, region.nbytes) != 0:
        raise SystemExit("Mooncake cannot register memory")


def serve(channel: harness.TargetChannel) -> None:
    engine = make_engine()
    region = harness.make_region()
    harness.fill(region)
    register(engine, region)
    channel.send(struct.pack("<QQ", region.ctypes.data, engine.get_rpc_port()))
    channel.wait_for_stop()


class Initiator:
    def __init__(self, work: harness.Work, channel: harness.TargetChannel) -> None:
        self._block_bytes = work.block_bytes
        self._sizes = [work.block_bytes] * work.blocks
        self._engine = make_engine()
        self.region = harness.make_region()
        register(self._engine, self.region)
        self._remote, port = struct.unpack("<QQ", channel.receive())
        self._target = f"{HOST}:{port}"

    def lists(self, picks: harness.Picks) -> tuple[list[int], list[int]]:
        def addresses(slots: harness.Offsets, base: int) -> list[int]:
            out: list[int] = (slots * np.uint64(self._block_bytes) + np.uint64(base)).tolist()
            return out

        return (
            addresses(picks.local, self.region.ctypes.data),
            addresses(picks.remote, self._remote),
        )

    def batch(self, lists: tuple[list[int], list[int]]) -> None:
        local, remote = lists
        code = self._engine.batch_transfer_sync_read(self._target, local, remote, self._sizes)
        if code != 0:
            raise SystemExit(f"Mooncake answered {code}")

    def release(self) -> None:
        """The engine keeps nothing of a batch."""


def main() -> int:
    for name in QUEUE_LIMITS:
        os.environ.setdefault(name, "16384")
    os.environ.setdefault("GLOG_minloglevel", "2")
    work, args = harness.parse_work(__doc__ or "")
    pid, channel = harness.start_target(serve)
    measurement = harness.Measurement(work, Initiator(work, channel), pid)
    version = metadata.version("mooncake-transfer-engine-non-cuda")
    result = {"peer": "mooncake", "version": version}
    result |= measurement.run()
    code = harness.report(result, args.json)
    channel.close()
    os.waitpid(pid, 0)
    return code


if __name__ == "__main__":
    os._exit(main())
