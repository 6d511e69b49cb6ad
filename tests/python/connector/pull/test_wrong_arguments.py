"""What cannot be an argument is refused by name, value and what is expected, at every entry."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import stagelink as sl
from stagelink import _core, serializer
from stagelink.connectors import YuanrongConnector, YuanrongTransferEngineConnector
from stagelink.kv_transfer import KvTransferConfig, KvTransferManager

sys.path.insert(0, str(Path(__file__).parent))

import pulls  # noqa: E402

HALF = "\ud800"  # Half a surrogate pair: JSON lets it in, UTF-8 has none.
EDGE = pulls.EDGE
PLACE = (32, (2, 4), "float32", "127.0.0.1:5", 1)
VECTOR = np.zeros((2, 4), np.float32)


@pytest.fixture(scope="module")
def ends() -> Iterator[SimpleNamespace]:
    """One of everything that takes arguments. Its threads and files outlive the single test."""
    kv = {
        "omni_from_stage": 0,
        "omni_to_stage": 1,
        "connector_config": {
            "type": "YuanrongTransferEngineConnector",
            "host": "127.0.0.1",
            "zmq_port": "auto",
            "memory_pool_size": "1MiB",
        },
        "enable_kv_async_prefetch": True,
    }
    cache = {"host": "127.0.0.1", "buffer_size": "1MiB", "registry_http_port": 0}
    made = SimpleNamespace(
        sender=pulls.sender(),
        receiver=pulls.receiver(),
        store=YuanrongConnector({"namespace": "test-arguments", "capacity": "8MiB"}),
        objects=sl.ObjectStore(name="test-arguments-2", capacity="8MiB"),
        kv_sender=KvTransferManager({**kv, "stage_id": 0, "need_send_cache": True}),
        kv_receiver=KvTransferManager({**kv, "stage_id": 1, "need_recv_cache": True}),
        producer=_core.EncoderCacheProducer(json.dumps(cache)),
        registry=_core.EncoderCacheRegistry(port=0),
    )
    fetching = {**cache, "zmq_port": 0, "rpc_port": 0}
    fetching["remote_registry_url"] = made.producer.registry_url
    made.fetching = json.dumps(fetching)
    made.fetcher = _core.EncoderCacheFetcher(made.fetching, 1)
    made.consumer = _core.EncoderCacheConsumer(made.fetching)
    made.receiver.update_sender_info(made.sender.host, made.sender.zmq_port)
    yield made
    for end in list(vars(made).values()):
        if hasattr(end, "close"):
            end.close()


Call = Callable[[SimpleNamespace, Any], Any]
# Name in the message, the call, values that it cannot take.
WRONG: list[tuple[str, Call, list[Any]]] = [
    # The pulling connector.
    ("config", lambda e, v: YuanrongTransferEngineConnector(v), [None, [], "x", 5]),
    ("share", lambda e, v: YuanrongTransferEngineConnector(e.receiver.config, share=v),
     [5, "x", [], object(), {}]),
    ("put_key", lambda e, v: e.sender.put(*EDGE, v, b"x"), [None, b"x", 5, ["k"]]),
    ("from_stage", lambda e, v: e.sender.put(v, "1", "k", b"x"), [None, b"0", 1.5, True]),
    ("to_stage", lambda e, v: e.receiver.get("0", v, "k"), [None, b"0", 1.5]),
    ("readers", lambda e, v: e.sender.put(*EDGE, "k", b"x", readers=v),
     [-1, None, "2", 1.5, 2**64]),
    ("readers", lambda e, v: e.sender.put(*EDGE, "k", b"x", readers=v), [_core.MAX_READERS + 1]),
    ("ttl", lambda e, v: e.sender.put(*EDGE, "k", b"x", ttl=v), [-1, "soon", math.nan, [], b"1"]),
    ("size", lambda e, v: e.sender.allocate(v), [-1, None, 1.5, "lots", 2**64, []]),
    ("timeout", lambda e, v: e.sender.allocate(8, v), [-1, "x", [], math.inf]),
    ("get_key", lambda e, v: e.receiver.get(*EDGE, v), [None, b"x", 5]),
    ("deadline", lambda e, v: e.receiver.get_with_deadline(*EDGE, "k", deadline=v),
     [None, "x", [], math.nan, math.inf, True, 10**400]),
    ("deadline", lambda e, v: e.receiver.get_many(*EDGE, ["k"], deadline=v), [None, "5", math.nan]),
    ("get_keys", lambda e, v: e.receiver.get_many(*EDGE, v, deadline=0.0), [None, "key", 5, b"k"]),
    ("get_keys[1]", lambda e, v: e.receiver.get_many(*EDGE, ["a", v], deadline=0.0),
     [None, 5, HALF]),
    ("metadata", lambda e, v: e.receiver.get_many(*EDGE, ["a"], v, deadline=0.0), ["x", 5, {}]),
    ("sender_zmq_port", lambda e, v: e.receiver.update_sender_info("h", v), [99999, -1, "x", 1.5]),
    ("sender_host", lambda e, v: e.receiver.update_sender_info(v, 5), [5, b"h", HALF]),
    ("sender_rank", lambda e, v: e.receiver.update_sender_info("h", 5, v), ["x", -1, 1.5]),
    ("sender_rank", lambda e, v: e.receiver.sender_metadata(v), [None, "x", -1]),
    ("request_id", lambda e, v: e.sender.cleanup(v), [None, 5, b"k"]),
    ("from_stage", lambda e, v: e.sender.cleanup("k", v, "1"), [1.5, b"0"]),
    ("timeout", lambda e, v: e.sender.close(v), [-1, None, "x"]),
    # The connector of a store.
    ("config", lambda e, v: YuanrongConnector(v), [None, [], "x", 5]),
    ("put_key", lambda e, v: e.store.put(*EDGE, v, b"x"), [None, b"x", 5]),
    ("get_key", lambda e, v: e.store.get(*EDGE, v), [None, b"x", 5]),
    ("to_stage", lambda e, v: e.store.put("0", v, "k", b"x"), [None, b"1", 0.5]),
    ("deadline", lambda e, v: e.store.get_with_deadline(*EDGE, "k", deadline=v),
     [None, "x", math.nan]),
    ("request_id", lambda e, v: e.store.cleanup(v), [None, 5]),
    ("sender_zmq_port", lambda e, v: e.store.update_sender_info("h", v), [99999, -1, None, "x"]),
    ("sender_host", lambda e, v: e.store.update_sender_info(v, 5), [None, 5]),
    # The store.
    ("key", lambda e, v: e.objects.put(v, b"x"), [None, 5, HALF, ["k"]]),
    ("key", lambda e, v: e.objects.get(v), [None, 5, HALF]),
    ("key", lambda e, v: e.objects.exists(v), [None, 5, HALF]),
    ("key", lambda e, v: e.objects.erase(v), [None, 5, HALF]),
    ("keys", lambda e, v: e.objects.get_many(v), [None, 5, "abc", b"abc"]),
    ("key", lambda e, v: e.objects.get_many(["a", v]), [None, 5, HALF]),
    ("size", lambda e, v: e.objects.create("k", v), [None, -1, 1.5, "x", 2**64]),
    ("ttl", lambda e, v: e.objects.put("k", b"x", ttl=v), [-1, "x", [], math.nan]),
    ("timeout", lambda e, v: e.objects.get("k", v), [None, -1, "x"]),
    ("ttl", lambda e, v: e.objects.expire("k", v), [-1, "x", []]),
    ("generation", lambda e, v: e.objects.erase("k", v), [None, -1, "x", 1.5, 2**64]),
    # The KV manager.
    ("omni_kv_config", lambda e, v: KvTransferManager(v), [None, [], "x", 5]),
    ("from_tp", lambda e, v: KvTransferConfig(from_tp=v), [0, "2", 1.5, None, 2**40]),
    ("to_tp", lambda e, v: KvTransferManager({"rank_mapping": {"from_tp": 1, "to_tp": v}}),
     ["x", 0, None]),
    ("recv_timeout", lambda e, v: KvTransferConfig(recv_timeout=v), [0, "x", math.nan, math.inf]),
    ("send_timeout", lambda e, v: KvTransferConfig(send_timeout=v), [0, -1, None]),
    ("window_size", lambda e, v: KvTransferConfig(window_size=v), [0, -2, "x", 1.5]),
    ("kv_heads", lambda e, v: KvTransferConfig(kv_heads=v), [-1, "x"]),
    ("mla", lambda e, v: KvTransferConfig(mla=v), [5, "yes", None]),
    ("need_send_cache", lambda e, v: KvTransferConfig(need_send_cache=v), [1, "yes"]),
    ("kv_layout", lambda e, v: KvTransferConfig(kv_layout=v), ["zz", 5, None]),
    ("connector_config", lambda e, v: KvTransferConfig(connector_config=v), [5, "x", []]),
    ("stage_id", lambda e, v: KvTransferConfig(stage_id=v), [[], 1.5]),
    ("engine_input_source", lambda e, v: KvTransferConfig(engine_input_source=v), [5, "12", [[]]]),
    ("finished_reqs", lambda e, v: _send(e, v), [None, [], ["a"], 5]),
    ("kv_caches", lambda e, v: _send(e, {"a": {}}, v), [None, 5, "x"]),
    ("block_size", lambda e, v: _send(e, {"a": {}}, [], v), [None, 0, -1, "x", 1.5, 2**40]),
    ("request_id", lambda e, v: e.kv_receiver.receive_kv_cache_for_request(v), [None, 5, b"x"]),
    ("timeout", lambda e, v: e.kv_receiver.receive_kv_cache_for_request("q", timeout=v),
     [-1, "x", math.nan, []]),
    ("target_device", lambda e, v: e.kv_receiver.receive_kv_cache_for_request("q", v), ["zz", 1.5]),
    ("kv_prefetch_job", lambda e, v: e.kv_receiver.start_prefetch(v), [5, "x", ["a"]]),
    ("kv_sender_info", lambda e, v: e.kv_receiver.start_prefetch(
        {"request_id": "a", "kv_sender_info": v}), [5, "x"]),
    ("timeout", lambda e, v: e.kv_receiver.wait_prefetch(v), ["x", -1, []]),
    # The encoder cache.
    ("extra", lambda e, v: _core.EncoderCacheProducer(v), [None, 5, {}]),
    ("mm_hash", lambda e, v: e.producer.save(v, (2, 4), "float32", VECTOR), [None, 5, HALF, b"x"]),
    ("mm_hash", lambda e, v: e.producer.has(v), [None, 5, HALF]),
    ("mm_hash", lambda e, v: e.producer.evict(v), [None, 5, HALF]),
    ("shape", lambda e, v: e.producer.save("k", v, "float32", VECTOR),
     [None, "ab", (-1, 2), (2.5,)]),
    ("dtype", lambda e, v: e.producer.save("k", (2, 4), v, VECTOR), [None, 5, HALF]),
    ("timeout", lambda e, v: e.producer.flush(v), [None, -1, "x"]),
    ("readers", lambda e, v: _core.EncoderCacheFetcher(e.fetching, v), [None, -1, 0, "x", 2**40]),
    ("mm_hash", lambda e, v: e.fetcher.want(v), [None, 5, HALF]),
    ("mm_hash", lambda e, v: e.fetcher.look(v), [None, 5, HALF]),
    ("mm_hash", lambda e, v: e.fetcher.drop(v), [None, 5, HALF]),
    ("items", lambda e, v: e.consumer.load(v), [None, 5, "abc"]),
    ("item", lambda e, v: e.consumer.load([v]), [None, 5, "abc"]),
    ("mm_hash", lambda e, v: e.consumer.load([(v, [PLACE], VECTOR)]), [None, 5, HALF]),
    ("places", lambda e, v: e.consumer.load([("k", v, VECTOR)]), [None, 5, "abc"]),
    ("place", lambda e, v: e.consumer.load([("k", [v], VECTOR)]), [None, 5]),
    ("nbytes", lambda e, v: e.consumer.load([("k", [(v, *PLACE[1:])], VECTOR)]), [None, "x", -1]),
    ("handed_on", lambda e, v: e.consumer.load([], None, v), [None, "x", 1, []]),
    ("port", lambda e, v: _core.EncoderCacheRegistry(port=v), [None, -1, 99999, "x"]),
    ("host", lambda e, v: _core.EncoderCacheRegistry(host=v, port=0), [None, 5, HALF]),
    ("mm_hash", lambda e, v: e.registry.publish(v, PLACE), [None, 5, HALF]),
    ("generation", lambda e, v: e.registry.publish("k", (*PLACE[:4], v)), [None, "x", -1]),
]  # fmt: skip


def _send(ends: Any, finished: Any, caches: Any = (), block_size: Any = 16) -> Any:
    return ends.kv_sender.handle_finished_requests_kv_transfer(
        finished, caches, block_size, "float32"
    )


@pytest.mark.parametrize(
    ("name", "call", "values"), WRONG, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(WRONG)]
)
def test_what_cannot_be_an_argument_is_named(
    ends: SimpleNamespace, name: str, call: Call, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(sl.InvalidArgument) as raised:
            call(ends, value)
        message = raised.value.message
        assert message.startswith(name), (value, message)
        assert len(message) < 400 and "incompatible function" not in message, (value, message)
        # The value, unless it is a part of what was given that is wrong.
        shown = repr(value)
        assert shown in message or "[" in message or "(" in message or "`" in message, message
        assert re.search("expected|not in|must|is not", message), message


def test_values_are_cut_between_two_characters(ends: SimpleNamespace) -> None:
    for text in ("é", "€", "\N{GRINNING FACE}"):
        for begin in ("", "a", "ab", "abc"):
            long = begin + text * 200
            for call in (
                lambda v: ends.producer.save("h", v, "uint8", b"abcd"),
                lambda v: ends.objects.put([v], b"x"),
                lambda v: ends.receiver._core.get_many(["k"], [{"source_host": [v]}], 0.0, 0.0),
                lambda v: serializer.encode({v: object()}),
            ):
                with pytest.raises((sl.InvalidArgument, TypeError)) as raised:
                    call(long)
                assert text * 15 in str(raised.value)
                assert len(str(raised.value).encode()) < 300


def test_a_repr_that_fails_hides_nothing_else(ends: SimpleNamespace) -> None:
    class Mute:
        def __repr__(self) -> str:
            raise ValueError("no repr")

    class Half:
        def __repr__(self) -> str:
            return HALF

    for value in (Mute(), Half()):
        with pytest.raises(sl.InvalidArgument, match=r"^key = \?: expected text"):
            ends.objects.get(value)


def test_a_tensor_of_a_buffer_has_a_type_and_extents(ends: SimpleNamespace) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    buffer = ends.sender.allocate(16)
    for dtype, shape, name in (
        *((torch.uint8, shape, "shape") for shape in ((-1,), ("x",), 5)),
        *((dtype, (16,), "dtype") for dtype in (None, "uint8", 5)),
    ):
        with pytest.raises(sl.InvalidArgument, match=name):
            buffer.as_tensor(dtype, shape)


def test_a_long_value_is_not_repeated_in_full(ends: SimpleNamespace) -> None:
    for call in (
        lambda: ends.sender.put(*EDGE, ["x" * 100_000], b"x"),
        lambda: ends.objects.put(["x" * 100_000], b"x"),
    ):
        with pytest.raises(sl.InvalidArgument) as raised:
            call()
        assert len(raised.value.message) < 300


def test_text_without_utf8_is_answered_and_counted(ends: SimpleNamespace) -> None:
    """It comes with requests, not from the program: a put or get of it must not end an engine."""
    for one in (ends.sender, ends.store):
        before = one.health()["errors"]
        assert one.put(*EDGE, HALF, b"x") == (False, 0, None)
        assert one.put(HALF, "1", "k", b"x") == (False, 0, None)
        assert one.health()["errors"] == before + 2
        one.cleanup(HALF)
        one.cleanup(HALF, *EDGE)
    before = ends.receiver.health()["errors"]
    for one in (ends.receiver, ends.store):
        assert one.get(*EDGE, HALF) is None
        assert one.get_with_deadline(*EDGE, HALF, deadline=time.monotonic() + 30) is None
    assert ends.receiver.health()["errors"] == before + 2
    outcomes = ends.store._core.outcomes()
    assert ("invalid_argument", 2) in [(reason, gets) for reason, _, _, gets in outcomes]


@pytest.mark.parametrize(
    "data",
    [
        None, 5, [], {"block_ids": None, "seq_len": 1}, {"block_ids": ["x"], "seq_len": 1},
        {"block_ids": 5, "seq_len": 1}, {"block_ids": [1], "seq_len": "x"},
        {"block_ids": [1], "seq_len": -1}, {"block_ids": [2**70], "seq_len": 1},
        {"block_ids": [-1], "seq_len": 1}, {"block_ids": [1], "seq_len": 1, "custom_metadata": 5},
        {"block_ids": [1], "seq_len": 1, "custom_metadata": {"x": object()}},
    ],
    ids=repr,
)  # fmt: skip
def test_a_request_that_cannot_be_sent_fails_and_the_others_are_sent(
    ends: SimpleNamespace, data: Any
) -> None:
    good = {"block_ids": [1], "seq_len": 16}
    sender = ends.kv_sender
    done = _send(
        ends,
        {"bad": data, HALF: good, 5: good, "good": good},
        [np.zeros((2, 4, 16, 1, 8), np.float32)],
    )
    assert pulls.soon(lambda: sender.pending_sends == 0)
    done += _send(ends, {})
    assert done == ["good"]
    failed = sender.take_failed_sends()
    assert set(failed) == {"bad", HALF, 5}
    assert {why for keys in failed.values() for why in keys.values()} == {"invalid_argument"}
    sender.connector.cleanup("omni_0_to_1_kv_cache_good", *EDGE)


def test_places_of_senders_that_cannot_be_are_no_receive(
    ends: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = ends.kv_receiver
    for info in (5, "x", {"host": 5}, {"host": "h", "zmq_port": "x"},
                 {"host": "h", "zmq_port": 99999}, {"ranks": 5}, {"ranks": []}, {"ranks": [5]},
                 {"ranks": [{"host": "h"}]},
                 {"host": None, "zmq_port": 5}, {"ranks": [("h", 99999)]}):  # fmt: skip
        caplog.clear()
        assert receiver.receive_kv_cache_for_request("q", sender_info=info) == (None, 0)
        receiver.update_sender_info(info)
        assert len(caplog.records) == 2, info
        assert all(
            "expected" in one.message or "sender_info" in one.message for one in caplog.records
        )
    assert receiver.receive_kv_cache_for_request(HALF) == (None, 0)
