"""Prefill's requests whose cache another engine is waiting for.

Read mode: a finished request's blocks are offered under a lease, until every reader has released
them. Write mode: blocks are written when the step that completes them has run, the last ones with
the last chunk of the prompt; a finished request's blocks stay until the writes have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..pull.log_limit import quiet_logger
from .consumer import peer_of
from .groups import Group, Span, source_spans
from .orders import FinishOrder, OfferOrder, Orders, WriteOrder
from .params import TransferParams

logger = quiet_logger("vllm.stagelink.moriio")


@dataclass
class _Handover:
    params: TransferParams
    prompt: int
    written: int = 0  # Tokens whose blocks have been ordered to be written.
    ordered: bool = False  # A worker knows this transfer.
    complete: bool = False  # The last write was ordered.
    void: bool = False  # What was written is worth nothing.
    finished: bool = False


@dataclass(frozen=True)
class ProducerOptions:
    groups: tuple[Group, ...]
    write_mode: bool
    early_push: bool = False
    lease: float = 60.0
    # Keys of kv_transfer_params that tell the other engine where to find this one.
    address: dict[str, Any] = field(default_factory=dict)
    clock: Callable[[], float] = field(default=time.time)


class ProducerTable:
    """Thread-safety: none; the scheduler's thread."""

    def __init__(self, options: ProducerOptions, refuse: Callable[[str, str], None]) -> None:
        self._options = options
        self._refuse = refuse
        self._handovers: dict[str, _Handover] = {}
        self._by_transfer: dict[str, str] = {}
        self._orders = Orders()
        self._windowed = any(group.window for group in options.groups)

    def add(self, request_id: str, params: TransferParams, prompt: int) -> None:
        """A request came whose cache another engine wants. Of several with one transfer id (n > 1
        samples of one prompt) the first hands its blocks over, the others keep nothing."""
        other = self._by_transfer.get(params.transfer_id)
        if other is not None:
            logger.info("%s: transfer %s is that of %s", request_id, params.transfer_id, other)
            return
        if self._options.write_mode and params.address is None:
            self._refuse("params", f"{request_id}: remote_host: missing, nothing can be written")
            return
        self._by_transfer[params.transfer_id] = request_id
        self._handovers[request_id] = _Handover(params, prompt)

    def wants_blocks(self, request_id: str) -> bool:
        """Whether scheduled() should be told of the request's blocks in this step."""
        handover = self._handovers.get(request_id)
        return self._options.write_mode and handover is not None and not handover.complete

    def scheduled(
        self, request_id: str, tokens: int, blocks: Callable[[], Sequence[Sequence[int]]]
    ) -> None:
        """After this step the first `tokens` tokens of the request are computed. `blocks` gives
        what holds them, when it is asked."""
        handover = self._handovers[request_id]
        last = tokens >= handover.prompt
        early = self._options.early_push and not self._windowed
        if not last and not early:
            return
        tokens = min(tokens, handover.prompt)
        spans = self._new_spans(handover, tokens, last, blocks())
        if not last and not any(span.ids for span in spans):
            return
        params = handover.params
        self._orders.writes.append(
            WriteOrder(request_id, params.transfer_id, peer_of(params), spans, last, params.token)
        )
        handover.ordered, handover.complete, handover.written = True, last, tokens

    def preempted(self, request_id: str) -> None:
        """The request's blocks were taken away. If some were being written the transfer is over:
        the other engine computes the prompt. Otherwise they are written when they are computed."""
        handover = self._handovers.get(request_id)
        if handover is None or handover.finished or not handover.ordered:
            return
        handover.complete = handover.void = True
        self._orders.preempted.append(request_id)

    def finished(
        self, request_id: str, good: bool, blocks: Sequence[Sequence[int]], tokens: int
    ) -> tuple[bool, dict[str, Any] | None]:
        """Whether the blocks must stay, and what the other engine is told. `good`: the prompt was
        computed (its first token may have ended the request at once)."""
        handover = self._handovers.get(request_id)
        if handover is None:
            return False, None
        handover.finished = True
        if self._options.write_mode:
            return self._finished_write(request_id, handover, good)
        if not good:
            self._forget(request_id)
            return False, None
        return self._offer(request_id, handover, blocks, min(tokens, handover.prompt))

    def ended(self, request_id: str) -> None:
        """Every worker has reported that nobody reads or writes the request's blocks any more."""
        if request_id in self._handovers:
            self._forget(request_id)

    def take(self) -> Orders:
        orders, self._orders = self._orders, Orders()
        return orders

    @property
    def pending(self) -> bool:
        return bool(self._orders)

    def __len__(self) -> int:
        return len(self._handovers)

    def _new_spans(
        self, handover: _Handover, tokens: int, last: bool, blocks: Sequence[Sequence[int]]
    ) -> tuple[Span, ...]:
        """Blocks completed since the last order; a partly filled one only goes with the last."""
        spans = source_spans(self._options.groups, blocks, tokens)
        cut = []
        for group, span in zip(self._options.groups, spans, strict=True):
            first = group.index_of(handover.written)
            end = group.end_of(tokens) if last else group.index_of(tokens)
            cut.append(span.cut(first, end))
        return tuple(cut)

    def _finished_write(
        self, request_id: str, handover: _Handover, good: bool
    ) -> tuple[bool, dict[str, Any] | None]:
        """The workers report the end even if nothing was ordered: they tell the other engine."""
        params = handover.params
        done = good and handover.complete and not handover.void
        self._orders.finishes.append(
            FinishOrder(
                request_id, params.transfer_id, peer_of(params), params.token, aborted=not done
            )
        )
        return True, self._answer(handover, None, None) if done else None

    def _offer(
        self,
        request_id: str,
        handover: _Handover,
        blocks: Sequence[Sequence[int]],
        tokens: int,
    ) -> tuple[bool, dict[str, Any] | None]:
        spans = source_spans(self._options.groups, blocks, tokens)
        until = self._options.clock() + self._options.lease
        answer = self._answer(handover, spans, until) | {"remote_num_tokens": tokens}
        if not any(span.ids for span in spans):
            self._forget(request_id)
            return False, answer
        params = handover.params
        self._orders.offers.append(
            OfferOrder(
                request_id, params.transfer_id, self._options.lease, params.tp_size, params.token
            )
        )
        return True, answer

    def _answer(
        self, handover: _Handover, spans: Sequence[Span] | None, until: float | None
    ) -> dict[str, Any]:
        """What the other leg of the request is sent with."""
        answer: dict[str, Any] = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": handover.params.transfer_id,
            **self._options.address,
            "remote_block_ids": [list(span.ids) for span in spans or ()],
        }
        if spans is not None:
            answer["remote_first_blocks"] = [span.first for span in spans]
            answer["remote_block_sizes"] = [group.block_size for group in self._options.groups]
        if until is not None:
            answer["remote_lease_until"] = until
        if handover.params.token is not None:
            answer["transfer_token"] = handover.params.token
        return answer

    def _forget(self, request_id: str) -> None:
        handover = self._handovers.pop(request_id)
        del self._by_transfer[handover.params.transfer_id]
