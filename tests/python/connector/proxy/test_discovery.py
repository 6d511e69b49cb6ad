"""Servers that announce themselves, and whatever else comes to the heartbeat port."""

import asyncio
import ipaddress
from typing import Any

import msgpack
import pytest
import zmq
import zmq.asyncio
from fakes import Fake, Rig, Transfers, rig, run

from stagelink.heartbeat import HeartbeatSender, encode_heartbeat

PROMPT = {"model": "tiny", "prompt": "hello", "max_tokens": 2}
GOOD = {
    "type": "P",
    "http_address": "127.0.0.1:8000",
    "zmq_address": "host:127.0.0.1,handshake:6301,notify:61005",
    "dp_size": 1,
    "tp_size": 1,
    "transfer_mode": "READ",
}
LISTEN: dict[str, Any] = {"heartbeat": ("127.0.0.1", 0)}


class Speaker:
    """Sends frames to the heartbeat port of a proxy, and waits until they were looked at."""

    def __init__(self, r: Rig) -> None:
        self.rig = r
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(f"tcp://127.0.0.1:{r.proxy.heartbeat_port}")

    async def __aenter__(self) -> "Speaker":
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._context.destroy(linger=0)

    async def seen(self) -> float:
        outcomes = ("accepted", "hello", "refused", "failed")
        samples = (f'stagelink_proxy_heartbeats_total{{outcome="{name}"}}' for name in outcomes)
        return sum([await self.rig.metric(sample) for sample in samples])

    async def send(self, *frames: bytes) -> None:
        before = await self.seen()
        await self._socket.send_multipart(frames)
        while await self.seen() == before:
            await asyncio.sleep(0.005)

    async def say(self, **changes: Any) -> None:
        await self.send(msgpack.packb(GOOD | changes))

    async def refused(self) -> list[dict[str, Any]]:
        _, page = await self.rig.get("/status")
        found: list[dict[str, Any]] = page["refused"]
        return found

    async def servers(self) -> list[dict[str, Any]]:
        _, page = await self.rig.get("/status")
        found: list[dict[str, Any]] = page["servers"]
        return found


def bare(**changes: Any) -> Any:
    """A proxy without servers, which waits for heartbeats."""
    return rig("auto", prefill=0, decode=0, **(LISTEN | changes))


@pytest.mark.parametrize("mode", ["read", "write"])
def test_servers_that_announce_themselves_are_used(mode: str) -> None:
    async def test() -> None:
        async with bare() as r:
            status, answer = await r.post(PROMPT)
            assert status == 503
            assert "wait for the first heartbeat" in answer["error"]["message"]
            transfers = Transfers()
            fakes = [await Fake(role, transfers, mode).start() for role in "PD"]
            senders = []
            for number, fake in enumerate(fakes):
                message = encode_heartbeat(
                    role=fake.role, host_ip="127.0.0.1", http_port=int(fake.url.split(":")[2]),
                    handshake_port=7000 + number, notify_port=8000 + number, tp_size=2 + number,
                    transfer_mode=mode.upper(),
                )  # fmt: skip
                sender = HeartbeatSender(
                    "127.0.0.1", r.proxy.heartbeat_port, message, interval_s=0.05
                )
                senders.append(sender)
            try:
                while (await r.get("/health"))[0] != 200:
                    await asyncio.sleep(0.01)
                assert (await r.post(PROMPT))[0] == 200
                prefill, decode = (fake.legs[0] for fake in fakes)
                assert prefill.headers["X-Request-Id"].startswith(
                    "___prefill_addr_host:127.0.0.1,handshake:7000,notify:8000"
                    "___decode_addr_host:127.0.0.1,handshake:7001,notify:8001_"
                )
                assert (prefill.params["remote_tp_size"], decode.params["remote_tp_size"]) == (3, 2)
            finally:
                for sender in senders:
                    await asyncio.to_thread(sender.close)
                for fake in fakes:
                    await fake.stop()

    run(test())


