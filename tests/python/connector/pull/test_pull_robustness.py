"""What may happen to the connector and must not harm it, within one process."""

from __future__ import annotations

import gc
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stagelink as sl
from stagelink.connectors import (
    ConnectorClosed,
    ConnectorSpec,
    YuanrongTransferEngineConnector,
    create_connector,
)

sys.path.insert(0, str(Path(__file__).parent))

import pulls  # noqa: E402

Connector = YuanrongTransferEngineConnector


@pytest.fixture
def sender(nothing_left_over: None) -> Iterator[Connector]:
    with pulls.sender() as made:
        yield made


@pytest.fixture
def receiver(sender: Connector) -> Iterator[Connector]:
    with pulls.receiver(sender) as made:
        yield made


def test_a_dead_address_costs_no_more_than_was_asked_and_is_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_port = silent.getsockname()[1]
        refused = socket.create_server(("127.0.0.1", 0))
        refused_port = refused.getsockname()[1]
        refused.close()
        for port in (silent_port, refused_port):
            with pulls.receiver({"host": "127.0.0.1", "zmq_port": port}) as one:
                begun = time.monotonic()
                got = one.get_with_deadline(*pulls.EDGE, "r", deadline=begun + 0.2)
                assert got is None and time.monotonic() - begun < 5
                found = one.health()
                assert found["errors"] + found["timeouts"] >= 1, found
                begun = time.monotonic()
                assert one.get(*pulls.EDGE, "r") is None and time.monotonic() - begun < 5


def test_close_ends_what_waits_and_is_final(sender: Connector, receiver: Connector) -> None:
    outcomes: list[Any] = []

    def wait(key: str) -> None:
        try:
            outcomes.append(
                receiver.get_with_deadline(*pulls.EDGE, key, deadline=time.monotonic() + 90)
            )
        except RuntimeError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=wait, args=(f"r{at}",)) for at in range(4)]
    for thread in threads:
        thread.start()
    assert pulls.soon(lambda: sender.health()["waiting"] == 4)
    begun = time.monotonic()
    receiver.close()
    for thread in threads:
        thread.join(30)
    assert time.monotonic() - begun < 20 and len(outcomes) == 4
    assert all(one is None or isinstance(one, ConnectorClosed) for one in outcomes)
    receiver.close()
    for call in (
        lambda: receiver.get(*pulls.EDGE, "r"),
        lambda: receiver.get_with_deadline(*pulls.EDGE, "r", deadline=0),
        lambda: receiver.put(*pulls.EDGE, "r", b"x"),
        lambda: receiver.allocate(5),
    ):
        with pytest.raises(RuntimeError, match="is closed"):
            call()
    receiver.cleanup("r")
    assert receiver.health() == {"status": "unhealthy", "error": "Connector is closed"}
    assert pulls.soon(lambda: sender.health()["waiting"] == 0)


def test_others_run_while_a_get_waits(sender: Connector, receiver: Connector) -> None:
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    receiver.get_with_deadline(*pulls.EDGE, "none", deadline=time.monotonic() + 0.3)
    done.set()
    thread.join()
    assert ticks > 5  # One, if the interpreter's lock had been kept.


