"""The contract that vLLM-Omni's callers rely on, within one process."""

from __future__ import annotations

import gc
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagelink import serializer
from stagelink.connectors import (
    YuanrongTransferEngineConnector,
)
from stagelink.pull import ManagedBuffer, SenderUnknown

sys.path.insert(0, str(Path(__file__).parent))

import pulls  # noqa: E402

SEVEN_KEYS = {
    "source_host", "source_port", "source_rpc_port", "source_addrs", "lengths", "data_size",
    "is_fast_path",
}  # fmt: skip
Connector = YuanrongTransferEngineConnector


@pytest.fixture
def sender(nothing_left_over: None) -> Iterator[Connector]:
    with pulls.sender() as made:
        yield made


@pytest.fixture
def receiver(sender: Connector) -> Iterator[Connector]:
    with pulls.receiver(sender) as made:
        yield made


def test_put_and_get_take_their_arguments_by_place_and_by_name(
    sender: Connector, receiver: Connector
) -> None:
    ok, size, metadata = sender.put("0", "1", "r", b"abc")
    assert (ok, size) == (True, 3) and metadata is not None
    assert SEVEN_KEYS < set(metadata)
    assert metadata["data_size"] == sum(metadata["lengths"]) == 3 and metadata["is_fast_path"]
    assert (metadata["source_host"], metadata["source_port"]) == (sender.host, sender.zmq_port)
    assert pulls.raw(receiver.get("0", "1", get_key="r", metadata=metadata)) == b"abc"
    assert sender.put(from_stage="0", to_stage="1", put_key="r", data=b"abcd")[0]
    partial = {"source_host": sender.host, "source_port": sender.zmq_port}
    assert pulls.raw(receiver.get("0", "1", "r", partial)) == b"abcd"
    assert sender.put(0, 1, "r", b"abcde")[0]  # type: ignore[arg-type]
    assert pulls.raw(receiver.get("0", "1", "r")) == b"abcde"
    assert receiver.get("0", "1", "r") is None
    assert receiver.get("0", "2", "r") is None
    assert Connector.supports_raw_data is True
    assert sender._make_key("r", "0", "1") == "r@0_1"


def test_callers_find_the_attributes_that_they_touch() -> None:
    extra = {"stage_id": 3, "codec_chunk_frames": 25, "from_stage": 3, "to_stage": "4"}
    with pulls.sender(**extra) as one:
        assert one.stage_id == 3 and one.can_put
        assert one.config["codec_chunk_frames"] == 25
        info = one.get_connection_info()
        assert info == {
            "host": "127.0.0.1", "zmq_port": one.zmq_port, "rpc_port": one.rpc_port,
            "can_put": True,
        }  # fmt: skip
        assert 0 < one.zmq_port < 65536 and 0 < one.rpc_port < 65536
        assert one.zmq_port != one.rpc_port
        one.abandon_get("r")
        one.reap_consumed()
        assert one.deserialize_obj(one.serialize_obj({"a": 1})) == {"a": 1}
        assert (one.sender_host, one.sender_zmq_port) == (None, None)
        one.sender_host, one.sender_zmq_port = "127.0.0.1", one.zmq_port
        assert one.put(*pulls.EDGE, "r", b"x")[0]  # A sender may get as well.
        assert pulls.raw(one.get(*pulls.EDGE, "r")) == b"x"
        assert (one.sender_host, one.sender_zmq_port) == ("127.0.0.1", one.zmq_port)
    found = one.health()
    assert found["status"] == "unhealthy"


