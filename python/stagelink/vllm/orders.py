"""What the scheduler half tells the worker halves in one step: changes, never the whole table."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from .groups import Pairs, Span


@dataclass(frozen=True)
class Peer:
    """The other engine of one transfer: how each of its ranks is reached, and which life of it."""

    host: str
    handshake_port: int
    notify_port: int
    hosts: tuple[str, ...] = ()  # One for each pod; empty: `host`.
    tp_size: int = 0  # 0: as ours.
    dp_rank: int = 0
    dp_size_local: int = 0
    incarnation: str | None = None

    def host_of(self, dp_rank: int) -> str:
        """The host of the pod in which a data parallel rank runs."""
        pod = dp_rank // self.dp_size_local if self.dp_size_local else 0
        return self.hosts[pod] if pod < len(self.hosts) else self.host

    def local_rank(self, dp_rank: int) -> int:
        return dp_rank % self.dp_size_local if self.dp_size_local else dp_rank


@dataclass(frozen=True)
class ReadOrder:
    """Decode, read mode: pull these blocks, then release them."""

    request_id: str
    transfer_id: str
    peer: Peer
    spans: tuple[Span, ...]  # Of the destination.
    pairs: tuple[Pairs, ...] | None  # None: the peer lacks some; report the load as failed.
    until: float | None = None  # Unix time; the peer may reuse its blocks then.
    synchronous: bool = False  # The forward of this step needs the blocks.


@dataclass(frozen=True)
class ReceiveOrder:
    """Decode, write mode: tell the peer where its blocks go, then wait for them."""

    request_id: str
    transfer_id: str
    peer: Peer
    spans: tuple[Span, ...]
    dp_rank: int
    token: str | None = None


@dataclass(frozen=True)
class ReleaseOrder:
    """Decode: the peer's blocks are not wanted (any more)."""

    transfer_id: str
    peer: Peer


@dataclass(frozen=True)
class OfferOrder:
    """Prefill, read mode: the request has finished and its blocks wait for readers."""

    request_id: str
    transfer_id: str
    lease_seconds: float
    tp_size: int = 0  # Of those who will read; 0: as ours, or as they say.
    token: str | None = None


@dataclass(frozen=True)
class WriteOrder:
    """Prefill, write mode: these blocks are complete when this step's forward is."""

    request_id: str
    transfer_id: str
    peer: Peer
    spans: tuple[Span, ...]
    last: bool
    token: str | None = None


@dataclass(frozen=True)
class FinishOrder:
    """Prefill, write mode: the request has finished; its blocks wait for the end of the writes."""

    request_id: str
    transfer_id: str
    peer: Peer
    token: str | None = None
    aborted: bool = False  # What has not been written will not be; the peer is told.


@dataclass
class Orders:
    reads: list[ReadOrder] = field(default_factory=list)
    receives: list[ReceiveOrder] = field(default_factory=list)
    releases: list[ReleaseOrder] = field(default_factory=list)
    offers: list[OfferOrder] = field(default_factory=list)
    writes: list[WriteOrder] = field(default_factory=list)
    finishes: list[FinishOrder] = field(default_factory=list)
    # Transfers whose request was aborted while they ran: request ids.
    aborts: list[str] = field(default_factory=list)
    # Prefill, write mode: requests whose blocks were taken away; what was written is void.
    preempted: list[str] = field(default_factory=list)

    def add(self, other: Orders) -> None:
        for entry in fields(self):
            getattr(self, entry.name).extend(getattr(other, entry.name))

    def __bool__(self) -> bool:
        return any(getattr(self, entry.name) for entry in fields(self))
