"""One generation through a prefill and a decode server: the order of the legs, and retries.

Invariants:
  1. A leg is retried only while no byte of the answer has gone to the client.
  2. Whatever ends a request ends both of its legs: a closed connection aborts the request in vLLM.
  3. A lease is closed exactly once, whichever way its leg ends.
"""

import asyncio
import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp

from ...pull.log_limit import quiet_logger
from ..errors import ProxyError
from ..metrics import Metrics
from ..options import Options
from ..servers.table import Lease, NoServer, Role, ServerPool
from .answer import Answer, stop
from .failures import LegFailure, reason_of
from .legs import Route, decode_body, headers, prefill_body

log = quiet_logger("stagelink.proxy")


@dataclass(frozen=True)
class Call:
    """One generation that a client wants: one prompt, one choice."""

    path: str
    body: dict[str, Any]
    stream: bool
    authorization: str | None
    request_id: str  # As the client knows it.
    deadline: float  # Of the event loop's clock.


@dataclass
class _Progress:
    """What earlier attempts of one call have found out."""

    avoid: dict[Role, set[str]] = field(default_factory=lambda: {role: set() for role in Role})
    # Read mode: a prefill whose blocks no decode server has touched yet.
    prefilled: tuple[Route, dict[str, Any] | None] | None = None


