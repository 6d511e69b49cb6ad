"""The contract that vLLM-Omni's callers rely on."""

from __future__ import annotations

import gc
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stagelink as sl
from stagelink import serializer
from stagelink.connectors import ConnectorClosed, ConnectorSpec, create_connector

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "serializer")]

import stores  # noqa: E402
import zoo  # noqa: E402


def test_put_and_get_take_their_arguments_by_place_and_by_name() -> None:
    with stores.connector(stores.namespace(), stage_id=3, codec_chunk_frames=25) as one:
        assert one.put("0", "1", "r", [1]) == (True, len(serializer.encode([1], "fast")), None)
        data, size = one.get("0", "1", get_key="r", metadata={"source_host": "h", "source_port": 1})
        assert (data, size) == ([1], len(serializer.encode([1], "fast")))
        assert one.put(from_stage="0", to_stage="1", put_key="r", data={"a": 1})[0]
        assert one.get(0, 1, "r", metadata=None) == ({"a": 1}, one._core.get_bytes - size)
        assert one.get("0", "1", "r") is None
        assert one.stage_id == 3
        assert one.config["codec_chunk_frames"] == 25
        assert one.supports_raw_data is False
        assert one._make_key("r", "0", "1") == "r:0_1"


@pytest.mark.parametrize("wire", ["compat", "fast"])
def test_falsy_values_come_back_typed_and_leave_nothing(wire: str) -> None:
    before = stores.arenas()
    with stores.connector(stores.namespace(), wire=wire) as one:
        for value in zoo.FALSY:
            for at in range(6):
                assert one.put("0", "1", f"r{at}", value)[0]
                got = one.get("0", "1", f"r{at}")
                assert got is not None and zoo.same(got[0], value), value
        assert one.health()["hits"] == 6 * len(zoo.FALSY)
        assert stores.objects(one) == 0
    assert stores.arenas() == before


def test_an_abort_deletes_what_was_put() -> None:
    with stores.connector(stores.namespace()) as one:
        for at in range(50):
            assert one.put("0", "1", f"r{at}", b"x" * 1000)[0]
        for at in range(50):
            one.cleanup(f"r{at}")
        assert stores.objects(one) == 0
        assert one.health()["unconsumed"] == 0
        one.put("0", "1", "a", 1)
        one.put("0", "2", "a", 1)
        one.cleanup("a", "0", "1")
        assert one.get("0", "1", "a") is None
        assert one.get("0", "2", "a") is not None
        with pytest.raises(ValueError, match="both from_stage and to_stage"):
            one.cleanup("a", "0")
        one.cleanup("never put")
        for chunk in range(3):
            one.put("0", "1", f"req_0_{chunk}", chunk)
        one.put("0", "1", "req_1_0", "another's")
        one.cleanup("req")
        assert [one.get("0", "1", f"req_0_{chunk}") for chunk in range(3)] == [None] * 3
        assert one.get("0", "1", "req_1_0") is not None


def test_a_put_that_cannot_be_gives_false_and_is_counted() -> None:
    with stores.connector(stores.namespace(), put_timeout="20ms") as one:
        assert one.put("0", "1", "r", object()) == (False, 0, None)
        assert one.put("0", "1", "r", {"a": [1 << 64]}) == (False, 0, None)
        assert one.put("0", "1", "r", np.zeros(64 << 20, np.uint8)) == (False, 0, None)
        for at in range(40):
            one.put("0", "1", f"r{at}", np.zeros(1 << 20, np.uint8))
        found = one.health()
        assert found["puts"] < 40
        assert found["failed_puts"] == found["errors"] == 43 - found["puts"]
        for at in range(40):
            one.cleanup(f"r{at}")
        assert stores.objects(one) == 0
        assert one.put("0", "1", "r", np.zeros(1 << 20, np.uint8))[0]


