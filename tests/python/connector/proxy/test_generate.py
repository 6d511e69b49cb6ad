"""What clients get from a proxy whose servers are well, and what the servers are sent."""

import asyncio
import json
import re
from typing import Any

import pytest
from fakes import Leg, Rig, rig, run, token

MODES = pytest.mark.parametrize("mode", ["read", "write"])
PROMPT = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def events(stream: bytes) -> list[Any]:
    found = [event.removeprefix(b"data: ") for event in stream.split(b"\n\n") if event]
    assert found[-1] == b"[DONE]"
    return [json.loads(event) for event in found[:-1]]


@MODES
def test_a_completion_is_that_of_the_decode_server(mode: str) -> None:
    async def test() -> None:
        async with rig(mode) as r:
            status, answer = await r.post(PROMPT)
            assert status == 200
            assert answer["choices"][0]["text"] == "".join(token(PROMPT, i) for i in range(3))
            assert len(r.prefill[0].legs) == len(r.decode[0].legs) == 1

    run(test())


@MODES
@pytest.mark.parametrize(("path", "body"), [("completions", PROMPT), ("chat/completions", CHAT)])
def test_a_stream_passes_byte_for_byte(mode: str, path: str, body: dict[str, Any]) -> None:
    async def test() -> None:
        async with rig(mode) as r:
            got = await r.stream(body, f"/v1/{path}")
            assert got == r.decode[0].sent[0]
            assert len(events(got)) == body["max_tokens"]
            assert r.prefill[0].legs[0].path == r.decode[0].legs[0].path == f"/v1/{path}"

    run(test())


@MODES
def test_the_legs_are_what_the_connectors_expect(mode: str) -> None:
    async def test() -> tuple[Leg, Leg]:
        server = {"handshake_port": 7000, "notify_port": 8000, "tp_size": 2}
        async with rig(mode, server=server) as r:
            body = PROMPT | {
                "stream": True, "stream_options": {"include_usage": True}, "stop": ["x"],
                "min_tokens": 2, "logprobs": 1, "temperature": 0.5,
            }  # fmt: skip
            await r.stream(body)
            assert {key: r.decode[0].legs[0].body[key] for key in body} == body
            return r.prefill[0].legs[0], r.decode[0].legs[0]

    prefill, decode = run(test())
    address = "host:127.0.0.1,handshake:7000,notify:8000"
    wanted = f"___prefill_addr_{address}___decode_addr_{address}_[0-9a-f]{{32}}"
    assert re.fullmatch(wanted, prefill.headers["X-Request-Id"])
    assert prefill.headers["X-Request-Id"] == decode.headers["X-Request-Id"]
    assert "X-data-parallel-rank" not in prefill.headers
    transfer_id = prefill.params["transfer_id"]
    assert re.fullmatch(r"tx-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", transfer_id)
    peer = {
        "remote_dp_size": 1, "remote_tp_size": 2, "remote_host": "127.0.0.1",
        "remote_handshake_port": 7000, "remote_notify_port": 8000, "transfer_id": transfer_id,
    }  # fmt: skip
    assert prefill.params == peer | {
        "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
        "remote_block_ids": None,
    }  # fmt: skip
    del prefill.body["kv_transfer_params"]
    assert prefill.body == {
        "model": "tiny", "prompt": "hello", "max_tokens": 1, "stream": False, "ignore_eos": True,
        "temperature": 0.5,
    }  # fmt: skip
    told = peer | {"remote_dp_rank": 0, "do_remote_prefill": True, "do_remote_decode": False}
    if mode == "write":
        assert decode.params == told
    else:  # What prefill returned goes before what the proxy knows.
        assert decode.params == told | {
            "remote_block_ids": [[4, 5]], "remote_engine_id": "10.0.0.1:6301",
            "remote_host": "10.0.0.1", "remote_handshake_port": "6301",
            "remote_notify_port": "61005", "remote_dp_rank_override": True, "tp_size": 2,
        }  # fmt: skip


def test_request_ids_have_addresses_only_if_they_are_known_or_needed() -> None:
    async def ids(mode: str) -> str:
        async with rig(mode) as r:
            await r.post(PROMPT)
            return r.prefill[0].legs[0].headers["X-Request-Id"]

    assert re.fullmatch("[0-9a-f]{32}", run(ids("read")))
    address = "host:127.0.0.1,handshake:6301,notify:61005"
    assert run(ids("write")).startswith(f"___prefill_addr_{address}___decode_addr_{address}_")


@MODES
def test_one_token_is_asked_of_both_servers(mode: str) -> None:
    async def test() -> None:
        async with rig(mode) as r:
            status, answer = await r.post(PROMPT | {"max_tokens": 1})
            assert (status, answer["choices"][0]["text"]) == (200, token(PROMPT, 0))
            assert r.decode[0].legs[0].body["max_tokens"] == 1
            chat = CHAT | {"max_completion_tokens": 1}
            assert (await r.post(chat, "/v1/chat/completions"))[0] == 200
            assert r.prefill[0].legs[1].body["max_completion_tokens"] == 1

    run(test())