class Relay:
    """Opens answers. Thread-safety: one event loop."""

    def __init__(
        self, pool: ServerPool, session: aiohttp.ClientSession, options: Options, metrics: Metrics
    ) -> None:
        self._pool = pool
        self._session = session
        self._options = options
        self._metrics = metrics
        self._late_prefills: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        await stop(*self._late_prefills)

    async def open(self, call: Call) -> Answer:
        """The answer to a call, its beginning read. Raises ProxyError, or a LegFailure that has
        the answer of a server that refused the request."""
        progress = _Progress()
        attempts = 1 + self._options.retries
        for attempt in range(1, attempts + 1):
            try:
                return await self._attempt(call, progress)
            except NoServer as error:
                raise ProxyError(503, str(error), error.retry_after_s) from None
            except LegFailure as failure:
                if failure.answer is not None:
                    raise
                if not failure.kind.retryable or attempt == attempts:
                    raise failure.for_client(attempt) from failure
                progress.avoid[failure.role].add(failure.url)
                if failure.role is Role.PREFILL or not failure.untouched:
                    progress.prefilled = None
                self._metrics.retries.labels(failure.role.value).inc()
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, call: Call, progress: _Progress) -> Answer:
        mode = self._pool.mode
        if mode is None:
            raise ProxyError(
                503,
                "no server has said yet whether it transfers in read or in write mode: wait for "
                "the first heartbeat, or say it with --mode",
                3.0,
            )
        decode = self._pool.take(Role.DECODE, progress.avoid[Role.DECODE])
        prefill: Lease | None = None
        try:
            if progress.prefilled is not None:
                route, params = progress.prefilled
                return await self._leg(call, route.with_decode(decode, mode), decode, params)
            prefill = self._pool.take(Role.PREFILL, progress.avoid[Role.PREFILL])
            route = Route.of(prefill, decode, mode)
            if mode == "write":
                return await self._both(call, route, prefill, decode)
            params = await self._prefill(call, route, prefill)
            if not params:
                self._metrics.without_blocks.inc()
            prefill.close()
            progress.prefilled = (route, params)
            return await self._leg(call, route, decode, params)
        except BaseException:
            decode.close()
            if prefill is not None:
                prefill.close()
            raise

    async def _both(self, call: Call, route: Route, prefill: Lease, decode: Lease) -> Answer:
        """Write mode: decode allocates and waits while prefill computes and pushes."""
        pushing = asyncio.create_task(self._prefill(call, route, prefill))
        answering = asyncio.create_task(self._leg(call, route, decode, None))
        try:
            pending: set[asyncio.Task[Any]] = {pushing, answering}
            while answering in pending:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if pushing.done() and not answering.done():
                    pushing.result()  # Without it decode waits in vain.
            answer = answering.result()
        except BaseException:
            await stop(pushing, answering)
            raise
        answer.attach(pushing)
        self._late_prefills.add(pushing)
        pushing.add_done_callback(lambda task: self._prefill_ended(task, prefill))
        return answer

    def _prefill_ended(self, task: "asyncio.Task[Any]", lease: Lease) -> None:
        """After decode's first byte the outcome of prefill changes nothing; it was counted."""
        lease.close()
        self._late_prefills.discard(task)
        if not task.cancelled():
            task.exception()

    async def _prefill(self, call: Call, route: Route, lease: Lease) -> dict[str, Any] | None:
        """The kv_transfer_params that the prefill server returns, None if there are none."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        body = prefill_body(call.body, route)
        bound_s = self._options.prefill_timeout_s
        answer = await self._post(call, route, lease, body, bound_s)
        await answer.close()
        try:
            params = json.loads(answer.body).get("kv_transfer_params")
            if params is not None and not isinstance(params, dict):
                raise TypeError
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise self._failed(
                call, lease, "bad_answer", "it did not answer with a completion"
            ) from None
        self._metrics.prefill_seconds.observe(loop.time() - started)
        return params or None

    async def _leg(
        self, call: Call, route: Route, lease: Lease, params: dict[str, Any] | None
    ) -> Answer:
        """The decode leg."""
        log.debug(
            "request %s: %s, transfer %s, prefill %s, decode %s",
            call.request_id, call.path, route.transfer_id, route.prefill.url, route.decode.url,
        )  # fmt: skip
        return await self._post(call, route, lease, decode_body(call.body, route, params), None)

    async def _post(
        self, call: Call, route: Route, lease: Lease, body: dict[str, Any], bound_s: float | None
    ) -> Answer:
        """Sends one leg and reads the beginning of its answer; all of it within `bound_s`."""
        loop = asyncio.get_running_loop()
        left = call.deadline - loop.time()
        if left <= 0:
            raise self._failed(call, lease, "deadline", "the request's time is over")
        timeout = aiohttp.ClientTimeout(
            total=left if bound_s is None else min(left, bound_s),
            connect=self._options.connect_timeout_s,
            sock_read=self._options.stream_timeout_s if body.get("stream") else None,
        )
        response = None
        try:
            response = await self._session.post(
                lease.server.url + call.path, json=body, timeout=timeout, allow_redirects=False,
                headers=headers(route, lease.rank, call.authorization),
            )  # fmt: skip
            answer = Answer(response, lease, call.deadline, partial(self._failed, call, lease))
            await answer.begin(self._options.max_response_bytes)
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            if response is not None:
                response.close()
            late = loop.time() >= call.deadline
            raise self._failed(call, lease, *reason_of(error, late)) from error
        except BaseException:
            if response is not None:
                response.close()
            raise
        lease.answered()
        if answer.status != 200:
            raise self._refusal(call, answer, lease)
        return answer

    def _refusal(self, call: Call, answer: Answer, lease: Lease) -> LegFailure:
        """The failure that a status other than 200 stands for."""
        status, body = answer.status, answer.body
        text = f"HTTP {status} {' '.join(body[:300].decode(errors='replace').split())}"
        if status in (429, 503):
            return self._failed(call, lease, "busy", text)
        if status >= 500:
            return self._failed(call, lease, "server_error", text)
        # Without an error of OpenAI's shape it is no answer of an OpenAI server.
        if 400 <= status and b'"error"' in body:
            return self._failed(call, lease, "refused", text, (status, body))
        return self._failed(call, lease, "bad_answer", text)

    def _failed(
        self, call: Call, lease: Lease, reason: str, text: str,
        answer: tuple[int, bytes] | None = None,
    ) -> LegFailure:  # fmt: skip
        """Counts a failed leg and logs it: the only place that does."""
        failure = LegFailure(lease.server.role, lease.server.url, reason, text, answer)
        self._metrics.leg_failures.labels(failure.role.value, reason).inc()
        first = failure.kind.ill and lease.failed(text)
        if first:
            log.warning("request %s: %s; it is left alone for a while", call.request_id, failure)
        elif not failure.kind.ill and reason not in ("refused", "busy"):
            log.warning("request %s: %s", call.request_id, failure)
        return failure