@pytest.mark.parametrize(
    "data",
    [b"\0" * 5, bytearray(b"abc"), memoryview(b"abcd"), memoryview(b"abcdefgh")[::3],
     memoryview(np.arange(6, dtype=np.int32).reshape(2, 3)), b"x" * 70_000],
    ids=["bytes", "bytearray", "memoryview", "strided", "matrix", "large"],
)  # fmt: skip
def test_raw_bytes_of_any_kind_arrive_as_bytes(
    sender: Connector, receiver: Connector, data: Any
) -> None:
    expected = data.tobytes() if isinstance(data, memoryview) else bytes(data)
    assert sender.put(*pulls.EDGE, "r", data)[:2] == (True, len(expected))
    assert pulls.raw(receiver.get(*pulls.EDGE, "r")) == expected


def test_any_object_arrives_as_itself(sender: Connector, receiver: Connector) -> None:
    values: list[Any] = [0, "", None, False, {}, [], (1, 2), {"a": [1, {"b": "c" * 5000}]}]
    for value in values:
        ok, size, metadata = sender.put(*pulls.EDGE, "r", value)
        assert ok and metadata is not None and metadata["is_fast_path"] is False
        assert receiver.get(*pulls.EDGE, "r") == (value, size)
    array = np.arange(30_000).reshape(3, -1)[:, ::2]
    assert sender.put(*pulls.EDGE, "r", {"array": array})[0]
    got = receiver.get(*pulls.EDGE, "r")
    assert got is not None and (got[0]["array"] == array).all()
    got[0]["array"][0, 0] = 9  # Its own memory.
    assert pulls.soon(lambda: sender.health()["pool_used"] == 0)
    assert receiver.health()["pool_used"] == 0


def test_what_cannot_be_put_gives_false_and_is_counted(sender: Connector) -> None:
    with pulls.receiver() as other:
        assert other.put(*pulls.EDGE, "r", b"x") == (False, 0, None)
        assert other.can_put is False and other.health()["errors"] == 1
    refused: list[Any] = [b"", bytearray(), memoryview(b""), object(), 1j, {"k": {1: object()}}]
    for data in refused:
        assert sender.put(*pulls.EDGE, "r", data) == (False, 0, None)
    assert sender.put(*pulls.EDGE, "k" * 2000, b"x") == (False, 0, None)
    assert sender.put(*pulls.EDGE, "r", bytes(pulls.POOL + 1)) == (False, 0, None)
    found = sender.health()
    assert (found["errors"], found["puts"], found["offers"]) == (len(refused) + 2, 0, 0)


def test_buffers_of_the_own_pool_are_offered_without_a_copy(
    sender: Connector, receiver: Connector
) -> None:
    buffer = sender.allocate(5000)
    assert isinstance(buffer, ManagedBuffer) and buffer.size == 5000
    np.frombuffer(buffer, np.uint8)[:] = 7
    ok, _, metadata = sender.put(*pulls.EDGE, "r", buffer)
    assert ok and metadata is not None and metadata["source_addrs"] == [buffer.address]
    used = sender.health()["pool_used"]
    buffer.release()
    buffer.release()
    assert sender.health()["pool_used"] == used  # The offer holds it.
    assert pulls.raw(receiver.get(*pulls.EDGE, "r")) == b"\7" * 5000
    assert pulls.soon(lambda: sender.health()["pool_used"] == 0)
    with pytest.raises(BufferError, match="released"):
        memoryview(buffer)  # type: ignore[arg-type]
    # Of another pool: copied.
    theirs = receiver.allocate(8)
    assert theirs is not None
    np.frombuffer(theirs, np.uint8)[:] = 9
    assert sender.put(*pulls.EDGE, "r", theirs)[0]
    theirs.release()
    assert pulls.raw(receiver.get(*pulls.EDGE, "r")) == b"\x09" * 8
    assert sender.allocate(0) is None and sender.allocate(pulls.POOL * 2) is None


