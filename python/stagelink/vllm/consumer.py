"""Decode's requests: which of them take their prompt's cache from a prefill engine, and how far.

A request is `wanted` when it comes, `loading` from the allocation of its blocks until every worker
has reported, and `over` then. It takes a remote cache at most once: after a preemption or a failed
load it computes for itself. Of requests that share a transfer id (n > 1 samples of one prompt, or a
client's mistake) the first one loads; the others wait for it and find its blocks in the prefix
cache.
"""

from __future__ import annotations

import enum
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..pull.log_limit import quiet_logger
from .groups import Group, destination_spans, match, remote_spans
from .orders import Orders, Peer, ReadOrder, ReceiveOrder, ReleaseOrder
from .params import TransferParams

logger = quiet_logger("vllm.stagelink.moriio")


class Phase(enum.Enum):
    WANTED = "wanted"
    LOADING = "loading"
    OVER = "over"


@dataclass
class _Load:
    params: TransferParams
    phase: Phase = Phase.WANTED
    computed: int = 0  # Tokens that the local prefix cache had, when last asked.
    leader: bool = True  # Loads itself; others with the same transfer wait for it.
    aborted: bool = False


@dataclass(frozen=True)
class ConsumerOptions:
    groups: tuple[Group, ...]
    write_mode: bool
    dp_rank: int = 0
    asynchronous: bool = True
    lease_margin: float = 5.0  # Of a lease: clocks of two hosts differ by less.
    clock: Callable[[], float] = field(default=time.time)