def choices(r: Rig) -> list[str]:
    return [leg.params["transfer_id"] for leg in r.decode[0].legs]


@MODES
def test_each_choice_has_a_transfer_of_its_own(mode: str) -> None:
    async def test() -> None:
        async with rig(mode) as r:
            body = PROMPT | {"prompt": ["a", "b"], "n": 2, "seed": 7}
            _, answer = await r.post(body)
            texts = [
                "".join(token({"prompt": prompt, "seed": 7 + j}, i) for i in range(3))
                for prompt in "ab"
                for j in range(2)
            ]
            assert [choice["text"] for choice in answer["choices"]] == texts
            assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
            assert answer["usage"] == {
                "prompt_tokens": 10, "completion_tokens": 12, "total_tokens": 22,
            }  # fmt: skip
            assert len(set(choices(r))) == 4
            assert all(leg.body["n"] == 1 for leg in r.prefill[0].legs + r.decode[0].legs)

    run(test())


@MODES
def test_streams_of_several_choices_become_one(mode: str) -> None:
    async def test() -> None:
        async with rig(mode) as r:
            body = PROMPT | {"n": 3, "stream_options": {"include_usage": True}}
            got = events(await r.stream(body))
            *tokens, last = got
            for index in range(3):
                mine = [
                    e["choices"][0]["text"] for e in tokens if e["choices"][0]["index"] == index
                ]
                assert mine == [token(PROMPT, i) for i in range(3)]
            assert last["choices"] == []
            assert last["usage"] == {
                "prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14,
            }  # fmt: skip
            assert len({event["id"] for event in got}) == 1
            assert len(set(choices(r))) == 3

    run(test())


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("a", 1), (["a"], 1), ([1, 2, 3], 1), ([[1, 2], [3]], 2), (["a", "b", "c"], 3), ([], 1)],
)
def test_a_list_of_tokens_is_one_prompt(prompt: Any, count: int) -> None:
    async def test() -> None:
        async with rig("write") as r:
            status, answer = await r.post(PROMPT | {"prompt": prompt})
            assert (status, len(answer["choices"])) == (200, count)
            assert len(r.decode[0].legs) == count

    run(test())


def test_sixty_four_requests_at_once_are_spread_over_the_servers() -> None:
    async def test() -> None:
        async with rig("write", prefill=2, decode=4) as r:
            bodies = [PROMPT | {"prompt": f"p{i}", "max_tokens": 20} for i in range(64)]
            got = await asyncio.gather(*(r.stream(body) for body in bodies))
            for body, stream in zip(bodies, got, strict=True):
                texts = [event["choices"][0]["text"] for event in events(stream)]
                assert texts == [token(body, i) for i in range(20)]
            for fakes in (r.prefill, r.decode):
                counts = [len(fake.legs) for fake in fakes]
                assert sum(counts) == 64
                assert min(counts) > 0
            _, status = await r.get("/status")
            assert {server["in_flight"] for server in status["servers"]} == {0}
            ok = 'stagelink_proxy_requests_total{outcome="ok",path="/v1/completions"}'
            assert await r.metric(ok) == 64

    run(test())


def test_ranks_are_pinned_on_both_legs() -> None:
    async def test() -> None:
        async with rig("write", server={"dp_size": 2, "tp_size": 4}) as r:
            for _ in range(4):
                await r.post(PROMPT)
            ranks = [leg.headers["X-data-parallel-rank"] for leg in r.prefill[0].legs]
            assert ranks == ["0", "1", "0", "1"]
            for prefill, decode in zip(r.prefill[0].legs, r.decode[0].legs, strict=True):
                assert decode.params["remote_dp_rank"] == int(
                    prefill.headers["X-data-parallel-rank"]
                )
                assert decode.params["remote_dp_size"] == 2
                assert decode.headers["X-data-parallel-rank"] in "01"

    run(test())


def test_models_come_from_a_server_and_ids_of_clients_come_back() -> None:
    async def test() -> None:
        async with rig("read") as r:
            status, models = await r.get("/v1/models")
            assert (status, models["data"][0]["by"]) == (200, "D")
            await r.decode[0].stop()
            status, models = await r.get("/v1/models")
            assert (status, models["data"][0]["by"]) == (200, "P")
        async with rig("read") as r:
            headers = {"X-Request-Id": "mine-1"}
            async with r.client.post(r.url + "/v1/completions", json=PROMPT, headers=headers) as a:
                assert a.headers["X-Request-Id"] == "mine-1"
            assert "mine-1" not in r.decode[0].legs[0].headers["X-Request-Id"]

    run(test())
