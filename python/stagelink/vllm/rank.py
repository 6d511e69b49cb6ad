"""One rank's data plane: `stagelink._core.ConnectorRank` with handshakes, deadlines and leases.

Each transfer ends once in the table behind the rank. What is kept here is only what has a time:
leases of offered blocks, and loads that must be told off when they take too long.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .._core import (
    BackendType,
    ConnectorRank,
    IOEngine,
    IOEngineConfig,
    PeerAddress,
)
from ..errors import NotFound
from ..pull.log_limit import quiet_logger
from .caches.layers import layers_of
from .groups import Pairs
from .links import Failure, Links
from .orders import FinishOrder, OfferOrder, Peer, ReceiveOrder, WriteOrder
from .settings import EnginePlace, Settings

if TYPE_CHECKING:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = quiet_logger("vllm.stagelink.moriio")

TRANSPORTS = {"shm": ["shm"], "cma": ["cma"], "unix": ["unix"], "tcp": ["tcp"], "rdma": ["ucx"]}


@dataclass(frozen=True)
class Ended:
    """The end of one transfer: of a load (`received`) or of a handing over."""

    transfer_id: str
    received: bool
    reason: str | None  # None: it succeeded.
    nbytes: int
    ranges: int


@dataclass
class _Load:
    """A load that has not ended, as a reader (`peer` is read) or as a receiver."""

    peer: PeerAddress
    deadline: float
    reads: bool
    token: str = ""
    begun: bool = False  # The C++ reader or table knows it.
    cancelled: bool = False


class Rank:
    """Thread-safety: the worker's thread, but for callbacks of handshakes, which take the lock."""

    def __init__(self, settings: Settings, place: EnginePlace, role: str, kv_heads: int) -> None:
        self._settings = settings
        self._place = place
        self._kv_heads = kv_heads
        name = f"{role}:{settings.engine_id}:tp{place.tp_rank}:dp{place.dp_local}"
        options: dict[str, Any] = {}
        if settings.backend != "auto":
            options["transports"] = TRANSPORTS[settings.backend]
        if settings.secret_file:
            options["secret_file"] = settings.secret_file
        self._engine = IOEngine(name, IOEngineConfig(settings.host_ip, 0, options))
        self._engine.create_backend(BackendType.RDMA)
        self._rank = ConnectorRank(
            self._engine,
            role=role,
            host=settings.host_ip,
            handshake_port=settings.handshake_port,
            notify_port=settings.notify_port,
            tp_rank=place.tp_rank,
            tp_size=place.tp_size,
            total_kv_heads=kv_heads,
            dp_rank=place.dp_rank,
            dp_local=place.dp_local,
            zmq_library=zmq_library(),
            secret_file=settings.secret_file,
            transfer_timeout=settings.transfer_timeout,
            defer_timeout=settings.defer_timeout,
        )
        self._links = Links(self._rank, settings.handshake_timeout)
        self._lock = threading.Lock()
        self._loads: dict[str, _Load] = {}
        self._leases: dict[str, float] = {}
        # Ends that the table does not give, as it never knew of a beginning.
        self._unlisted: deque[Ended] = deque()
        self._chunks: dict[str, int] = {}  # The chunk of this step, by transfer.
        self.layers: list[str] = []

    def allocate(self, nbytes: int) -> Any:
        """Memory that peers on this host may map: anything with the buffer protocol."""
        return self._engine.allocate(nbytes)

    def serve(
        self,
        kv_cache_config: KVCacheConfig,
        caches: Mapping[str, torch.Tensor],
        compat: dict[str, str],
    ) -> None:
        """Registers the cache and binds this rank's ports."""
        memories, layers = layers_of(kv_cache_config, caches)
        self.layers = list(caches)
        descriptors = [
            self._engine.register_memory(memory.address, memory.nbytes) for memory in memories
        ]
        about = {
            "groups": len(kv_cache_config.transfer_groups),
            "total_kv_heads": self._kv_heads,
            "tp_rank": self._place.tp_rank,
            "tp_size": self._place.tp_size,
            "engine_id": self._settings.engine_id,
            "attn_backend": compat["attn_backend"],
            "compat": compat,
        }
        self._rank.serve(descriptors, layers, about)

    # Loads.

    def read(self, transfer_id: str, peer: Peer, pairs: Sequence[Pairs], timeout: float) -> None:
        """Pulls blocks; the end comes as an event."""
        address = address_of(peer)
        self._loads[transfer_id] = _Load(address, time.monotonic() + timeout, reads=True)
        blocks = [(list(pair.local), list(pair.remote)) for pair in pairs]
        self._when_linked(transfer_id, address, partial(self._begin_read, transfer_id, blocks))

    def wait_received(self, transfer_id: str, timeout: float) -> None:
        """Returns when the load has ended, well or not."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with self._lock:
                load = self._loads.get(transfer_id)
                if load is None or load.cancelled:
                    return
                begun = load.begun
            if begun:
                self._rank.wait_read(transfer_id, deadline - time.monotonic())
                return
            time.sleep(0.0005)  # The first handshake with this peer; it has a deadline of its own.

    def receive(self, order: ReceiveOrder, timeout: float) -> None:
        """Tells the peer where its blocks go; the end comes as an event."""
        address = address_of(order.peer)
        load = _Load(address, time.monotonic() + timeout, reads=False, token=order.token or "")
        self._loads[order.transfer_id] = load
        self._when_linked(order.transfer_id, address, partial(self._begin_receive, order))

    def refuse(self, transfer_id: str, peer: Peer, reason: str, text: str) -> None:
        """A load that cannot begin."""
        self._loads[transfer_id] = _Load(address_of(peer), time.monotonic() + 1.0, reads=True)
        self._fail(transfer_id, Failure(reason, text))

    def cancel_load(self, transfer_id: str) -> None:
        """Its end comes as an event when nothing touches its blocks any more."""
        with self._lock:
            load = self._loads.get(transfer_id)
            if load is None or load.cancelled:
                return
            load.cancelled = True
            begun = load.begun
            # The producer answers with write_failed, or is found to be gone.
            load.deadline = time.monotonic() + self._settings.transfer_timeout
        if load.reads:
            if begun:
                self._rank.cancel_read(transfer_id, 0)
            return
        self._rank.release(transfer_id, load.peer, load.token)

    def release(self, transfer_id: str, peer: Peer) -> None:
        """The peer's blocks are not wanted; it need not be linked for that."""
        self._rank.release(transfer_id, address_of(peer))

    # Handing over.

    def offer(self, order: OfferOrder) -> None:
        self._leases[order.transfer_id] = time.monotonic() + order.lease_seconds
        failure = self._rank.offer(order.transfer_id, order.token or "", 0)
        if failure is not None and not self._rank.end_offer(order.transfer_id, *failure):
            self._unlisted.append(Ended(order.transfer_id, False, failure[0], 0, 0))

    def write(self, order: WriteOrder, layer: str, event: Any) -> bool:
        """One layer of a chunk; False if the transfer cannot take it."""
        transfer_id = order.transfer_id
        chunk = self._chunks.get(transfer_id)
        if chunk is None:
            spans = [(span.first, list(span.ids)) for span in order.spans]
            try:
                chunk = self._rank.add_chunk(transfer_id, spans, order.last)
            except NotFound:
                return False  # It has ended meanwhile.
            self._chunks[transfer_id] = chunk
        index = self.layers.index(layer)
        return self._rank.write_layer(transfer_id, chunk, index, event) is None

    def start_write(self, order: WriteOrder | FinishOrder) -> Failure | None:
        address = address_of(order.peer)
        failure = self._rank.start_write(
            order.transfer_id, order.request_id, address, order.token or ""
        )
        return Failure(*failure) if failure is not None else None

    def chunk_done(self, order: WriteOrder) -> None:
        self._chunks.pop(order.transfer_id, None)
        if order.last:
            self._rank.seal(order.transfer_id)

    def abort_write(self, transfer_id: str, why: str, timeout: float = 0.0) -> bool:
        """True if nothing reads the blocks any more; waits for that if asked to."""
        stopped = self._rank.abort_write(transfer_id, why, timeout)
        if not stopped and timeout > 0:
            logger.error("Transfer %s is still being written after %g s", transfer_id, timeout)
        return stopped

    # What has ended.

    def events(self, wait: float) -> list[Ended]:
        """Transfers that have ended since the last call; waits a moment for one if asked to."""
        self._link_wanted()
        self._look_at_clock()
        events = self._rank.take_events()
        if not events and wait > 0:
            time.sleep(wait)
            events = self._rank.take_events()
        ended = []
        while self._unlisted:
            ended.append(self._unlisted.popleft())
        for kind, transfer_id, failure, nbytes, ranges in events:
            if kind in ("received", "sent"):
                reason = failure[0] if failure is not None else None  # Logged where it arose.
                ended.append(Ended(transfer_id, kind == "received", reason, nbytes, ranges))
        with self._lock:
            for end in ended:
                (self._loads if end.received else self._leases).pop(end.transfer_id, None)
        return ended

    @property
    def bytes_moved(self) -> int:
        return self._rank.bytes_moved

    def close(self) -> None:
        self._links.close()
        self._rank.close()
        self._engine.close()

    def _when_linked(self, transfer_id: str, address: PeerAddress, begin: Any) -> None:
        try:
            places = tuple(self._rank.producers(address))
        except Exception as error:
            self._fail(transfer_id, Failure("params", str(error)))
            return
        self._links.use(places, partial(self._linked, transfer_id, begin))

    def _linked(self, transfer_id: str, begin: Any, failure: Failure | None) -> None:
        if failure is not None:
            self._fail(transfer_id, failure)
            return
        with self._lock:
            load = self._loads.get(transfer_id)
            if load is None:
                return
            cancelled = load.cancelled
            load.begun = not cancelled
        if cancelled:
            self._fail(transfer_id, Failure("cancelled", "the request was aborted"))
            return
        told = begin(load)
        if told is not None:
            self._fail(transfer_id, Failure(*told))

    def _begin_read(self, transfer_id: str, blocks: Any, load: _Load) -> Any:
        timeout = max(load.deadline - time.monotonic(), 0.001)
        return self._rank.read(transfer_id, load.peer, blocks, timeout)

    def _begin_receive(self, order: ReceiveOrder, load: _Load) -> Any:
        spans = [(span.first, list(span.ids)) for span in order.spans]
        return self._rank.receive(order.transfer_id, load.peer, order.request_id, load.token, spans)

    def _fail(self, transfer_id: str, failure: Failure) -> None:
        """A load ends before it has begun; the producer need not keep its blocks for it."""
        with self._lock:
            load = self._loads.get(transfer_id)
        if load is None:
            return
        if not self._rank.end_received(transfer_id, failure.reason, failure.text):
            self._unlisted.append(Ended(transfer_id, True, failure.reason, 0, 0))
        self._rank.release(transfer_id, load.peer, load.token)

    def _link_wanted(self) -> None:
        """Writes wait for these: decode ranks that have said where their blocks go."""
        for place in self._rank.take_wanted():
            self._links.use((place,), partial(self._refuse_link, place))

    def _refuse_link(self, place: tuple[str, int], failure: Failure | None) -> None:
        if failure is not None:
            self._rank.refuse_link(place, failure.reason, failure.text)

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        for transfer_id, until in list(self._leases.items()):
            if now >= until:
                del self._leases[transfer_id]
                self._rank.end_offer(transfer_id, "expired", "nobody released its blocks in time")
        with self._lock:
            late = [item for item in self._loads.items() if now >= item[1].deadline]
        for transfer_id, load in late:
            self._overdue(transfer_id, load)

    def _overdue(self, transfer_id: str, load: _Load) -> None:
        if load.reads and load.begun:
            return  # The reader has the same deadline.
        if not load.cancelled:
            self.cancel_load(transfer_id)
            return
        if load.begun and self._rank.producers_alive(load.peer) and not load.reads:
            logger.error("Transfer %s: the producer does not say that it has stopped", transfer_id)
        text = "the producer did not answer in time"
        if not self._rank.end_received(transfer_id, "timed_out", text):
            self._unlisted.append(Ended(transfer_id, True, "timed_out", 0, 0))


def address_of(peer: Peer) -> PeerAddress:
    return PeerAddress(
        peer.host,
        hosts=list(peer.hosts),
        ports=(peer.handshake_port, peer.notify_port),
        tp_size=peer.tp_size,
        dp=(peer.dp_rank, peer.dp_size_local),
    )


def zmq_library() -> str:
    """The libzmq that pyzmq brings along, so that none need be installed; empty: the system's."""
    from glob import glob
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("zmq")
    if spec is None or spec.origin is None:
        return ""
    folder = Path(spec.origin).parent
    found = glob(str(folder.parent / "pyzmq.libs" / "libzmq*.so*")) + glob(
        str(folder / "libzmq*.so*")
    )
    return found[0] if found else ""
