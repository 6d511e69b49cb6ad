"""Requests that are refused before a server sees them, each bound on both sides."""

import asyncio
from typing import Any

import pytest
from fakes import Fake, rig, run, until

PROMPT: dict[str, Any] = {"model": "tiny", "prompt": "hello", "max_tokens": 1}


@pytest.mark.parametrize(
    ("changes", "path", "what"),
    [
        ({"kv_transfer_params": {"remote_host": "10.0.0.1"}}, "completions", "kv_transfer_params"),
        ({"n": 0}, "completions", "n must be"),
        ({"n": "2"}, "completions", "n must be"),
        ({"n": True}, "completions", "n must be"),
        ({"n": 5}, "completions", "--max-siblings"),
        ({"n": 2, "prompt": ["a", "b", "c"]}, "completions", "--max-siblings"),
        ({"n": 5, "messages": []}, "chat/completions", "--max-siblings"),
        ({"use_beam_search": True}, "completions", "use_beam_search"),
        ({"prompt_embeds": ["x"]}, "completions", "prompt_embeds"),
    ],
)
def test_a_request_that_cannot_be_right_is_refused(
    changes: dict[str, Any], path: str, what: str
) -> None:
    async def test() -> None:
        async with rig("write", max_siblings=4) as r:
            status, answer = await r.post(PROMPT | changes, f"/v1/{path}")
            assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
            assert what in answer["error"]["message"]
            assert r.prefill[0].legs == r.decode[0].legs == []
            assert (await r.post(PROMPT | {"n": 4}))[0] == 200
            assert (await r.post(PROMPT | {"kv_transfer_params": None}))[0] == 200

    run(test())


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(raw: bytes) -> None:
    async def test() -> None:
        async with rig("write") as r:
            async with r.client.post(r.url + "/v1/completions", data=raw) as answer:
                assert answer.status == 400
                assert "JSON" in (await answer.json())["error"]["message"]

    run(test())


def test_bodies_and_answers_are_bounded() -> None:
    async def test() -> None:
        async with rig("write", max_body_bytes=1000, max_response_bytes=2000, retries=0) as r:
            for size, status in ((1000, 200), (1001, 413)):
                raw = b'{"prompt": "hello", "max_tokens": 1}'
                raw += b" " * (size - len(raw))
                async with r.client.post(r.url + "/v1/completions", data=raw) as answer:
                    assert answer.status == status
                    assert "error" in await answer.json() or status == 200
            status, answer = await r.post(PROMPT | {"max_tokens": 100})
            assert status == 502
            assert "--max-response" in answer["error"]["message"]

    run(test())


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def test() -> None:
        async with rig("write", client_timeout_s=0.2) as r:
            reader, writer = await asyncio.open_connection("127.0.0.1", r.proxy.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            assert b"408" in await reader.readline()
            writer.close()
            await writer.wait_closed()

    run(test())


def test_requests_at_one_time_are_bounded() -> None:
    async def test() -> None:
        async with rig("read", max_requests=2) as r:
            go_on = asyncio.Event()

            async def wait(fake: Fake, request: object, body: dict[str, Any]) -> None:
                await go_on.wait()

            r.decode[0].special = wait
            two = [asyncio.create_task(r.post(PROMPT)) for _ in range(2)]
            await until(lambda: r.decode[0].running == 2)
            status, answer = await r.post(PROMPT)
            assert status == 503
            assert "--max-requests" in answer["error"]["message"]
            go_on.set()
            assert [(await task)[0] for task in two] == [200, 200]
            assert (await r.post(PROMPT))[0] == 200

    run(test())


def test_the_api_key_is_checked_and_passed_on() -> None:
    async def test() -> None:
        async with rig("write", api_key="secret") as r:
            for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
                status, answer = await r.post(PROMPT, **given)
                assert (status, answer["error"]["type"]) == (401, "authentication_error")
                assert (await r.get("/status", **given))[0] == 401
            assert r.prefill[0].legs == []
            right = {"Authorization": "Bearer secret"}
            assert (await r.post(PROMPT, **right))[0] == 200
            assert (await r.get("/status", **right))[0] == 200
            for leg in r.prefill[0].legs + r.decode[0].legs:
                assert leg.headers["Authorization"] == "Bearer secret"
            assert (await r.get("/health"))[0] == 200

    run(test())


def test_what_is_not_served_is_said() -> None:
    async def test() -> None:
        async with rig("write") as r:
            status, answer = await r.get("/v1/embeddings")
            assert status == 404
            assert "/v1/completions" in answer["error"]["message"]
            status, answer = await r.get("/v1/completions")
            assert status == 405
            assert "takes POST" in answer["error"]["message"]

    run(test())
