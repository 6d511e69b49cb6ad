"""Which blocks of a request hold which tokens, for each KV cache group.

A request's blocks form one list for each group. Index i of the list holds tokens i * block_size up
to (i + 1) * block_size. Where a sliding window has passed, the list holds the null block, 0, which
is never moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NULL_BLOCK = 0


@dataclass(frozen=True)
class Group:
    """One KV cache group that takes part in transfers."""

    block_size: int
    window: int = 0  # Tokens of the sliding window; 0: all tokens stay.

    def index_of(self, token: int) -> int:
        return token // self.block_size

    def end_of(self, tokens: int) -> int:
        """Index behind the last block that holds any of the first `tokens` tokens."""
        return -(-tokens // self.block_size)

    def first_needed(self, tokens: int) -> int:
        """Of the blocks of `tokens` tokens, the first that the next token still looks at."""
        if not self.window:
            return 0
        return max(tokens - self.window + 1, 0) // self.block_size


@dataclass(frozen=True)
class Span:
    """Consecutive blocks of one group: ids[i] is the block with index first + i."""

    first: int
    ids: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.first + len(self.ids)

    def cut(self, first: int, end: int) -> Span:
        low, high = max(first, self.first), min(end, self.end)
        if low >= high:
            return Span(low, ())
        return Span(low, self.ids[low - self.first : high - self.first])


def source_spans(
    groups: Sequence[Group], blocks: Sequence[Sequence[int]], tokens: int
) -> tuple[Span, ...]:
    """What a finished prefill offers: no leading null blocks, nothing behind the tokens."""
    spans = []
    for group, ids in zip(groups, blocks, strict=True):
        end = min(group.end_of(tokens), len(ids))
        first = 0
        while first < end and ids[first] == NULL_BLOCK:
            first += 1
        spans.append(Span(first, tuple(ids[first:end])))
    return tuple(spans)


def destination_spans(
    groups: Sequence[Group], blocks: Sequence[Sequence[int]], computed: int, tokens: int
) -> tuple[Span, ...]:
    """Blocks that hold tokens `computed` to `tokens`: what is not cached here yet.

    A block that holds cached tokens as well is only ever the first one, and only if `computed` is
    no multiple of the block size; it is not shared then.
    """
    spans = []
    for group, ids in zip(groups, blocks, strict=True):
        end = min(group.end_of(tokens), len(ids))
        first = max(group.index_of(computed), group.first_needed(tokens))
        while first < end and ids[first] == NULL_BLOCK:
            first += 1
        spans.append(Span(min(first, end), tuple(ids[first:end])))
    return tuple(spans)


def remote_spans(
    groups: Sequence[Group],
    blocks: Sequence[Sequence[int]],
    first_blocks: Sequence[int] | None,
    tokens: int,
) -> tuple[Span, ...]:
    """The peer's blocks with their indices. A peer of 0.32 does not say where its lists begin: they
    end with the last token, and the list of a group with a window is cut in front."""
    spans = []
    for number, (group, ids) in enumerate(zip(groups, blocks, strict=True)):
        if first_blocks is not None:
            first = first_blocks[number]
        elif group.window:
            first = max(group.end_of(tokens) - len(ids), 0)
        else:
            first = 0
        spans.append(Span(first, tuple(ids)))
    return tuple(spans)


@dataclass(frozen=True)
class Pairs:
    """Blocks of one group that belong together, position by position."""

    local: tuple[int, ...]
    remote: tuple[int, ...]


def match(local: Sequence[Span], remote: Sequence[Span]) -> tuple[Pairs, ...] | None:
    """Pairs by index; None if the peer lacks a block that is wanted."""
    matched = []
    for ours, theirs in zip(local, remote, strict=True):
        part = theirs.cut(ours.first, ours.end)
        if len(part.ids) != len(ours.ids):
            return None
        kept = [
            (mine, other)
            for mine, other in zip(ours.ids, part.ids, strict=True)
            if mine != NULL_BLOCK
        ]
        if any(other == NULL_BLOCK for _, other in kept):
            return None
        matched.append(Pairs(tuple(m for m, _ in kept), tuple(o for _, o in kept)))
    return tuple(matched)
