"""vLLM-Omni's own adapters for chunks and for stage payloads, between two processes over ours."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import host
import pytest

ROLE = Path(__file__).with_name("chunk_role.py")
STREAMS, CHUNKS = 8, 5


@contextmanager
def _roles(*names: str, connector: str) -> Iterator[list["subprocess.Popen[str]"]]:
    try:
        host.package_folder()
    except PackageNotFoundError:
        pytest.skip("vllm-omni is not installed here; tests/omni/run.sh says how")
    env = {**os.environ, "VLLM_PLUGINS": "stagelink", "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [sys.executable, str(ROLE)]
    extras = _extras(connector)
    started = [
        subprocess.Popen(
            [*command, name, connector, json.dumps(extra)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, extra in zip(names, extras, strict=True)
    ]
    try:
        yield started
    finally:
        for one in started:
            one.kill()
            one.communicate()


def _hear(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, "the role has ended; its words are above"
    return line


def _tell(process: "subprocess.Popen[str]", word: str = "") -> None:
    assert process.stdin is not None
    print(word, file=process.stdin, flush=True)


def _extras(connector: str) -> list[dict[str, Any]]:
    """Of the side that puts and of the side that gets."""
    if connector == "YuanrongConnector":
        return [{"capacity": "16MiB", "run": str(os.getpid())}] * 2
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    place = {"host": "127.0.0.1", "memory_pool_size": 16 << 20}
    return [
        {**place, "role": "sender", "zmq_port": port},
        {**place, "role": "receiver", "sender_host": "127.0.0.1", "sender_zmq_port": port},
    ]


EACH = pytest.mark.parametrize(
    "connector", ["YuanrongConnector", "YuanrongTransferEngineConnector"]
)


@EACH
def test_chunks_of_many_streams_come_in_order_and_none_waits_for_another(connector: str) -> None:
    with _roles("send", "receive", connector=connector) as (sender, receiver):
        for one in (sender, receiver):
            assert _hear(one) == "ready"
        _tell(receiver)
        _tell(sender)
        assert _hear(sender) == "first is sent"
        assert _hear(receiver) == "first has come"
        _tell(sender)
        _tell(receiver)
        got, sent = json.loads(_hear(receiver)), json.loads(_hear(sender))
    # One of eight had something: with a get that waits, each of the others would cost its time.
    assert got["first"]["who"] == [f"internal-{STREAMS - 1}"]
    assert got["first"]["after"] < 5
    assert got["wrong"] == []
    assert set(got["seen"].values()) == {CHUNKS}
    assert got["gets"] == STREAMS * CHUNKS and got["errors"] == 0 and got["ended"]
    # Three more were of the request that was aborted: from a store they go with its id, from a
    # sender by their time.
    left = 0 if connector == "YuanrongConnector" else 3
    assert sent == {"puts": STREAMS * CHUNKS + 3, "unread": left, "failures": {}}


def test_a_diffusion_stage_gets_its_payload_and_is_told_within_its_deadline_of_none() -> None:
    with _roles("put", "take", connector="YuanrongConnector") as (sender, receiver):
        for one in (sender, receiver):
            assert _hear(one) == "ready"
        _tell(sender)
        key = {"key": "d1_0_0", "from_stage": "0", "to_stage": "1", "metadata": None}
        _tell(receiver, json.dumps({**key, "payload_keys": ["image", "text"]}))
        got, sent = json.loads(_hear(receiver)), json.loads(_hear(sender))
    assert got["equal"] == [True, True, True]
    assert "Stage payload unavailable for nobody" in got["missing"]
    assert 2 <= got["waited"] < 20 and got["timeouts"] == 1
    assert [handle["key"] for handle in sent["handles"]] == ["d0_0_0", "d1_0_0", "d2_0_0"]
    assert all(handle["size_bytes"] > 24_000 for handle in sent["handles"])
    assert sent["kept"] == [["_stage_payload_transfer", "kept"]] * 3
