"""Servers that speak like vLLM with a MoRIIO connector, and a proxy in front of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import aiohttp
from aiohttp import web

from stagelink.proxy.options import Options, ServerOption
from stagelink.proxy.run import Proxy

T = TypeVar("T")
TEST_S = 60.0

Special = Callable[["Fake", web.Request, dict[str, Any]], Awaitable[web.StreamResponse | None]]


def run(test: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(test, TEST_S))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


@dataclass
class Leg:
    """One request that a fake has received."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    cancelled: bool = False
    ended: bool = False

    @property
    def params(self) -> dict[str, Any]:
        found: dict[str, Any] = self.body["kv_transfer_params"]
        return found


@dataclass
class Transfers:
    """What has been prefilled, by transfer id."""

    prefilled: dict[str, asyncio.Event] = field(default_factory=dict)

    def event(self, transfer_id: str) -> asyncio.Event:
        return self.prefilled.setdefault(transfer_id, asyncio.Event())


def token(body: dict[str, Any], index: int) -> str:
    prompt = body.get("prompt", body.get("messages"))
    return f"<{json.dumps(prompt)} {body.get('seed')} {index} é>"


class Fake:
    """One server. `special` may answer in its place."""

    def __init__(self, role: str, transfers: Transfers, mode: str) -> None:
        self.role = role
        self.mode = mode
        self.transfers = transfers
        self.legs: list[Leg] = []
        self.special: Special | None = None
        self.sent: list[bytes] = []  # The bytes of the streams; for one stream at a time.
        self.running = 0
        self.most_running = 0
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> "Fake":
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/completions", self._handle)
        app.router.add_post("/v1/chat/completions", self._handle)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        bound = self._runner.addresses[0][1]
        self.url = f"http://[{host}]:{bound}" if ":" in host else f"http://{host}:{bound}"
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "tiny", "by": self.role}]})

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        leg = Leg(request.path, request.headers, body)
        self.legs.append(leg)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            answer = await self.special(self, request, body) if self.special else None
            if answer is None:
                answer = await (
                    self._prefill(leg) if self.role == "P" else self._decode(request, leg)
                )
            return answer
        except asyncio.CancelledError:
            leg.cancelled = True
            raise
        finally:
            self.running -= 1
            leg.ended = True

    async def _prefill(self, leg: Leg) -> web.Response:
        params = leg.params
        assert params["do_remote_decode"] is True and params["do_remote_prefill"] is False
        assert leg.body["max_tokens"] == 1 and leg.body["stream"] is False
        self.transfers.event(params["transfer_id"]).set()
        returned = None
        if self.mode == "read":
            returned = {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_block_ids": [[4, 5]],
                "remote_engine_id": "10.0.0.1:6301",
                "remote_host": "10.0.0.1",
                "remote_handshake_port": "6301",
                "remote_notify_port": "61005",
                "remote_dp_rank": int(leg.headers.get("X-data-parallel-rank", 0)),
                "remote_dp_rank_override": True,
                "remote_dp_size": 1,
                "tp_size": 2,
                "transfer_id": params["transfer_id"],
            }
        return web.json_response(self.completion(leg, 0, 1) | {"kv_transfer_params": returned})

    async def _decode(self, request: web.Request, leg: Leg) -> web.StreamResponse:
        params = leg.params
        assert params["do_remote_prefill"] is True and params["do_remote_decode"] is False
        event = self.transfers.event(params["transfer_id"])
        if self.mode == "read":
            assert event.is_set(), "decode was asked before prefill had answered"
            assert params["remote_block_ids"] == [[4, 5]]
        tokens = leg.body.get("max_tokens", 3)
        if not leg.body.get("stream"):
            await event.wait()
            return web.json_response(self.completion(leg, 0, tokens))
        response = await self.begin_stream(request)
        await event.wait()
        for index in range(tokens):
            await self.send(response, self.event(leg, index))
        if (leg.body.get("stream_options") or {}).get("include_usage"):
            last = self.completion(leg, 0, tokens) | {"choices": []}
            await self.send(response, b"data: " + json.dumps(last).encode() + b"\n\n")
        await self.send(response, b"data: [DONE]\n\n")
        return response

    async def begin_stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        self.sent.append(b"")
        return response

    async def send(self, response: web.StreamResponse, event: bytes) -> None:
        """In two writes, so that events do not come as chunks."""
        self.sent[-1] += event
        half = len(event) // 2
        await response.write(event[:half])
        await response.write(event[half:])

    def event(self, leg: Leg, index: int) -> bytes:
        document = self.completion(leg, index, 1)
        del document["usage"]
        return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"

    def completion(self, leg: Leg, first: int, tokens: int) -> dict[str, Any]:
        text = "".join(token(leg.body, index) for index in range(first, first + tokens))
        usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
        return {
            "id": f"cmpl-{leg.headers['X-Request-Id']}",
            "choices": [{"index": 0, "text": text, "finish_reason": "length"}],
            "usage": usage,
        }


@dataclass
class Rig:
    """A proxy, its servers and a client."""

    proxy: Proxy
    prefill: list[Fake]
    decode: list[Fake]
    client: aiohttp.ClientSession
    url: str

    async def post(
        self, body: dict[str, Any], path: str = "/v1/completions", **headers: str
    ) -> tuple[int, dict[str, Any]]:
        async with self.client.post(self.url + path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def stream(self, body: dict[str, Any], path: str = "/v1/completions") -> bytes:
        async with self.client.post(self.url + path, json=body | {"stream": True}) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.content_type == "text/event-stream"
            return await answer.read()

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.client.get(self.url + path, headers=headers) as answer:
            return answer.status, await answer.json()

    async def metric(self, sample: str) -> float:
        """The value of one line of /metrics, 0 if it is not there."""
        async with self.client.get(self.url + "/metrics") as answer:
            for line in (await answer.text()).splitlines():
                if line.startswith(f"{sample} "):
                    return float(line.rpartition(" ")[2])
        return 0.0


@asynccontextmanager
async def rig(mode: str, prefill: int = 1, decode: int = 1, **changes: Any) -> AsyncIterator[Rig]:
    """A proxy that knows its servers by options; `changes` are of its Options."""
    transfers = Transfers()
    async with AsyncExitStack() as stack:
        fakes: dict[str, list[Fake]] = {"P": [], "D": []}
        for role, count in (("P", prefill), ("D", decode)):
            for _ in range(count):
                fake = await Fake(role, transfers, mode).start()
                stack.push_async_callback(fake.stop)
                fakes[role].append(fake)
        server = changes.pop("server", {})
        options = Options(
            prefill=tuple(ServerOption(fake.url, "127.0.0.1", **server) for fake in fakes["P"]),
            decode=tuple(ServerOption(fake.url, "127.0.0.1", **server) for fake in fakes["D"]),
            mode=mode,
            listen=("127.0.0.1", 0),
            grace_s=0.2,
        )
        proxy = Proxy(replace(options, **changes))
        stack.push_async_callback(proxy.stop)
        await proxy.start()
        client = await stack.enter_async_context(aiohttp.ClientSession())
        yield Rig(proxy, fakes["P"], fakes["D"], client, f"http://127.0.0.1:{proxy.port}")