def test_what_looks_at_a_buffer_keeps_its_bytes(sender: Connector, receiver: Connector) -> None:
    assert sender.put(*pulls.EDGE, "r", b"a" * 4096)[0]
    got = receiver.get(*pulls.EDGE, "r")
    assert got is not None
    array = np.frombuffer(got[0], np.uint8)
    with got[0]:
        pass
    got[0].release()
    assert receiver.health()["pool_used"] > 0
    for _ in range(4):  # Other payloads go elsewhere.
        assert sender.put(*pulls.EDGE, "r", b"b" * 4096)[0]
        assert pulls.raw(receiver.get(*pulls.EDGE, "r")) == b"b" * 4096
    assert (array == ord("a")).all()
    del array, got
    gc.collect()
    assert receiver.health()["pool_used"] == 0


def test_a_put_of_the_same_key_is_a_payload_of_its_own(
    sender: Connector, receiver: Connector
) -> None:
    first = sender.put(*pulls.EDGE, "r", b"first")[2]
    second = sender.put(*pulls.EDGE, "r", b"second")[2]
    assert first is not None and second is not None
    assert first["generation"] != second["generation"]
    assert receiver.get(*pulls.EDGE, "r", first) is None  # Never the other's bytes.
    assert pulls.raw(receiver.get(*pulls.EDGE, "r", second)) == b"second"
    # The release of a payload that was read takes nothing from its successor.
    for number in range(50):
        data = str(number).encode()
        assert sender.put(*pulls.EDGE, "r", data)[0]
        assert pulls.raw(receiver.get(*pulls.EDGE, "r")) == data


def test_several_readers_get_one_payload(sender: Connector, receiver: Connector) -> None:
    with pulls.receiver(sender) as other:
        assert sender.put(*pulls.EDGE, "r", b"for two", readers=2)[0]
        assert pulls.raw(receiver.get(*pulls.EDGE, "r")) == b"for two"
        assert pulls.raw(other.get(*pulls.EDGE, "r")) == b"for two"
        assert pulls.soon(lambda: sender.health()["offers"] == 0)
        assert receiver.get(*pulls.EDGE, "r") is None
        assert sender.put(*pulls.EDGE, "r", b"for all", readers=0)[0]
        for _ in range(5):
            assert pulls.raw(other.get(*pulls.EDGE, "r")) == b"for all"
        sender.cleanup("r", *pulls.EDGE)
        assert other.get(*pulls.EDGE, "r") is None


def test_cleanup_takes_a_key_or_an_id_with_both_stages(
    sender: Connector, receiver: Connector
) -> None:
    for to_stage in ("1", "2"):
        assert sender.put("0", to_stage, "r", b"x")[0]
    with pytest.raises(ValueError, match="both from_stage and to_stage"):
        sender.cleanup("r", "0")
    with pytest.raises(ValueError, match="both from_stage and to_stage"):
        sender.cleanup("r", to_stage="1")
    sender.cleanup("r")  # An id alone is no key.
    assert sender.health()["offers"] == 2
    sender.cleanup("r@0_1")
    sender.cleanup("r", "0", "2")
    sender.cleanup("never put", "0", "2")
    assert pulls.soon(lambda: sender.health()["pool_used"] == 0)
    assert receiver.get("0", "1", "r") is None


def test_payloads_go_by_their_time(sender: Connector) -> None:
    with pulls.sender(buffer_ttl_seconds=0.05) as short, pulls.receiver(short) as receiver:
        assert short.put(*pulls.EDGE, "a", b"x")[0]
        assert short.put(*pulls.EDGE, "b", b"y", ttl=60)[0]
        assert short.put(*pulls.EDGE, "c", b"z", ttl=0)[0]  # For ever.
        assert pulls.soon(lambda: short.health()["offers"] == 2)
        assert receiver.get(*pulls.EDGE, "a") is None
        assert pulls.raw(receiver.get(*pulls.EDGE, "b")) == b"y"
        assert pulls.raw(receiver.get(*pulls.EDGE, "c")) == b"z"


