"""NIXL on the work unit, in its better setting for two cores: no progress thread, both processes
pinned, descriptor lists prepared once. The target polls, as it must without the thread. With
NIXL_PROGRESS_THREAD=1 in the environment it has its default progress thread."""

from __future__ import annotations

import logging
import os
import struct
from importlib import metadata

import numpy as np
import numpy.typing as npt
import peer_harness as harness
from nixl_cu12 import nixl_agent, nixl_agent_config

PROGRESS_THREAD = os.environ.get("NIXL_PROGRESS_THREAD") == "1"

Indices = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]


def make_agent(name: str) -> nixl_agent:
    agent = nixl_agent(name, nixl_agent_config(enable_prog_thread=PROGRESS_THREAD, backends=[]))
    agent.create_backend("UCX", {"num_workers": "1"})
    return agent


def register(agent: nixl_agent, region: harness.Bytes) -> None:
    agent.register_memory([(region.ctypes.data, region.nbytes, 0, "")], "DRAM")


def serve(channel: harness.TargetChannel) -> None:
    harness.pin(1)
    agent = make_agent("target")
    region = harness.make_region()
    harness.fill(region)
    register(agent, region)
    channel.send(agent.get_agent_metadata())
    channel.send(struct.pack("<Q", region.ctypes.data))
    while not channel.told_to_stop():
        for _ in range(200):
            agent.get_new_notifs()


class Initiator:
    def __init__(self, work: harness.Work, channel: harness.TargetChannel) -> None:
        self._agent = make_agent("initiator")
        self.region = harness.make_region()
        register(self._agent, self.region)
        peer = self._agent.add_remote_agent(channel.receive())
        peer = peer.decode() if isinstance(peer, bytes) else peer
        (remote,) = struct.unpack("<Q", channel.receive())
        self._local = self._prepare("NIXL_INIT_AGENT", self.region.ctypes.data, work)
        self._remote = self._prepare(peer, remote, work)
        self._handle: object | None = None

    def _prepare(self, owner: str, base: int, work: harness.Work) -> object:
        slots = np.zeros((work.slots, 3), np.uint64)
        slots[:, 0] = np.arange(work.slots, dtype=np.uint64) * np.uint64(work.block_bytes)
        slots[:, 0] += np.uint64(base)
        slots[:, 1] = work.block_bytes
        return self._agent.prep_xfer_dlist(owner, slots, "DRAM")

    def lists(self, picks: harness.Picks) -> Indices:
        return picks.local.astype(np.int32), picks.remote.astype(np.int32)

    def batch(self, lists: Indices) -> None:
        local, remote = lists
        self._handle = self._agent.make_prepped_xfer(
            "READ", self._local, local, self._remote, remote
        )
        state = self._agent.transfer(self._handle)
        while state == "PROC":
            state = self._agent.check_xfer_state(self._handle)
        if state != "DONE":
            raise SystemExit(f"NIXL answered {state}")

    def release(self) -> None:
        self._agent.release_xfer_handle(self._handle)
        self._handle = None


def main() -> int:
    logging.disable(logging.INFO)
    work, args = harness.parse_work(__doc__ or "")
    pid, channel = harness.start_target(serve)
    harness.pin(0)
    initiator = Initiator(work, channel)
    measurement = harness.Measurement(work, initiator, pid)
    result = {"peer": "nixl", "version": metadata.version("nixl-cu12")}
    result |= measurement.run()
    code = harness.report(result, args.json)
    channel.close()
    os.waitpid(pid, 0)
    return code


if __name__ == "__main__":
    # Its libraries crash in their destructors at a normal exit.
    os._exit(main())
