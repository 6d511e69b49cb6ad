"""Server-sent events, cut where one ends: what is passed on is whole events, byte for byte."""

# An event that has not ended after this is passed on in parts.
MAX_EVENT_BYTES = 1 << 20

_ENDS = (b"\n\n", b"\r\n\r\n")


class EventSplitter:
    """Holds back the bytes of an event that has not ended yet."""

    def __init__(self) -> None:
        self._held = b""

    def push(self, chunk: bytes) -> bytes:
        """The whole events that there are now."""
        held = self._held + chunk
        end = max(held.rfind(mark) + len(mark) if mark in held else 0 for mark in _ENDS)
        if end == 0 and len(held) > MAX_EVENT_BYTES:
            end = len(held)
        self._held = held[end:]
        return held[:end]

    def rest(self) -> bytes:
        """What is held when the stream has ended."""
        held, self._held = self._held, b""
        return held


def split_events(whole: bytes) -> list[bytes]:
    """Whole events, one by one, without their empty lines."""
    text = whole.replace(b"\r\n", b"\n")
    return [event for event in text.split(b"\n\n") if event]


def event_data(event: bytes) -> bytes | None:
    """What follows `data:`, or None for comments and other fields."""
    lines = [line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def is_error(whole: bytes) -> bool:
    """True if the first event is an error: nothing of the answer has been seen."""
    events = split_events(whole)
    data = event_data(events[0]) if events else None
    return data is not None and data.startswith((b'{"error"', b'{"object":"error"'))