def test_a_full_pool_is_waited_for_until_the_time_is_up(receiver: Connector) -> None:
    with pulls.sender(put_timeout="30s") as sender:
        receiver.update_sender_info(sender.host, sender.zmq_port)
        assert sender.put(*pulls.EDGE, "a", bytes(pulls.POOL - 65536))[0]
        reader = threading.Timer(0.05, lambda: pulls.raw(receiver.get(*pulls.EDGE, "a")))
        reader.start()
        assert sender.put(*pulls.EDGE, "b", bytes(pulls.POOL - 65536))[0]
        reader.join()
    with pulls.sender(put_timeout="20ms") as sender:
        assert sender.put(*pulls.EDGE, "a", bytes(pulls.POOL - 65536))[0]
        assert sender.put(*pulls.EDGE, "b", bytes(65536 * 2)) == (False, 0, None)
        assert sender.put(*pulls.EDGE, "c", {"x": bytes(65536 * 2)}) == (False, 0, None)
        assert sender.health()["errors"] == 2
        sender.cleanup("a", *pulls.EDGE)
        assert sender.put(*pulls.EDGE, "b", bytes(65536 * 2))[0]


def test_a_get_wakes_when_the_payload_is_put(sender: Connector, receiver: Connector) -> None:
    putter = threading.Thread(
        target=lambda: (
            pulls.soon(lambda: sender.health()["waiting"] == 1)
            and sender.put(*pulls.EDGE, "r", b"w" * 100_000)
        )
    )
    putter.start()
    got = receiver.get_with_deadline(*pulls.EDGE, "r", deadline=time.monotonic() + 60)
    assert pulls.raw(got) == b"w" * 100_000
    putter.join()
    begun = time.monotonic()
    assert receiver.get_with_deadline(*pulls.EDGE, "no", deadline=begun + 0.1) is None
    assert 0.09 < time.monotonic() - begun < 10
    assert receiver.get_with_deadline(*pulls.EDGE, "no", None, deadline=begun - 5) is None
    found = receiver.health()
    assert found["errors"] == 0 and found["timeouts"] + found["misses"] == 2


def test_many_keys_are_pulled_at_once_from_several_senders(receiver: Connector) -> None:
    with pulls.sender() as one, pulls.sender() as two:
        receiver.update_sender_info(one.host, one.zmq_port, 0)
        receiver.update_sender_info(two.host, two.zmq_port, sender_rank=1)
        assert one.put(*pulls.EDGE, "a", b"from one")[0]
        assert two.put(*pulls.EDGE, "b", {"from": "two"})[0]
        places = [receiver.sender_metadata(rank) for rank in (0, 1, 1)]
        got = receiver.get_many(
            *pulls.EDGE, ["a", "b", "none"], places, deadline=time.monotonic() + 0.2
        )
        assert pulls.raw(got[0]) == b"from one"
        assert got[1] is not None and got[1][0] == {"from": "two"} and got[2] is None
        with pytest.raises(SenderUnknown, match="rank 2"):
            receiver.sender_metadata(2)


def test_without_a_sender_a_get_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    for extra in ({}, {"sender_host": "auto", "sender_zmq_port": 5}, {"sender_host": "10.0.0.1"}):
        with pulls.receiver(**extra) as one:
            with pytest.raises(RuntimeError, match=r"Call update_sender_info\(host, port\)"):
                one.get(*pulls.EDGE, "r")
            assert one.health()["errors"] == 1


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"source_host": "127.0.0.1"}, "source_port"),
        ({"source_port": 5}, "source_host"),
        ({"source_host": "", "source_port": 5}, "source_host"),
        ({"source_host": "127.0.0.1", "source_port": 70_000}, "source_port is 70000"),
        ({"source_host": "127.0.0.1", "source_port": "x"}, "source_port is 'x'"),
        ({"source_host": "h", "source_port": 5, "data_size": -1}, "data_size is -1"),
        ({"source_host": "h", "source_port": 5, "lengths": "abc"}, "lengths is 'abc'"),
        ({"source_host": "h", "source_port": 5, "source_addrs": [2**64]}, "source_addrs is"),
        ([1], "a dictionary or None"),
    ],
)
def test_a_wrong_field_of_metadata_is_named(
    receiver: Connector, caplog: pytest.LogCaptureFixture, metadata: Any, message: str
) -> None:
    assert receiver.get(*pulls.EDGE, "r", metadata) is None
    assert re.search(r"transfer_engine get failed for r@0_1: .*" + re.escape(message), caplog.text)
    assert receiver.health()["errors"] == 1