class ConsumerTable:
    """Thread-safety: none; the scheduler's thread."""

    def __init__(self, options: ConsumerOptions, refuse: Callable[[str, str], None]) -> None:
        self._options = options
        self._refuse = refuse  # Counts and logs: (reason, text).
        self._loads: dict[str, _Load] = {}
        self._leaders: dict[str, list[str]] = {}  # Transfer id to request ids, the leader first.
        self._orders = Orders()
        self._windowed = any(group.window for group in options.groups)

    def add(self, request_id: str, params: TransferParams) -> None:
        """A request came that goes on with what a prefill engine computed."""
        if params.address is None:
            self._refuse("params", f"{request_id}: remote_host: missing, so its prompt is computed")
            return
        sharers = self._leaders.setdefault(params.transfer_id, [])
        if sharers:
            logger.info(
                "%s waits for %s, which loads transfer %s",
                request_id,
                sharers[0],
                params.transfer_id,
            )
        sharers.append(request_id)
        self._loads[request_id] = _Load(params, leader=len(sharers) == 1)

    def usable_tokens(self, request_id: str, prompt: int, computed: int) -> int | None:
        """Tokens that the peer has beyond `computed`; None: ask again in the next step."""
        load = self._loads.get(request_id)
        if load is None or load.phase is Phase.OVER:
            return 0
        if not load.leader:
            return self._wait_for_leader(request_id, load)
        load.computed = computed
        tokens = self._tokens(load.params, prompt)
        if tokens <= computed or not self._available(request_id, load, tokens, computed):
            return 0
        return tokens - computed

    def allocated(self, request_id: str, external: int, blocks: Sequence[Sequence[int]]) -> None:
        """Blocks were allocated: for `external` tokens of the peer, or (0) for none."""
        load = self._loads.get(request_id)
        if load is None or load.phase is not Phase.WANTED or not load.leader:
            return
        if external == 0:
            self._drop(request_id, load)
            return
        order = self._order(request_id, load, external, blocks)
        if isinstance(order, ReadOrder):
            self._orders.reads.append(order)
        else:
            self._orders.receives.append(order)
        load.phase = Phase.LOADING

    def finished(self, request_id: str) -> None:
        """The request ended somehow: what has not begun is released, what runs is aborted."""
        load = self._loads.get(request_id)
        if load is None:
            return
        if load.phase is Phase.LOADING:
            load.aborted = True
            self._orders.aborts.append(request_id)
            return
        if load.phase is Phase.WANTED and load.leader and not self._hand_on(request_id, load):
            self._release(load)
        self._forget(request_id, load)

    def received(self, request_id: str) -> None:
        """Every worker has reported the end of the load, good or bad."""
        load = self._loads.get(request_id)
        if load is None or load.phase is not Phase.LOADING:
            return
        load.phase = Phase.OVER
        if load.aborted:
            self._forget(request_id, load)

    def take(self) -> Orders:
        orders, self._orders = self._orders, Orders()
        return orders

    @property
    def pending(self) -> bool:
        return bool(self._orders)

    def __len__(self) -> int:
        return len(self._loads)

    def _tokens(self, params: TransferParams, prompt: int) -> int:
        """How much of the prompt to load. Where windows slide, the last token is computed here:
        what it looks at may have left the window of the peer, which has gone one token further."""
        wanted = prompt - 1 if self._windowed or not self._options.asynchronous else prompt
        return wanted if params.num_tokens is None else min(wanted, params.num_tokens)

    def _available(self, request_id: str, load: _Load, tokens: int, computed: int) -> bool:
        """Read mode: the peer names blocks, still keeps them, and they cover what is wanted."""
        params = load.params
        if self._options.write_mode:
            return True
        if not params.blocks or not any(params.blocks):
            return False
        groups = len(self._options.groups)
        if len(params.blocks) != groups or len(params.first_blocks or params.blocks) != groups:
            told = f"remote_block_ids: {len(params.blocks)} groups, ours {groups}"
            self._refuse("params", f"{request_id}: {told}")
            return False
        ours = tuple(group.block_size for group in self._options.groups)
        if params.block_sizes not in (None, ours):
            told = f"block_size: ours {_text(ours)}, theirs {_text(params.block_sizes)}"
            self._refuse("incompatible", f"{request_id}: {told}")
            return False
        left = self._lease_left(params)
        if left is not None and left <= 0:
            self._refuse("lease", f"{request_id}: the lease of {params.transfer_id} has run out")
            return False
        spans = remote_spans(self._options.groups, params.blocks, params.first_blocks, tokens)
        for group, span in zip(self._options.groups, spans, strict=True):
            first = max(group.index_of(computed), group.first_needed(tokens))
            if span.first > first or span.end < group.end_of(tokens):
                self._refuse(
                    "params",
                    f"{request_id}: remote_block_ids: blocks {span.first} to {span.end},"
                    f" needed {first} to {group.end_of(tokens)}",
                )
                return False
        return True

    def _lease_left(self, params: TransferParams) -> float | None:
        if params.lease_until is None:
            return None
        return params.lease_until - self._options.lease_margin - self._options.clock()

    def _order(
        self, request_id: str, load: _Load, external: int, blocks: Sequence[Sequence[int]]
    ) -> ReadOrder | ReceiveOrder:
        params, groups = load.params, self._options.groups
        tokens = load.computed + external
        spans = destination_spans(groups, blocks, load.computed, tokens)
        peer = peer_of(params)
        if self._options.write_mode:
            # Whoever reports the end must know it.
            token = params.token or secrets.token_hex(8)
            return ReceiveOrder(
                request_id, params.transfer_id, peer, spans, self._options.dp_rank, token
            )
        remote = remote_spans(groups, params.blocks or (), params.first_blocks, tokens)
        pairs = match(spans, remote)
        if pairs is None:
            self._refuse("params", f"{request_id}: remote_block_ids: not every block is there")
        until = None
        if params.lease_until is not None:
            until = params.lease_until - self._options.lease_margin
        synchronous = not self._options.asynchronous
        return ReadOrder(request_id, params.transfer_id, peer, spans, pairs, until, synchronous)

    def _wait_for_leader(self, request_id: str, load: _Load) -> int | None:
        leader = self._leaders[load.params.transfer_id][0]
        if self._loads[leader].phase is Phase.OVER:
            load.phase = Phase.OVER
            return 0
        return None

    def _hand_on(self, request_id: str, load: _Load) -> bool:
        """The next request with the same transfer takes the place of one that ended early."""
        sharers = self._leaders[load.params.transfer_id]
        if len(sharers) < 2:
            return False
        self._loads[sharers[1]].leader = True
        return True

    def _drop(self, request_id: str, load: _Load) -> None:
        self._release(load)
        load.phase = Phase.OVER

    def _release(self, load: _Load) -> None:
        self._orders.releases.append(ReleaseOrder(load.params.transfer_id, peer_of(load.params)))

    def _forget(self, request_id: str, load: _Load) -> None:
        del self._loads[request_id]
        sharers = self._leaders[load.params.transfer_id]
        was_leader = sharers[0] == request_id
        sharers.remove(request_id)
        if not sharers:
            del self._leaders[load.params.transfer_id]
        elif was_leader and load.phase is not Phase.WANTED:
            # It loaded and has gone; the rest find what it left, or compute.
            for other in sharers:
                self._loads[other].phase = Phase.OVER


def _text(numbers: Sequence[int] | None) -> str:
    return ",".join(map(str, numbers or ()))


def peer_of(params: TransferParams) -> Peer:
    assert params.address is not None
    return Peer(
        host=params.address.host,
        handshake_port=params.address.handshake_port,
        notify_port=params.address.notify_port,
        hosts=params.hosts,
        tp_size=params.tp_size,
        dp_rank=params.dp_rank,
        dp_size_local=params.dp_size_local,
        incarnation=params.incarnation,
    )
