"""Cutting streams between events."""

import pytest

from stagelink.proxy.generation.events import MAX_EVENT_BYTES, EventSplitter, is_error

STREAM = b'data: {"a": 1}\n\n: comment\n\ndata: x\r\n\r\ndata: two\ndata: lines\n\ndata: [DONE]\n\n'
ENDS = {i for i in range(len(STREAM) + 1) if STREAM[:i].endswith((b"\n\n", b"\r\n\r\n"))}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 16, 200])
def test_only_whole_events_are_passed_on_and_nothing_is_lost(size: int) -> None:
    splitter = EventSplitter()
    passed = b""
    for at in range(0, len(STREAM), size):
        passed += splitter.push(STREAM[at : at + size])
        assert len(passed) in ENDS | {0}
        arrived = min(at + size, len(STREAM))
        assert len(passed) == max((end for end in ENDS if end <= arrived), default=0)
    assert passed + splitter.rest() == STREAM


def test_the_rest_of_an_event_is_kept_until_the_end() -> None:
    splitter = EventSplitter()
    assert splitter.push(b"data: a\n\ndata: b") == b"data: a\n\n"
    assert splitter.rest() == b"data: b"
    assert splitter.rest() == b""


def test_an_event_beyond_the_bound_is_passed_on_in_parts() -> None:
    splitter = EventSplitter()
    assert splitter.push(b"x" * MAX_EVENT_BYTES) == b""
    assert splitter.push(b"x") == b"x" * (MAX_EVENT_BYTES + 1)


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (b'data: {"error": {"message": "no"}}\n\ndata: [DONE]\n\n', True),
        (b'data: {"object":"error","message":"no"}\n\n', True),
        (b'data: {"id": "1", "choices": []}\n\ndata: {"error": {}}\n\n', False),
        (b": comment\n\n", False),
    ],
)
def test_a_stream_that_begins_with_an_error_is_one(stream: bytes, error: bool) -> None:
    assert is_error(stream) is error
