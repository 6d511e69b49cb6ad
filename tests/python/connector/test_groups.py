"""Which blocks belong to which tokens."""

from __future__ import annotations

from stagelink.vllm.groups import (
    Group,
    Pairs,
    Span,
    destination_spans,
    match,
    remote_spans,
    source_spans,
)

FULL = Group(4)
SLIDING = Group(4, window=8)


def test_a_source_offers_what_holds_its_tokens_and_no_leading_null_blocks() -> None:
    spans = source_spans((FULL, SLIDING), ([1, 2, 3, 4], [0, 0, 7, 8]), 10)
    assert spans == (Span(0, (1, 2, 3)), Span(2, (7,)))


def test_only_blocks_beyond_the_cached_tokens_are_wanted() -> None:
    assert destination_spans((FULL,), ([9, 8, 7, 6],), 8, 14) == (Span(2, (7, 6)),)


def test_a_window_leaves_only_its_last_blocks() -> None:
    (span,) = destination_spans((SLIDING,), ([0, 0, 0, 5, 6],), 0, 20)
    assert span == Span(3, (5, 6))


def test_blocks_meet_by_their_index() -> None:
    ours = destination_spans((FULL,), ([9, 8, 7],), 4, 12)
    theirs = remote_spans((FULL,), ([1, 2, 3],), [0], 12)
    assert match(ours, theirs) == (Pairs((8, 7), (2, 3)),)


def test_a_peer_that_does_not_say_where_its_window_begins_ends_with_the_last_token() -> None:
    assert remote_spans((FULL, SLIDING), ([1, 2, 3], [5, 6]), None, 12) == (
        Span(0, (1, 2, 3)),
        Span(1, (5, 6)),
    )


def test_a_block_that_the_peer_lacks_is_no_match() -> None:
    assert match((Span(0, (1, 2, 3)),), (Span(0, (4, 5)),)) is None
    assert match((Span(0, (1,)),), (Span(1, (4,)),)) is None


def test_the_null_block_is_never_a_destination_and_never_a_source() -> None:
    assert match((Span(0, (0, 2)),), (Span(0, (4, 5)),)) == (Pairs((2,), (5,)),)
    assert match((Span(0, (1, 2)),), (Span(0, (0, 5)),)) is None