def test_what_cannot_be_decoded_gives_none_and_is_deleted() -> None:
    name = stores.namespace()
    with stores.connector(name, checksum=True) as one:
        raw = bytearray(serializer.encode([np.arange(9)], "fast", checksum=True))
        raw[-1] ^= 1
        with sl.ObjectStore(name=name, capacity=0) as store:
            for at in range(50):
                store.put(f"r{at}:0_1", raw)
        for at in range(50):
            assert one.get("0", "1", f"r{at}") is None
        assert one.health()["decode"] == 50
        assert stores.gets(one) == {"corrupt": 50}
        assert stores.objects(one) == 0


def test_every_none_has_a_reason() -> None:
    with stores.connector(stores.namespace(), ttl="1ms", get_sub_timeout_ms=1) as one:
        assert one.get("0", "1", "never") is None
        one.put("0", "1", "late", 1)
        time.sleep(0.005)
        assert one.get("0", "1", "late") is None
        assert one.get("0", "1", "") is None or True
        assert one.get("0", "1", "k" * 2000) is None
        found = stores.gets(one)
        assert found["timed_out"] >= 1
        assert found.get("expired", 0) + found["timed_out"] == 3
        assert found["invalid_argument"] == 1
        text = one.metrics_text()
        assert 'stagelink_connector_gets_total{stage="-1",backend="shm",reason="timed_out"}' in text


def test_get_sub_timeout_says_how_long_get_waits() -> None:
    with stores.connector(stores.namespace()) as one:
        start = time.monotonic()
        for _ in range(100):
            assert one.get("0", "1", "none") is None
        assert time.monotonic() - start < 5
        assert stores.gets(one) == {"not_found": 100}
    with stores.connector(stores.namespace(), get_sub_timeout_ms=30) as one:
        start = time.monotonic()
        assert one.get("0", "1", "none") is None
        assert time.monotonic() - start >= 0.03
        start = time.monotonic()
        assert one.get_with_deadline("0", "1", "none", deadline=start + 0.05) is None
        assert time.monotonic() - start >= 0.05
        assert one.get_with_deadline("0", "1", "none", deadline=start) is None
        one.abandon_get("none")
        assert stores.gets(one) == {"timed_out": 2, "not_found": 1}
    with stores.connector(stores.namespace(), get_sub_timeout_ms=0, max_wait="40ms") as one:
        start = time.monotonic()
        assert one.get("0", "1", "none") is None
        assert time.monotonic() - start >= 0.04


def test_a_waiting_get_leaves_the_interpreter_to_others() -> None:
    with stores.connector(stores.namespace(), get_sub_timeout_ms=0) as one:
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(one.get("0", "1", "r")))
        thread.start()
        while thread.is_alive():  # Only because the getter has given the lock up.
            one.put("0", "1", "r", "late")
            thread.join(0.01)
        assert got[0][0] == "late"


def test_a_put_waits_for_its_window_and_reaping_opens_it() -> None:
    name = stores.namespace()
    with stores.connector(name, window_size=2, put_timeout="20ms") as one:
        assert one.put("0", "1", "a", 1)[0]
        assert one.put("0", "1", "b", 1)[0]
        assert one.put("0", "1", "c", 1) == (False, 0, None)
        assert one.put("0", "2", "c", 1)[0]  # Each edge has its own window.
        with stores.connector(name) as other:
            assert other.get("0", "1", "a") is not None
        assert one.put("0", "1", "c", 1)[0]
        one.cleanup("c", "0", "1")
        assert one.put("0", "1", "d", 1)[0]
    with stores.connector(stores.namespace()) as one:
        one.put("0", "1", "a", 1)
        one.get("0", "1", "a")
        assert one.health()["unconsumed"] == 1
        one.reap_consumed()
        assert one.health()["unconsumed"] == 0


def test_a_reput_is_a_generation_of_its_own() -> None:
    with stores.connector(stores.namespace(), view_min_bytes=0) as one:
        one.put("0", "1", "r", np.full(1000, 1))
        first = one.get("0", "1", "r")
        one.put("0", "1", "r", np.full(1000, 2))
        second = one.get("0", "1", "r")
        assert first is not None and second is not None
        assert (first[0] == 1).all() and (second[0] == 2).all()


