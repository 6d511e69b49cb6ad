"""Servers that die, refuse, stall or break off, and clients that go away."""

import asyncio
import json
import socket
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from fakes import Fake, Rig, rig, run, token, until

from stagelink.proxy.servers import table

MODES = pytest.mark.parametrize("mode", ["read", "write"])
PROMPT: dict[str, Any] = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
STREAM = PROMPT | {"stream": True}
TEXT = "".join(token(PROMPT, i) for i in range(3))
ILL = 'stagelink_proxy_leg_failures_total{{reason="{}",role="{}"}}'


@pytest.fixture(autouse=True)
def nobody_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: a server that failed stays down for the whole test."""
    monkeypatch.setattr(table, "BACK_OFF_S", 30.0)


async def cut(fake: Fake, request: web.Request, body: dict[str, Any]) -> None:
    """Closes the connection instead of an answer."""
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(60)


async def hang(fake: Fake, request: web.Request, body: dict[str, Any]) -> None:
    await asyncio.sleep(60)


async def error_500(fake: Fake, request: web.Request, body: dict[str, Any]) -> web.Response:
    return web.json_response({"error": {"message": "engine is dead"}}, status=500)


async def error_event(fake: Fake, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await fake.begin_stream(request)
    await fake.send(response, b'data: {"error": {"message": "load failed", "code": 500}}\n\n')
    return response


async def busy(fake: Fake, request: web.Request, body: dict[str, Any]) -> web.Response:
    return web.json_response({"error": {"message": "queue is full"}}, status=503)


async def no_json(fake: Fake, request: web.Request, body: dict[str, Any]) -> web.Response:
    return web.Response(text="<html>welcome</html>", content_type="text/html")


async def break_off(fake: Fake, request: web.Request, body: dict[str, Any]) -> None:
    """Two events and a half, then the end of the connection."""
    response = await fake.begin_stream(request)
    for index in range(2):
        await fake.send(response, fake.event(fake.legs[-1], index))
    await response.write(b'data: {"id": "half')
    await asyncio.sleep(0.05)
    await cut(fake, request, body)


@MODES
@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
def test_another_server_does_it_if_one_is_dead(mode: str, role: str, stream: bool) -> None:
    async def test() -> None:
        async with rig(mode, prefill=2, decode=2) as r:
            dead, _ = r.prefill if role == "prefill" else r.decode
            await dead.stop()
            for _ in range(4):
                if stream:
                    assert await r.stream(PROMPT)
                else:
                    status, answer = await r.post(PROMPT)
                    assert (status, answer["choices"][0]["text"]) == (200, TEXT)
            assert await r.metric(ILL.format("connect", role)) == 1
            _, status_page = await r.get("/status")
            states = {server["url"]: server for server in status_page["servers"]}
            assert states[dead.url]["state"] == "down"
            assert "refused" in states[dead.url]["last_error"]

    run(test())


def test_a_prefill_serves_the_next_decode_if_the_first_was_never_reached() -> None:
    async def test() -> None:
        async with rig("read", decode=2) as r:
            await r.decode[0].stop()
            assert (await r.post(PROMPT))[0] == 200
            assert len(r.prefill[0].legs) == 1

    run(test())


@MODES
@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("special", [cut, error_500, busy])
def test_a_server_that_had_the_request_costs_a_new_transfer(
    mode: str, role: str, special: Any
) -> None:
    async def test() -> None:
        async with rig(mode, prefill=2, decode=2) as r:
            (r.prefill if role == "prefill" else r.decode)[0].special = special
            status, answer = await r.post(PROMPT)
            assert (status, answer["choices"][0]["text"]) == (200, TEXT)
            legs = r.prefill[0].legs + r.prefill[1].legs
            assert len({leg.params["transfer_id"] for leg in legs}) == len(legs) == 2
            assert await r.metric(f'stagelink_proxy_retries_total{{role="{role}"}}') == 1
            await until(lambda: not any(fake.running for fake in r.prefill + r.decode))

    run(test())


@MODES
def test_a_stream_that_begins_with_an_error_is_retried(mode: str) -> None:
    async def test() -> None:
        async with rig(mode, decode=2) as r:
            r.decode[0].special = error_event
            assert await r.stream(PROMPT) == r.decode[1].sent[0]

    run(test())


@MODES
def test_the_only_server_is_asked_again_if_it_is_alive(mode: str) -> None:
    async def test() -> None:
        async with rig(mode) as r:
            asked = []

            async def once(fake: Fake, request: web.Request, body: dict[str, Any]) -> Any:
                asked.append(1)
                return await error_500(fake, request, body) if len(asked) == 1 else None

            r.decode[0].special = once
            assert (await r.post(PROMPT))[0] == 200
            assert len(asked) == 2

    run(test())


@pytest.mark.parametrize("retries", [0, 2])
def test_retries_are_bounded(retries: int) -> None:
    async def test() -> None:
        async with rig("read", retries=retries) as r:
            r.decode[0].special = error_500
            status, answer = await r.post(PROMPT)
            assert (status, answer["error"]["code"]) == (502, 502)
            assert answer["error"]["type"] == "bad_gateway"
            assert "engine is dead" in answer["error"]["message"]
            assert len(r.decode[0].legs) == 1 + retries

    run(test())


@MODES
def test_a_stream_that_breaks_off_ends_with_an_error(mode: str) -> None:
    async def test() -> None:
        async with rig(mode, decode=2) as r:
            for fake in r.decode:
                fake.special = break_off
            got = await r.stream(PROMPT)
            *whole, last = [event for event in got.split(b"\n\n") if event]
            assert b"\n\n".join(whole) + b"\n\n" == r.decode[0].sent[0]
            error = json.loads(last.removeprefix(b"data: "))["error"]
            assert error["code"] == 502
            assert "decode server" in error["message"]
            assert sum(len(fake.legs) for fake in r.decode) == 1, "bytes had gone to the client"
            broken = (
                'stagelink_proxy_requests_total{outcome="stream_broken",path="/v1/completions"}'
            )
            assert await r.metric(broken) == 1

    run(test())


def test_one_of_several_choices_that_breaks_off_ends_all() -> None:
    async def test() -> None:
        async with rig("read", decode=2) as r:
            r.decode[1].special = break_off
            got = await r.stream(PROMPT | {"n": 2, "max_tokens": 2})
            assert b'"error"' in got
            assert b"[DONE]" not in got
            await until(lambda: not any(fake.running for fake in r.decode))

    run(test())


@MODES
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_nobody_to_ask_is_said_with_what_to_do(mode: str, role: str) -> None:
    async def test() -> None:
        async with rig(mode) as r:
            fake = (r.prefill if role == "prefill" else r.decode)[0]
            await fake.stop()
            async with r.client.post(r.url + "/v1/completions", json=PROMPT) as answer:
                error = (await answer.json())["error"]
                assert answer.status == error["code"] == 503
                assert error["type"] == "service_unavailable"
                assert f"none of 1 {role} servers can be reached ({fake.url}" in error["message"]
                assert int(answer.headers["Retry-After"]) >= 1
            assert (await r.get("/health"))[0] == 503
            assert (await r.get("/healthz"))[0] == 200

    run(test())


def test_a_server_that_comes_back_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "BACK_OFF_S", 0.2)

    async def test() -> None:
        async with rig("read") as r:
            port = int(r.decode[0].url.rpartition(":")[2])
            await r.decode[0].stop()
            assert (await r.post(PROMPT))[0] in (502, 503)
            await r.decode[0].start(port=port)
            while (await r.post(PROMPT))[0] != 200:
                await asyncio.sleep(0.05)
            _, page = await r.get("/status")
            assert {server["state"] for server in page["servers"]} == {"up"}

    run(test())


@MODES
def test_a_prefill_that_stalls_ends_the_request(mode: str) -> None:
    async def test() -> None:
        async with rig(mode, prefill_timeout_s=0.2, retries=0) as r:
            r.prefill[0].special = hang
            status, answer = await r.post(PROMPT)
            assert status == 504
            assert "prefill server" in answer["error"]["message"]
            await until(lambda: not r.prefill[0].running and not r.decode[0].running)

    run(test())


@MODES
def test_a_silent_stream_ends_the_request(mode: str) -> None:
    async def test() -> None:
        async with rig(mode, stream_timeout_s=0.2, retries=0) as r:
            r.decode[0].special = hang
            status, answer = await r.post(STREAM)
            assert (status, answer["error"]["type"]) == (504, "gateway_timeout")

    run(test())


def test_a_stream_that_falls_silent_ends_with_an_error() -> None:
    async def test() -> None:
        async def fall_silent(fake: Fake, request: web.Request, body: dict[str, Any]) -> None:
            response = await fake.begin_stream(request)
            await fake.send(response, b'data: {"id": "1"}\n\n')
            await asyncio.sleep(60)

        async with rig("write", stream_timeout_s=1.0) as r:
            r.decode[0].special = fall_silent
            first, last, end = (await r.stream(PROMPT)).split(b"\n\n")
            assert (first, end) == (b'data: {"id": "1"}', b"")
            assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == 504

    run(test())


@MODES
def test_a_request_has_a_deadline_with_all_its_retries(mode: str) -> None:
    async def test() -> None:
        async with rig(mode, request_timeout_s=1.0) as r:
            r.decode[0].special = hang
            status, answer = await r.post(PROMPT)
            assert status == 504
            assert "--request-timeout" in answer["error"]["message"]
            assert len(r.decode[0].legs) == 1

    run(test())


def test_write_mode_ends_decode_if_prefill_refuses() -> None:
    async def test() -> None:
        async def refuse(fake: Fake, request: web.Request, body: dict[str, Any]) -> web.Response:
            error = {"error": {"message": "prompt too long", "type": "BadRequestError"}}
            return web.json_response(error, status=400)

        async with rig("write") as r:
            r.prefill[0].special = refuse
            status, answer = await r.post(STREAM)
            assert (status, answer["error"]["message"]) == (400, "prompt too long")
            await until(lambda: r.decode[0].running == 0)
            assert all(leg.cancelled for leg in r.decode[0].legs)
            assert len(r.prefill[0].legs) == 1, "a refusal is not retried"

    run(test())


def test_a_server_that_is_no_openai_server_is_named() -> None:
    async def test() -> None:
        async with rig("read", retries=0) as r:
            r.prefill[0].special = no_json
            status, answer = await r.post(PROMPT)
            assert status == 502
            assert "is it a vLLM server with a KV connector?" in answer["error"]["message"]

    run(test())


def test_a_prefill_without_blocks_lets_decode_compute() -> None:
    async def test() -> None:
        async def nothing(fake: Fake, request: web.Request, body: dict[str, Any]) -> web.Response:
            return web.json_response({"choices": [], "kv_transfer_params": None})

        async def compute(fake: Fake, request: web.Request, body: dict[str, Any]) -> web.Response:
            assert "remote_block_ids" not in body["kv_transfer_params"]
            return web.json_response(fake.completion(fake.legs[-1], 0, 3))

        async with rig("read") as r:
            r.prefill[0].special = nothing
            r.decode[0].special = compute
            status, answer = await r.post(PROMPT)
            assert (status, answer["choices"][0]["text"]) == (200, TEXT)
            assert await r.metric("stagelink_proxy_prefills_without_blocks_total") == 1

    run(test())


async def leave(r: Rig, body: dict[str, Any], ready: Any) -> None:
    """Sends a request and closes the connection once `ready()`."""
    raw = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", r.proxy.port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
    writer.write(head.encode() + raw)
    await until(ready)
    writer.transport.abort()


@MODES
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_both_legs(mode: str, stream: bool) -> None:
    async def test() -> None:
        async with rig(mode) as r:
            r.prefill[0].special = hang if mode == "write" else None
            r.decode[0].special = hang
            await leave(r, PROMPT | {"stream": stream}, lambda: r.decode[0].running == 1)
            await until(lambda: r.decode[0].running == 0 and r.prefill[0].running == 0)
            assert r.decode[0].legs[0].cancelled
            assert r.prefill[0].legs[0].cancelled == (mode == "write")
            gone = 'stagelink_proxy_requests_total{outcome="client_gone",path="/v1/completions"}'
            while await r.metric(gone) != 1:
                await asyncio.sleep(0.01)
            _, page = await r.get("/status")
            assert {server["in_flight"] for server in page["servers"]} == {0}

    run(test())


async def flood(fake: Fake, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """More than all buffers between here and a client hold."""
    response = await fake.begin_stream(request)
    for _ in range(4096):
        await response.write(b"data: " + b"x" * 65536 + b"\n\n")
        fake.sent[-1] += b"."
    return response


def test_a_client_in_the_middle_of_a_stream_that_goes_away_ends_it() -> None:
    async def test() -> None:
        async with rig("write") as r:
            r.decode[0].special = flood
            await leave(r, STREAM, lambda: bool(r.decode[0].sent))
            await until(lambda: r.decode[0].running == 0)
            assert len(r.decode[0].sent[0]) < 4096

    run(test())


def test_a_client_that_takes_nothing_holds_the_server_back_and_is_ended() -> None:
    async def test() -> None:
        async with rig("write", client_timeout_s=0.3) as r:
            r.decode[0].special = flood
            raw = json.dumps(STREAM).encode()
            with socket.create_connection(("127.0.0.1", r.proxy.port)) as client:
                head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}"
                client.sendall(head.encode() + b"\r\n\r\n" + raw)
                await until(lambda: len(r.decode[0].legs) == 1)
                await until(lambda: r.decode[0].running == 0)
            assert len(r.decode[0].sent[0]) < 4096
            stuck = 'stagelink_proxy_requests_total{outcome="client_stuck",path="/v1/completions"}'
            while await r.metric(stuck) != 1:
                await asyncio.sleep(0.01)

    run(test())


def test_requests_that_run_when_the_proxy_stops_are_ended() -> None:
    async def test() -> None:
        async with rig("read") as r:
            r.decode[0].special = hang
            request = asyncio.create_task(r.post(PROMPT))
            await until(lambda: r.decode[0].running == 1)
            await r.proxy.stop()
            with pytest.raises(aiohttp.ClientError):
                await request
            await until(lambda: r.decode[0].running == 0)

    run(test())
