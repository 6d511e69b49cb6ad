"""The work unit of `stagelink bench engine`, for libraries that are driven from Python.

A target process owns a gigabyte of known content. The initiator pulls random distinct blocks of it,
other ones in each repetition, as one batch. The lists of blocks exist before the clock starts; what
a library builds from them for one transfer is built while it runs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

REGION_BYTES = 1 << 30
MOST_SLOTS = 65536
HUGE_PAGE = 2 << 20
MADV_HUGEPAGE = 14
PR_SET_PDEATHSIG = 1
DISTINCT_PICKS = 16
WARM_UPS = 2
CAP_S = 20.0
MOST_QUEUE_WAIT = 0.03
FEWEST_QUIET = 10
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Work:
    """What one batch moves."""

    block_bytes: int
    blocks: int
    repetitions: int

    @property
    def slots(self) -> int:
        return min(MOST_SLOTS, REGION_BYTES // self.block_bytes)


@dataclass(frozen=True)
class Picks:
    """Slot numbers of one repetition, on both sides."""

    local: Offsets
    remote: Offsets


def parse_work(description: str) -> tuple[Work, argparse.Namespace]:
    """Reads the command line that all peers share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--block", type=int, default=4096)
    parser.add_argument("--blocks", type=int, default=4096)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    work = Work(args.block, args.blocks, args.repetitions)
    if work.block_bytes <= 0 or work.block_bytes % 8 or not 0 < work.blocks <= work.slots:
        parser.error("blocks must be a multiple of 8 bytes and fit the region's slots")
    return work, args


def make_region() -> Bytes:
    """A gigabyte of private memory, 2 MiB aligned and advised to be huge pages."""
    mapping = mmap.mmap(-1, REGION_BYTES + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(mapping, dtype=np.uint8)
    skip = -whole.ctypes.data % HUGE_PAGE
    region = whole[skip : skip + REGION_BYTES]
    libc = ctypes.CDLL(None)
    libc.madvise(
        ctypes.c_void_p(region.ctypes.data),
        ctypes.c_size_t(REGION_BYTES),
        MADV_HUGEPAGE,
    )
    region[:] = 1
    return region


def expected_words(offset: int, size: int) -> Offsets:
    return np.arange(offset // 8, (offset + size) // 8, dtype=np.uint64) * GOLDEN


def fill(region: Bytes) -> None:
    step = 1 << 25
    for offset in range(0, REGION_BYTES, step):
        region[offset : offset + step].view(np.uint64)[:] = expected_words(offset, step)


def make_picks(work: Work, seed: int) -> Picks:
    random = np.random.default_rng(seed)

    def draw() -> Offsets:
        return random.permutation(work.slots)[: work.blocks].astype(np.uint64)

    return Picks(draw(), draw())


def pin(core: int) -> None:
    os.sched_setaffinity(0, {core})


class TargetChannel:
    """One end of the socket between initiator and target."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, blob: bytes) -> None:
        self._socket.sendall(struct.pack("<Q", len(blob)) + blob)

    def receive(self) -> bytes:
        (size,) = struct.unpack("<Q", self._exactly(8))
        return self._exactly(size)

    def told_to_stop(self) -> bool:
        """Looks without waiting. The other end says stop by closing."""
        try:
            return self._socket.recv(1, socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False

    def wait_for_stop(self) -> None:
        self._socket.recv(1)

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        out = bytearray()
        while len(out) < size:
            part = self._socket.recv(size - len(out))
            if not part:
                raise SystemExit("the other process has ended")
            out += part
        return bytes(out)


def start_target(serve: Callable[[TargetChannel], None]) -> tuple[int, TargetChannel]:
    """Runs `serve` in a child that dies with this process. To be called before a library starts."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            serve(TargetChannel(theirs))
        os._exit(0)
    theirs.close()
    return pid, TargetChannel(ours)


def queue_wait_s(pid: int) -> float:
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total_ns += int((task / "schedstat").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return total_ns * 1e-9


def percentile(values: list[float], part: float) -> float:
    ranked = sorted(values)
    return ranked[max(0, int(np.ceil(part * len(ranked))) - 1)]


class Peer(Protocol):
    """A library on the initiator's side."""

    region: Bytes

    def lists(self, picks: Picks) -> Any:
        """The lists of blocks in the library's terms; before the clock starts."""

    def batch(self, lists: Any) -> None:
        """One transfer from its first call to its end; timed."""

    def release(self) -> None:
        """Gives back what the batch made; after the clock has stopped."""


class Measurement:
    """Runs the batches and keeps those that other load did not disturb."""

    def __init__(self, work: Work, peer: Peer, target: int) -> None:
        self._work = work
        self._peer = peer
        self._target = target

    def run(self) -> dict[str, object]:
        lists = [self._peer.lists(make_picks(self._work, seed)) for seed in range(DISTINCT_PICKS)]
        for i in range(WARM_UPS):
            self._peer.batch(lists[i])
            self._peer.release()
        quiet: list[float] = []
        everything: list[float] = []
        end = time.monotonic() + CAP_S
        while len(quiet) < self._work.repetitions:
            if time.monotonic() > end or len(everything) >= 3 * self._work.repetitions:
                break
            waited = queue_wait_s(os.getpid()) + queue_wait_s(self._target)
            start = time.perf_counter()
            self._peer.batch(lists[len(everything) % DISTINCT_PICKS])
            took = time.perf_counter() - start
            waited = queue_wait_s(os.getpid()) + queue_wait_s(self._target) - waited
            self._peer.release()
            everything.append(took)
            if waited <= MOST_QUEUE_WAIT * took:
                quiet.append(took)
            time.sleep(min(took, 0.01))
        enough = len(quiet) >= min(FEWEST_QUIET, self._work.repetitions)
        kept = quiet if enough else everything
        p50 = percentile(kept, 0.5)
        return {
            "block_bytes": self._work.block_bytes,
            "blocks": self._work.blocks,
            "repetitions": len(kept),
            "quiet": enough,
            "p50_us": p50 * 1e6,
            "p99_us": percentile(kept, 0.99) * 1e6,
            "gb_per_s": self._work.block_bytes * self._work.blocks / p50 * 1e-9,
            "verified": self._verify(),
        }

    def _verify(self) -> bool:
        size = self._work.block_bytes
        picks = make_picks(self._work, 77)
        blocks = self._peer.region[: self._work.slots * size].reshape(self._work.slots, size)
        blocks[picks.local] = 0xEE
        self._peer.batch(self._peer.lists(picks))
        self._peer.release()
        for local, remote in zip(picks.local.tolist(), picks.remote.tolist(), strict=True):
            if not np.array_equal(
                blocks[local].view(np.uint64), expected_words(remote * size, size)
            ):
                return False
        return True


def report(result: dict[str, object], as_json: bool) -> int:
    if as_json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:>12}: {value}")
    sys.stdout.flush()
    return 0 if result["verified"] else 1