def test_views_hold_memory_and_small_payloads_do_not() -> None:
    with stores.connector(stores.namespace()) as one:
        large, small = np.zeros(1 << 20, np.uint8), np.zeros(100, np.uint8)
        one.put("0", "1", "large", large)
        one.put("0", "1", "small", small)
        kept = one.get("0", "1", "large"), one.get("0", "1", "small")
        used = next(line for line in one.metrics_text().splitlines() if "_leased_objects{" in line)
        assert used.endswith(" 1")
        assert kept[1] is not None and kept[1][0].flags.writeable
        with stores.connector(one.namespace, copy=True) as other:
            other.put("0", "1", "copied", large)
            copied = other.get("0", "1", "copied")
            assert copied is not None and copied[0].flags.writeable


def test_close_ends_what_waits_and_comes_again() -> None:
    one = stores.connector(stores.namespace(), get_sub_timeout_ms=0)
    got: list[Any] = []

    def wait(get: Any) -> None:
        got.append(get("0", "1", "never"))

    thread = threading.Thread(target=wait, args=(one.get,))
    thread.start()
    one.close()
    thread.join(20)
    assert got in ([None], [])  # None, or closed before it began.
    one.close()
    for call, arguments in ((one.get, ("0", "1", "r")), (one.put, ("0", "1", "r", 1))):
        with pytest.raises(RuntimeError, match="closed") as caught:
            call(*arguments)
        assert isinstance(caught.value, ConnectorClosed | sl.InvalidState)
    del call
    one.cleanup("r")
    one.reap_consumed()
    assert one.health()["status"] == "unhealthy"
    del one, thread
    gc.collect()


def test_a_wrong_configuration_is_named_and_leaves_nothing() -> None:
    before = stores.arenas()
    for extra, message in (
        ({"get_sub_timeout": 5}, "did you mean `get_sub_timeout_ms`"),
        ({"port": "x"}, "port"),
        ({"backend": "redis"}, "backend"),
        ({"capacity": "lots"}, "capacity"),
    ):
        with pytest.raises(ValueError, match=message):
            create_connector(ConnectorSpec("YuanrongConnector", extra))
    with pytest.raises(ValueError, match="Unknown connector: Nobody"):
        create_connector(ConnectorSpec("Nobody"))
    gc.collect()  # What was half made says nothing.
    assert stores.arenas() == before


def test_health_has_the_keys_of_the_host_and_more() -> None:
    with stores.connector(stores.namespace(), host="h", backend="shm") as one:
        one.put("0", "1", "r", 1)
        found = one.health()
        assert found["status"] == "healthy"
        assert (found["host"], found["port"]) == ("h", 35001)
        assert set(found) == {
            *("status", "host", "port", "puts", "gets", "bytes_transferred", "errors", "timeouts"),
            *("error", "backend", "namespace", "hits", "misses", "expired", "evicted"),
            *("transport", "decode", "failed_puts", "bytes_received", "unconsumed"),
        }
        one.update_sender_info("other", 5)
        assert one.sender_zmq_port == 5
        assert one.get_connection_info()["can_put"] is True


def test_many_threads_use_one_connector() -> None:
    with stores.connector(stores.namespace(), get_sub_timeout_ms=20_000) as one:
        wrong: list[Any] = []

        def send(thread: int) -> None:
            for at in range(50):
                if not one.put("0", "1", f"{thread}_{at}", {"v": [thread, at]})[0]:
                    wrong.append((thread, at))

        def receive(thread: int) -> None:
            for at in range(50):
                got = one.get("0", "1", f"{thread}_{at}")
                if got is None or got[0] != {"v": [thread, at]}:
                    wrong.append(got)

        threads = [
            threading.Thread(target=work, args=(number,))
            for number in range(4)
            for work in (send, receive)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert wrong == []
        assert stores.objects(one) == 0
