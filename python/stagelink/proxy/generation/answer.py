"""What a server answers to one leg, read as it comes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from ..servers.table import Lease
from .events import EventSplitter, is_error
from .failures import LegFailure, reason_of

# Makes, counts and logs a failure of this leg: reason and text.
Fail = Callable[[str, str], LegFailure]


async def stop(*tasks: "asyncio.Task[Any]") -> None:
    """Ends tasks and closes the answers that they have already."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Answer):
            await result.close()


class Answer:
    """An answer of which the beginning has arrived. Always to be closed, which ends the leg."""

    def __init__(
        self, response: aiohttp.ClientResponse, lease: Lease, deadline: float, fail: Fail
    ) -> None:
        self.status = response.status
        self.content_type = response.headers.get("Content-Type", "application/json")
        self.streams = self.content_type.startswith("text/event-stream")
        self.body = b""  # The whole of it, unless it streams.
        self.first = b""  # The first event or events, if it streams.
        self._response = response
        self._lease = lease
        self._deadline = deadline
        self._fail = fail
        self._splitter = EventSplitter()
        self._other_leg: asyncio.Task[Any] | None = None
        self._whole = False

    def attach(self, other_leg: "asyncio.Task[Any]") -> None:
        """A leg that ends with this one, unless this one has come to its end by itself."""
        self._other_leg = other_leg

    async def begin(self, max_bytes: int) -> None:
        """Reads the body or, of a stream, the first event. Raises what aiohttp raises."""
        if not self.streams:
            parts = bytearray()
            async for chunk in self._response.content.iter_any():
                parts += chunk
                if len(parts) > max_bytes:
                    raise self._fail("too_large", f"more than {max_bytes} bytes")
            self.body = bytes(parts)
            self._whole = True
            return
        while not self.first:
            chunk = await self._response.content.readany()
            if not chunk:
                raise self._fail("broken", "its stream ended before the first event")
            self.first = self._splitter.push(chunk)
        if is_error(self.first):
            text = self.first[:300].decode(errors="replace").strip()
            raise self._fail("server_error", f"its stream begins with an error: {text}")

    async def chunks(self) -> AsyncIterator[bytes]:
        """Whole events as they come. Raises LegFailure when the server does not go on."""
        yield self.first
        while True:
            try:
                chunk = await self._response.content.readany()
            except (aiohttp.ClientError, asyncio.TimeoutError) as error:
                late = asyncio.get_running_loop().time() >= self._deadline
                raise self._fail(*reason_of(error, late)) from error
            events = self._splitter.push(chunk) if chunk else self._splitter.rest()
            if events:
                yield events
            if not chunk:
                self._whole = True
                return

    async def close(self) -> None:
        if self._whole:
            self._response.release()
        else:
            self._response.close()
        self._lease.close()
        if self._other_leg is not None and not self._whole:
            await stop(self._other_leg)

    def bad_stream(self) -> LegFailure:
        return self._fail("bad_answer", "an event of its stream is not JSON")
