"""The two calls that generate: from a client's request to its answer."""

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from ...pull.log_limit import quiet_logger
from ..errors import ProxyError
from ..metrics import Metrics
from ..options import Options
from .answer import Answer, stop
from .failures import LegFailure
from .relay import Call, Relay
from .siblings import StreamMerger, merge_answers, split_request

log = quiet_logger("stagelink.proxy")

_CLIENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# Events that wait for a client that takes several choices at once.
_QUEUE_EVENTS = 64


@dataclass
class Exchange:
    """One request of a client. `outcome` is set where it is not what the status says."""

    request: web.Request
    outcome: str = ""
    request_id: str = field(init=False)

    def __post_init__(self) -> None:
        asked = self.request.headers.get("X-Request-Id", "")
        self.request_id = asked if _CLIENT_ID.fullmatch(asked) else uuid.uuid4().hex


class Generate:
    """Serves /v1/completions and /v1/chat/completions. Thread-safety: one event loop."""

    def __init__(self, relay: Relay, options: Options, metrics: Metrics) -> None:
        self._relay = relay
        self._options = options
        self._metrics = metrics

    async def handle(self, exchange: Exchange) -> web.StreamResponse:
        request = exchange.request
        loop = asyncio.get_running_loop()
        started = loop.time()
        body = await self._read_body(request)
        chat = request.path.endswith("/chat/completions")
        bodies = split_request(body, chat, self._options.max_siblings)
        stream = bool(body.get("stream"))
        calls = [
            Call(
                request.path, one, stream, request.headers.get("Authorization"),
                exchange.request_id,
                started + self._options.request_timeout_s,
            )
            for one in bodies
        ]  # fmt: skip
        n = body.get("n") or 1
        async with AsyncExitStack() as stack:
            try:
                answers = await self._open_all(calls, stack)
            except LegFailure as refusal:
                assert refusal.answer is not None
                status, said = refusal.answer
                return web.Response(status=status, body=said, content_type="application/json")
            self._metrics.first_byte_seconds.observe(loop.time() - started)
            response = web.StreamResponse(headers={"X-Request-Id": exchange.request_id})
            response.headers["Content-Type"] = answers[0].content_type
            if stream and all(answer.streams for answer in answers):
                response.headers["Cache-Control"] = "no-cache"
                events = answers[0].chunks() if len(answers) == 1 else _merged(answers, n)
            else:
                whole = _whole(answers, n)
                response.content_length = len(whole)
                events = _once(whole)
            await self._pass_on(exchange, response, events)
            return response

    async def _read_body(self, request: web.Request) -> dict[str, Any]:
        try:
            raw = await asyncio.wait_for(request.read(), self._options.client_timeout_s)
        except asyncio.TimeoutError:
            raise ProxyError(408, "the request's body did not arrive in time") from None
        except web.HTTPRequestEntityTooLarge:
            limit = self._options.max_body_bytes
            raise ProxyError(413, f"a body of more than {limit} bytes (--max-body)") from None
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise ProxyError(400, f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise ProxyError(400, "the body is not a JSON object")
        if body.get("kv_transfer_params") is not None:
            raise ProxyError(400, "kv_transfer_params: the proxy writes them, leave them out")
        return body

    async def _open_all(self, calls: list[Call], stack: AsyncExitStack) -> list[Answer]:
        """All begin, or none: the first failure ends the others."""
        tasks = [asyncio.create_task(self._relay.open(call)) for call in calls]
        try:
            answers = await asyncio.gather(*tasks)
        except BaseException:
            await stop(*tasks)
            raise
        for answer in answers:
            stack.push_async_callback(answer.close)
        return answers

    async def _pass_on(
        self, exchange: Exchange, response: web.StreamResponse, events: AsyncIterator[bytes]
    ) -> None:
        """Writes an answer as fast as the client takes it."""
        bound_s = self._options.client_timeout_s
        await response.prepare(exchange.request)
        try:
            try:
                async for chunk in events:
                    await asyncio.wait_for(response.write(chunk), bound_s)
            except LegFailure as failure:
                # The status line is gone: the error is an event, and no [DONE] follows it.
                exchange.outcome = "stream_broken"
                await asyncio.wait_for(response.write(failure.for_client().event()), bound_s)
            await asyncio.wait_for(response.write_eof(), bound_s)
        except asyncio.TimeoutError:
            exchange.outcome = "client_stuck"
            log.warning("request %s: its client took nothing for %g s; ended",
                        exchange.request_id, bound_s)  # fmt: skip
            if exchange.request.transport is not None:
                exchange.request.transport.abort()
            raise ConnectionResetError from None


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _whole(answers: list[Answer], n: int) -> bytes:
    if len(answers) == 1:
        return answers[0].body
    try:
        return merge_answers([answer.body for answer in answers], n)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ProxyError(502, "a decode server's answer is not a completion") from None


async def _merged(answers: list[Answer], n: int) -> AsyncIterator[bytes]:
    """The events of all answers as they come. Raises the first failure."""
    queue: asyncio.Queue[tuple[int, bytes | Exception | None]] = asyncio.Queue(_QUEUE_EVENTS)

    async def read(index: int, answer: Answer) -> None:
        try:
            async for chunk in answer.chunks():
                await queue.put((index, chunk))
        except LegFailure as failure:
            await queue.put((index, failure))
        else:
            await queue.put((index, None))

    merger = StreamMerger(len(answers), n)
    readers = [asyncio.create_task(read(i, answer)) for i, answer in enumerate(answers)]
    open_streams = len(answers)
    try:
        while open_streams:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                open_streams -= 1
                continue
            try:
                events = merger.events(index, item)
            except (ValueError, TypeError, RecursionError):
                raise answers[index].bad_stream() from None
            if events:
                yield events
        yield merger.end()
    finally:
        await stop(*readers)
