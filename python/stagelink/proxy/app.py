"""The HTTP side: routes, the API key, errors in OpenAI's shape, status and metrics."""

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from aiohttp import web

from stagelink import __version__

from ..pull.log_limit import quiet_logger
from .errors import ProxyError
from .generation.failures import reason_of
from .generation.generate import Exchange, Generate
from .generation.relay import Relay
from .metrics import Metrics
from .options import Options
from .servers.table import NoServer, Role, ServerPool

log = quiet_logger("stagelink.proxy")

_OPEN_PATHS = {"/health", "/healthz", "/metrics"}
_GENERATE_PATHS = ("/v1/completions", "/v1/chat/completions")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _error(error: ProxyError) -> web.Response:
    return web.json_response(error.document(), status=error.status, headers=error.headers())


class App:
    """The proxy's HTTP application over a table of servers. Thread-safety: one event loop."""

    def __init__(self, options: Options, pool: ServerPool, metrics: Metrics) -> None:
        self._options = options
        self._pool = pool
        self._metrics = metrics
        self._started = time.monotonic()
        self._running = 0
        self._session: aiohttp.ClientSession | None = None

    def make(self) -> web.Application:
        app = web.Application(
            client_max_size=self._options.max_body_bytes,
            middlewares=[self._errors, self._key],
        )
        app.cleanup_ctx.append(self._client)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_get("/status", self._status)
        for path in _GENERATE_PATHS:
            app.router.add_post(path, self._generate)
        return app

    async def _client(self, app: web.Application) -> Any:
        # vLLM's HTTP server closes connections that are idle for 5 s; a request must not meet that.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            self._session = session
            relay = Relay(self._pool, session, self._options, self._metrics)
            self._generator = Generate(relay, self._options, self._metrics)
            yield
            await relay.close()

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except ProxyError as error:
            return _error(error)
        except web.HTTPNotFound:
            paths = ", ".join((*_GENERATE_PATHS, "/v1/models"))
            return _error(ProxyError(404, f"{request.path} is not served here; {paths} are"))
        except web.HTTPMethodNotAllowed as error:
            allowed = " or ".join(sorted(error.allowed_methods))
            return _error(ProxyError(405, f"{request.path} takes {allowed}"))
        except web.HTTPException:
            raise
        except ConnectionResetError:
            raise
        except Exception:
            log.exception("a request failed in a way that the proxy does not know")
            return _error(ProxyError(500, "the proxy failed; its log says how"))

    @web.middleware
    async def _key(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        wanted = self._options.api_key
        if wanted is not None and request.path not in _OPEN_PATHS:
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {wanted}".encode()):
                raise ProxyError(401, "send the proxy's API key: Authorization: Bearer KEY")
        return await handler(request)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if self._running >= self._options.max_requests:
            self._metrics.requests.labels(request.path, "busy").inc()
            raise ProxyError(503, f"{self._running} requests run already (--max-requests)", 1.0)
        exchange = Exchange(request)
        started = time.monotonic()
        outcome = "failed"
        self._running += 1
        self._metrics.in_flight.inc()
        try:
            response = await self._generator.handle(exchange)
            outcome = exchange.outcome or ("ok" if response.status < 400 else "refused")
            return response
        except ProxyError as error:
            outcome = "refused" if error.status < 500 else "failed"
            raise
        except (asyncio.CancelledError, ConnectionResetError):
            outcome = exchange.outcome or "client_gone"
            raise
        finally:
            self._running -= 1
            self._metrics.in_flight.dec()
            self._metrics.requests.labels(request.path, outcome).inc()
            self._metrics.request_seconds.observe(time.monotonic() - started)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        """The list of a decode server or, if none answers, of a prefill server."""
        assert self._session is not None
        sent = {}
        if "Authorization" in request.headers:
            sent["Authorization"] = request.headers["Authorization"]
        timeout = aiohttp.ClientTimeout(total=self._options.connect_timeout_s * 2)
        why = ""
        for role in (Role.DECODE, Role.PREFILL):
            try:
                lease = self._pool.take(role)
            except NoServer as error:
                why = why or str(error)
                continue
            try:
                async with self._session.get(
                    f"{lease.server.url}/v1/models", timeout=timeout, headers=sent
                ) as response:
                    body = await response.content.read(self._options.max_response_bytes)
                    lease.answered()
                    return web.Response(
                        status=response.status, body=body,
                        headers={"Content-Type": response.headers.get("Content-Type", "")},
                    )  # fmt: skip
            except (aiohttp.ClientError, asyncio.TimeoutError) as error:
                reason, why = reason_of(error, False)
                if reason == "connect":
                    lease.failed(why)
            finally:
                lease.close()
        raise ProxyError(503, f"no server gave a list of models: {why}", 1.0)

    async def _health(self, request: web.Request) -> web.Response:
        """Can requests be served? For load balancers."""
        able = {role.value: self._pool.able(role) for role in Role}
        good = all(able.values()) and self._pool.mode is not None
        return web.json_response(
            {"ready": good, "mode": self._pool.mode, "servers": able}, status=200 if good else 503
        )

    async def _alive(self, request: web.Request) -> web.Response:
        """Does the proxy itself live? For supervisors."""
        return web.json_response({"alive": True})

    async def _show_metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _status(self, request: web.Request) -> web.Response:
        document = {
            "version": __version__,
            "uptime_s": round(time.monotonic() - self._started, 1),
            "requests_in_flight": self._running,
            **self._pool.status(),
        }
        return web.json_response(document, dumps=_pretty)


def _pretty(document: Any) -> str:
    return json.dumps(document, indent=2) + "\n"