def test_a_server_that_falls_silent_is_forgotten() -> None:
    async def test() -> None:
        async with bare(heartbeat_timeout_s=0.5) as r, Speaker(r) as speaker:
            await speaker.say()
            while await speaker.servers():
                await asyncio.sleep(0.02)
            await speaker.say()
            assert len(await speaker.servers()) == 1

    run(test())


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([b""], "the frame is empty"),
        ([b"\xc1"], "heartbeat: "),
        ([b"hello"], "heartbeat: "),
        ([msgpack.packb([1, 2])], "it is no map"),
        ([msgpack.packb(GOOD)[:-1]], "heartbeat: "),
        ([b"\x91" * 4000], "heartbeat: "),
        ([msgpack.packb(GOOD), b"more"], "a message of 2 frames"),
        ([msgpack.packb(GOOD | {"type": "X"})], "`type` is none of P, D, HELLO"),
        ([msgpack.packb(GOOD | {"type": 1})], "`type`"),
        ([msgpack.packb({"type": "P"})], "`http_address`"),
        ([msgpack.packb(GOOD | {"http_address": "nowhere"})], "is not HOST:PORT"),
        ([msgpack.packb(GOOD | {"http_address": "a/b@c:80"})], "is not a host"),
        ([msgpack.packb(GOOD | {"http_address": "10.0.0.1:0"})], "is not a port"),
        ([msgpack.packb(GOOD | {"http_address": "1:2:80"})], "parts expected"),
        ([msgpack.packb(GOOD | {"http_address": b"10.0.0.1:80"})], "`http_address`"),
        ([msgpack.packb(GOOD | {"zmq_address": "host:a"})], "`handshake` is missing"),
        ([msgpack.packb(GOOD | {"zmq_address": "host:a,host:b"})], "`host` is given twice"),
        ([msgpack.packb(GOOD | {"dp_size": 0})], "`dp_size`"),
        ([msgpack.packb(GOOD | {"tp_size": 1025})], "`tp_size`"),
        ([msgpack.packb(GOOD | {"tp_size": True})], "`tp_size`"),
        ([msgpack.packb(GOOD | {"transfer_mode": "PUSH"})], "neither READ nor WRITE"),
    ],
)
def test_what_is_no_heartbeat_is_refused_with_a_reason(frames: list[bytes], why: str) -> None:
    async def test() -> None:
        async with bare() as r, Speaker(r) as speaker:
            await speaker.send(*frames)
            await speaker.send(*frames)
            (refused,) = await speaker.refused()
            assert why in refused["why"]
            assert refused["count"] == 2
            assert await speaker.servers() == []
            await speaker.say()
            assert len(await speaker.servers()) == 1

    run(test())


def test_a_frame_beyond_the_bound_costs_the_sender_its_connection_and_nobody_else() -> None:
    async def test() -> None:
        async with bare() as r:
            async with Speaker(r) as big:
                await big._socket.send(b"x" * ((16 << 10) + 1))
            async with Speaker(r) as speaker:
                await speaker.say()
                assert len(await speaker.servers()) == 1

    run(test())


def test_keys_in_another_order_and_unknown_ones_do_not_matter() -> None:
    async def test() -> None:
        async with bare() as r, Speaker(r) as speaker:
            await speaker.send(msgpack.packb({"new": [1], **dict(reversed(GOOD.items()))}))
            (server,) = await speaker.servers()
            assert (server["role"], server["url"]) == ("prefill", "http://127.0.0.1:8000")

    run(test())


def test_hello_keeps_a_server_and_makes_none() -> None:
    async def test() -> None:
        async with bare() as r, Speaker(r) as speaker:
            await speaker.send(msgpack.packb({"type": "HELLO"}))
            await speaker.send(msgpack.packb({"type": "HELLO", "http_address": "10.0.0.9:1"}))
            assert await speaker.servers() == []
            assert await r.metric('stagelink_proxy_heartbeats_total{outcome="hello"}') == 2

    run(test())


