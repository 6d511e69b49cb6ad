"""The sender that a server's worker has, with a real ROUTER at the other end."""

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import zmq
from child import Child

from stagelink.heartbeat import HeartbeatSender, encode_heartbeat
from stagelink.proxy.servers.messages import decode_heartbeat

# Of vLLM 0.32: P, 10.0.0.1:8000, ports 6301 and 61005, dp 1, tp 8, WRITE.
GOLDEN = bytes.fromhex(
    "86a474797065a150ac687474705f61646472657373ad31302e302e302e313a38303030ab7a6d715f616464726573"
    "73d929686f73743a31302e302e302e312c68616e647368616b653a363330312c6e6f746966793a3631303035a764"
    "705f73697a6501a774705f73697a6508ad7472616e736665725f6d6f6465a55752495445"
)
PATIENCE_MS = 30_000


def message(host_ip: str = "10.0.0.1") -> bytes:
    return encode_heartbeat(
        role="P", host_ip=host_ip, http_port=8000, handshake_port=6301, notify_port=61005, tp_size=8
    )


class Router:
    def __init__(self, socket: "zmq.Socket[bytes]", host: str) -> None:
        self.socket = socket
        self.host = host
        self.port = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    def receive(self) -> bytes:
        assert self.socket.poll(PATIENCE_MS), "no heartbeat"
        return self.socket.recv_multipart()[1]


@contextmanager
def router(host: str = "127.0.0.1", port: str = "*") -> Iterator[Router]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, ":" in host)
        socket.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        yield Router(socket, host)


def test_the_message_is_that_of_vllm_0_32() -> None:
    assert message() == GOLDEN
    assert decode_heartbeat(GOLDEN).tp_size == 8


def test_an_ipv6_address_has_brackets_where_a_port_follows() -> None:
    heartbeat = decode_heartbeat(message("fd00::7"))
    assert heartbeat.http_address == "[fd00::7]:8000"
    assert heartbeat.zmq_address == "host:fd00::7,handshake:6301,notify:61005"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_heartbeats_come_again_and_again(host: str) -> None:
    with router(host) as r, HeartbeatSender(host, r.port, message(), interval_s=0.02) as sender:
        assert [r.receive() for _ in range(5)] == [GOLDEN] * 5
        assert sender.state == "sending"
    assert sender.state == "stopped"


def test_it_goes_on_while_the_worker_holds_the_gil(child: Callable[..., Child]) -> None:
    worker = child()
    with router() as r:
        worker.run(
            "import ctypes\nfrom stagelink.heartbeat import HeartbeatSender\n"
            "sender = HeartbeatSender('127.0.0.1', port, message, interval_s=0.05)",
            port=r.port, message=GOLDEN,
        )  # fmt: skip
        r.receive()
        worker.start("ctypes.PyDLL(None).usleep(80_000_000)")  # PyDLL keeps the GIL.
        for _ in range(10):
            assert r.receive() == GOLDEN
        assert not select.select([worker.process.stdout], [], [], 0)[0], "the worker has gone on"
        worker.kill()


def test_it_ends_with_a_worker_that_is_killed(child: Callable[..., Child]) -> None:
    worker = child()
    with router() as r:
        pid = worker.run(
            "from stagelink.heartbeat import HeartbeatSender\n"
            "sender = HeartbeatSender('127.0.0.1', port, message, interval_s=0.05)\n"
            "while sender.state != 'sending': pass\nsender.pid",
            port=r.port, message=GOLDEN,
        )  # fmt: skip
        descriptor = os.pidfd_open(pid)
        try:
            worker.kill()
            poller = zmq.Poller()
            poller.register(descriptor, zmq.POLLIN)
            assert poller.poll(PATIENCE_MS), "the process that sends heartbeats outlived its parent"
        finally:
            os.close(descriptor)


def test_a_sender_that_is_killed_is_started_again() -> None:
    with router() as r, HeartbeatSender("127.0.0.1", r.port, GOLDEN, interval_s=0.02) as sender:
        r.receive()
        first = sender.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        while sender.restarts == 0:
            r.socket.poll(10)
        while sender.pid in (first, None) or sender.state != "sending":
            r.socket.poll(10)
        assert r.receive() == GOLDEN
        assert sender.restarts == 1


def test_a_proxy_that_is_not_there_stops_nothing() -> None:
    with router() as r:
        port = r.port
    with HeartbeatSender("127.0.0.1", port, GOLDEN, interval_s=0.02) as sender:
        while sender.state != "unreachable":
            os.sched_yield()
        with router(port=str(port)) as r:
            assert r.receive() == GOLDEN
    sender.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "X"}, {"host_ip": ""}, {"host_ip": "[::1]"}, {"http_port": 0},
        {"http_port": 65536}, {"notify_port": -1}, {"transfer_mode": "PUSH"}, {"tp_size": 0},
    ],
)  # fmt: skip
def test_what_cannot_be_announced_is_refused(wrong: dict[str, object]) -> None:
    good: dict[str, object] = {
        "role": "P", "host_ip": "10.0.0.1", "http_port": 8000, "handshake_port": 6301,
        "notify_port": 61005,
    }  # fmt: skip
    with pytest.raises(ValueError):
        encode_heartbeat(**(good | wrong))  # type: ignore[arg-type]