def test_forged_metadata_never_gives_foreign_bytes(sender: Connector, receiver: Connector) -> None:
    secret = sender.put(*pulls.EDGE, "secret", b"s" * 4096)[2]
    open_one = sender.put(*pulls.EDGE, "open", b"o" * 4096, readers=0)[2]
    assert secret is not None and open_one is not None
    forgeries = [
        {**open_one, "source_addrs": secret["source_addrs"]},
        {**open_one, "source_addrs": [4096]},
        {**open_one, "lengths": [8192], "data_size": 8192},
        {**open_one, "lengths": [2048, 2048]},
        {**open_one, "data_size": 4095},
        {**open_one, "generation": secret["generation"]},
        {**open_one, "source_rpc_port": 1},
    ]
    for forged in forgeries:
        got = pulls.raw(receiver.get(*pulls.EDGE, "open", forged))
        assert got in (None, b"o" * 4096), forged
    assert pulls.raw(receiver.get(*pulls.EDGE, "secret", secret)) == b"s" * 4096


def test_users_find_the_lines_that_they_look_for(
    sender: Connector, receiver: Connector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sender.put(*pulls.EDGE, "raw", b"x" * 1000)
    sender.put(*pulls.EDGE, "object", {"a": 1})
    pulls.raw(receiver.get(*pulls.EDGE, "raw"))
    receiver.get(*pulls.EDGE, "object")
    part = r"%s=\d+\.\dms, "
    raw = "".join(part % name for name in ("query", "alloc", "read", "total"))
    copied = "".join(part % name for name in ("query", "alloc", "read", "copy", "total"))
    lines = [record.getMessage() for record in caplog.records if "[YR GET]" in record.getMessage()]
    assert len(lines) == 2
    assert re.fullmatch(
        rf"\[YR GET\] raw@0_1: {raw}\d+\.\d MB/s \(fast_path, zero-copy\)", lines[0]
    )
    assert re.fullmatch(rf"\[YR GET\] object@0_1: {copied}\d+\.\d MB/s", lines[1])
    # A payload that claims to be an object and is none.
    frame = serializer.encode({"a": "b" * 100})
    assert sender.put(*pulls.EDGE, "bad", serializer.plan({"a": 1}))[0] is False
    assert sender.put(*pulls.EDGE, "bad", frame[:50])[0]
    assert pulls.raw(receiver.get(*pulls.EDGE, "bad")) == frame[:50]


def test_health_has_the_keys_of_vllm_omni_and_its_counters(
    sender: Connector, receiver: Connector
) -> None:
    sender.put(*pulls.EDGE, "r", b"x" * 1000)
    pulls.raw(receiver.get(*pulls.EDGE, "r"))
    receiver.get(*pulls.EDGE, "none")
    found = receiver.health()
    assert found["status"] == "healthy"
    assert {"host", "zmq_port", "rpc_port", "protocol", "pool_device", "pool_size"} < set(found)
    assert (found["pool_device"], found["pool_size"]) == ("cpu", pulls.POOL)
    wanted = {"puts": 0, "gets": 1, "bytes_transferred": 1000, "errors": 0, "timeouts": 0}
    assert {name: found[name] for name in wanted} == wanted
    assert found["misses"] == 1
    assert sender.health()["puts"] == 1
    assert "stagelink_" in sender.metrics_text()
    json.dumps(found)