@pytest.mark.parametrize("http_address", ["::1:8000", "[::1]:8000"])
def test_ipv6_addresses_get_brackets_in_urls(http_address: str) -> None:
    async def test() -> None:
        async with bare() as r, Speaker(r) as speaker:
            zmq_address = "host:::1,handshake:6301,notify:61005"
            await speaker.say(http_address=http_address, zmq_address=zmq_address)
            (server,) = await speaker.servers()
            assert (server["url"], server["zmq_address"]) == ("http://[::1]:8000", zmq_address)

    run(test())


def test_the_table_is_bounded_and_another_mode_is_refused() -> None:
    async def test() -> None:
        async with bare(max_servers=2) as r, Speaker(r) as speaker:
            await speaker.say()
            await speaker.say(type="D", http_address="127.0.0.1:8001")
            await speaker.say(http_address="127.0.0.1:8002")
            await speaker.say(http_address="127.0.0.1:8003", transfer_mode="WRITE")
            full, mode = await speaker.refused()
            assert (full["who"], mode["who"]) == ("127.0.0.1:8002", "127.0.0.1:8003")
            assert "--max-servers" in full["why"]
            assert "write mode" in mode["why"]
            assert len(await speaker.servers()) == 2

    run(test())


def test_only_allowed_networks_may_announce() -> None:
    async def test() -> None:
        allow = (ipaddress.ip_network("10.1.0.0/16"),)
        async with bare(allow=allow) as r, Speaker(r) as speaker:
            inside = "host:10.1.255.255,handshake:1,notify:2"
            outside = "host:10.2.0.0,handshake:1,notify:2"
            await speaker.say(http_address="10.1.255.255:80", zmq_address=inside)
            await speaker.say(http_address="10.2.0.0:80", zmq_address=inside)
            await speaker.say(http_address="10.1.0.1:80", zmq_address=outside)
            await speaker.say(http_address="name:80", zmq_address=inside)
            assert [s["url"] for s in await speaker.servers()] == ["http://10.1.255.255:80"]
            assert len(await speaker.refused()) == 3

    run(test())


def test_a_server_named_by_an_option_learns_from_its_heartbeat() -> None:
    async def test() -> None:
        async with rig("auto", **LISTEN) as r, Speaker(r) as speaker:
            assert (await r.post(PROMPT))[0] == 503
            for fake in r.prefill + r.decode:
                fake.mode = "read"
            address = r.prefill[0].url.removeprefix("http://")
            await speaker.say(http_address=address, tp_size=4)
            assert (await r.post(PROMPT))[0] == 200
            assert r.decode[0].legs[0].params["remote_tp_size"] == 4

    run(test())


def test_a_prefill_and_a_decode_behind_ipv6_serve() -> None:
    async def test() -> None:
        transfers = Transfers()
        fakes = [await Fake(role, transfers, "write").start("::1") for role in "PD"]
        try:
            async with bare(listen=("::1", 0)) as r, Speaker(r) as speaker:
                r.url = f"http://[::1]:{r.proxy.port}"
                for fake in fakes:
                    port = fake.url.rpartition(":")[2]
                    await speaker.say(
                        type=fake.role, http_address=f"::1:{port}", transfer_mode="WRITE",
                        zmq_address="host:::1,handshake:6301,notify:61005",
                    )  # fmt: skip
                assert (await r.post(PROMPT))[0] == 200
                address = "host:::1,handshake:6301,notify:61005"
                request_id = fakes[1].legs[0].headers["X-Request-Id"]
                assert request_id.startswith(f"___prefill_addr_{address}___decode_addr_{address}_")
        finally:
            for fake in fakes:
                await fake.stop()

    run(test())


def test_a_port_that_is_taken_is_an_error_and_leaves_nothing() -> None:
    async def test() -> None:
        async with bare() as r:
            with pytest.raises(zmq.ZMQError, match="in use"):
                async with bare(heartbeat=("127.0.0.1", r.proxy.heartbeat_port)):
                    pass

    run(test())