def test_many_threads_use_one_connector(sender: Connector, receiver: Connector) -> None:
    wrong: list[str] = []

    def work(who: int) -> None:
        for number in range(40):
            data = f"{who}-{number}".encode() * 50
            sender.put(*pulls.EDGE, f"{who}-{number}", data)
            got = pulls.raw(receiver.get(*pulls.EDGE, f"{who}-{number}"))
            if got != data:
                wrong.append(f"{who}-{number}: {got!r}")

    threads = [threading.Thread(target=work, args=(who,)) for who in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert receiver.health()["gets"] == 240
    assert pulls.soon(lambda: sender.health()["offers"] == 0)


def test_a_get_that_looks_once_does_not_wait_for_its_own_pool_as_long_as_a_claim_lasts(
    sender: Connector,
) -> None:
    # The claim lasts a minute.
    with pulls.receiver(sender, memory_pool_size=1 << 20, ask_timeout="100ms") as small:
        for key in ("a", "b"):
            assert sender.put(*pulls.EDGE, key, bytes(900_000))[0]
        got = small.get(*pulls.EDGE, "a")
        assert got is not None
        started = time.monotonic()
        assert small.get(*pulls.EDGE, "b") is None
        assert time.monotonic() - started < 30
        got[0].release()
        assert pulls.raw(small.get(*pulls.EDGE, "b")) == bytes(900_000)


def test_a_number_that_no_message_holds_gives_false_and_is_counted(sender: Connector) -> None:
    before = sender.health()["errors"]
    for value in (1 << 200, {"a": [1 << 64]}, -(1 << 63) - 1):
        assert sender.put(*pulls.EDGE, "k", value) == (False, 0, None)
    assert sender.health()["errors"] == before + 3


def test_a_port_that_is_taken_is_an_error_of_the_constructor(sender: Connector) -> None:
    with pytest.raises(sl.AlreadyExists, match=str(sender.zmq_port)):
        pulls.sender(zmq_port=sender.zmq_port)
    with pytest.raises(sl.AlreadyExists, match=str(sender.rpc_port)):
        pulls.sender(rpc_port=sender.rpc_port)
    with pulls.receiver(sender, zmq_port=sender.zmq_port):  # Listens on nothing there.
        pass


def test_hosts_with_ipv6_only_are_no_special_case() -> None:
    with pulls.sender(host="::1") as sender, pulls.receiver(sender, host="::1") as receiver:
        assert sender.host == "::1"
        metadata = sender.put(*pulls.EDGE, "r", b"six")[2]
        assert pulls.raw(receiver.get(*pulls.EDGE, "r", metadata)) == b"six"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"protocl": "tcp"}, "protocl.*protocol"),
        ({"protocol": "smoke"}, "protocol"),
        ({"role": "middle"}, "role"),
        ({"zmq_port": 70_000}, "zmq_port"),
        ({"zmq_port": "$STAGELINK_TEST_UNSET"}, "STAGELINK_TEST_UNSET"),
        ({"memory_pool_size": 0}, "memory_pool_size"),
        ({"memory_pool_device": "npu"}, "memory_pool_device"),
        ({"buffer_ttl_seconds": "soon"}, "buffer_ttl_seconds"),
    ],
)
def test_a_wrong_option_is_named(extra: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){message}"):
        pulls.connector(**{"role": "sender", **extra})
    gc.collect()  # A constructor that has failed leaves an object that can be dropped.


def test_variables_stand_for_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGELINK_TEST_POOL", str(1 << 20))
    with pulls.sender(memory_pool_size="${STAGELINK_TEST_POOL}", note="$HOME/x") as one:
        assert one.health()["pool_size"] == 1 << 20
        assert not one.config["note"].startswith("$")


@pytest.mark.parametrize("name", ["YuanrongTransferEngineConnector", "StagelinkPullConnector"])
def test_it_is_made_by_its_names(name: str) -> None:
    spec = ConnectorSpec(name, {"host": "127.0.0.1", "memory_pool_size": 1 << 20})
    made = create_connector(spec)
    assert isinstance(made, Connector)
    made.close()


def test_pickles_and_other_noise_at_its_ports_harm_nobody(
    sender: Connector, receiver: Connector
) -> None:
    bomb = pickle.dumps({"os.system": "exit"})
    for port in (sender.zmq_port, sender.rpc_port):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as noise:
            noise.sendall(bomb * 100)
    zmq = pytest.importorskip("zmq")
    context = zmq.Context()
    try:
        dealer = context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.connect(f"tcp://127.0.0.1:{sender.zmq_port}")
        sender.put(*pulls.EDGE, "r", b"safe")
        for frames in ([b"", bomb], [bomb], [b"", b"cleanup_key" + b"\x81\xaarequest_id\xa5r@0_1"]):
            dealer.send_multipart(frames)
        dealer.close()
    finally:
        context.destroy(0)
    assert pulls.raw(receiver.get(*pulls.EDGE, "r")) == b"safe"


def test_ctrl_c_ends_a_wait_and_a_forgotten_connector_does_not_keep_a_program() -> None:
    code = (
        "import os, signal, sys, threading, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import pulls\n"
        "sender = pulls.sender(); receiver = pulls.receiver(sender)\n"
        "def interrupt():\n"
        "    pulls.soon(lambda: sender.health()['waiting'] == 1)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt).start()\n"
        "try:\n"
        "    receiver.get_with_deadline('0', '1', 'r', deadline=time.monotonic() + 90)\n"
        "    print('nothing came')\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
        "def wait():\n"
        "    receiver.get_with_deadline('0', '1', 'r', deadline=time.monotonic() + 90)\n"
        "threading.Thread(target=wait, daemon=True).start()\n"
        "pulls.soon(lambda: sender.health()['waiting'] == 1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "interrupted\n", done.stdout
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
