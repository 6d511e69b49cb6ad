"""Blocks of registered caches: read where they lie, and given back when nobody reads them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from child import Child

import stagelink as sl
from stagelink.kv_transfer import KvTransferManager

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)

import kv_ranks  # noqa: E402
from test_kv_manager import Shelf, config, soon  # noqa: E402

CHILD = """
import sys
sys.path.insert(0, folder)
import kv_ranks
from stagelink import _core
one = kv_ranks.manager("receiver", rank, case)
"""
LAYERS = [np.arange(2 * 64 * 4 * 2 * 8, dtype=np.int32).reshape(2, 64, 4, 2, 8) for _ in range(3)]
REQUEST = {"block_ids": [5, 6, 7, 2], "seq_len": 15}


def place_of(one: KvTransferManager) -> dict[str, Any]:
    info = one.connector.get_connection_info()
    return {"host": info["host"], "zmq_port": info["zmq_port"]}


def sender(case: dict[str, Any], **connector: Any) -> KvTransferManager:
    made = config("sender", (case["from_tp"], case["to_tp"]), async_send=False)
    made["connector_config"] = {
        "type": "YuanrongTransferEngineConnector", "host": "127.0.0.1", "zmq_port": "auto",
        "memory_pool_size": "1MiB", "protocol": case.get("protocol", "auto"), **connector,
    }  # fmt: skip
    return KvTransferManager({**made, "kv_heads": case.get("heads", 0)})


def hand_over(one: KvTransferManager, request: str, layers: Any = None, **more: Any) -> list[str]:
    layers = LAYERS if layers is None else layers
    return one.handle_finished_requests_kv_transfer(
        {request: {**REQUEST, **more}}, layers, 4, "int32"
    )


@pytest.mark.parametrize("protocol", ["auto", "tcp"])
@pytest.mark.parametrize("to_tp", [1, 2])
def test_receivers_read_the_blocks_where_they_lie(
    child: Callable[..., Child], protocol: str, to_tp: int
) -> None:
    case = {"from_tp": 1, "to_tp": to_tp, "heads": 2, "protocol": protocol}
    receivers = [child() for _ in range(to_tp)]
    for rank, peer in enumerate(receivers):
        peer.run(CHILD, folder=HERE, rank=rank, case=case)
    layers = kv_ranks.cache(range(2), False)
    asked = {"block_ids": list(kv_ranks.BLOCKS), "seq_len": kv_ranks.TOKENS}
    with sender(case) as one:
        one.register_kv_caches(layers, kv_ranks.BLOCK)
        done = one.handle_finished_requests_kv_transfer(
            {"r1": asked}, layers, kv_ranks.BLOCK, "int32"
        )
        assert done == ["r1"]
        assert one.counters.get("put_in_place", "ok") == to_tp
        # In the pool are the headers; all else is read from the blocks.
        health = one.connector.health()
        assert 0 < health["pool_used"] < health["bytes_transferred"]
        for rank, peer in enumerate(receivers):
            assert one.take_reusable() == []
            code = "kv_ranks.receive(one, 'r1', rank, case, at, 20)"
            wrong, payloads, _ = peer.run(code, rank=rank, case=case, at=place_of(one))
            assert (wrong, payloads) == ("", 1)
        assert soon(one.take_reusable) == ["r1"]
        assert one.take_reusable() == [] and one.connector.health()["pool_used"] == 0
    for peer in receivers:
        peer.run("one.close()")


def test_blocks_that_nobody_reads_come_back_with_their_time() -> None:
    with sender({"from_tp": 1, "to_tp": 1}, buffer_ttl_seconds=0.2) as one:
        one.register_kv_caches(LAYERS, 4)
        assert hand_over(one, "a") == ["a"]
        assert soon(one.take_reusable) == ["a"]
        assert one.connector.health()["offers"] == 0


def test_blocks_are_not_given_back_under_a_claim(child: Callable[..., Child]) -> None:
    case = {"from_tp": 1, "to_tp": 1, "heads": 2, "protocol": "auto"}
    peer = child()
    peer.run(CHILD, folder=HERE, rank=0, case=case)
    with sender(case, claim_timeout="60s") as one:
        one.register_kv_caches(LAYERS, 4)
        assert hand_over(one, "a") == ["a"]
        at = {"source_host": one.connector.host, "source_port": one.connector.zmq_port}
        peer.run(
            "_, claimed = _core.kv_straight_get(one.connector._core, [key], [at], "
            "one.rank_map.gets(0), 'a', 0, 2, 20)\nassert claimed is not None",
            key="omni_0_to_1_kv_cache_a@0_1", at=at,
        )  # fmt: skip
        one.connector.cleanup("omni_0_to_1_kv_cache_a", *("0", "1"))
        assert one.take_reusable() == [] and one.connector.health()["claims"] == 1
        peer.kill()  # Its claims end with it.
        assert soon(one.take_reusable) == ["a"]


def test_a_payload_in_too_many_places_is_copied() -> None:
    layers = [np.zeros((2, 8192, 1, 1, 8), np.int8)]
    blocks = list(range(0, 8192, 2))  # No two of them together: twice 4096 runs.
    with sender({"from_tp": 1, "to_tp": 1}) as one:
        one.register_kv_caches(layers, 1)
        asked = {"a": {"block_ids": blocks, "seq_len": len(blocks)}}
        assert one.handle_finished_requests_kv_transfer(asked, layers, 1, "int8") == ["a"]
        assert one.counters.get("put_in_place", "copied") == 1
        assert one.take_reusable() == ["a"]  # At once: the copy is what is offered.
        few = {"b": {"block_ids": blocks[:2000], "seq_len": 2000}}
        assert one.handle_finished_requests_kv_transfer(few, layers, 1, "int8") == ["b"]
        assert one.counters.get("put_in_place", "ok") == 1 and one.take_reusable() == []


def test_other_caches_and_failures_come_back_too() -> None:
    with sender({"from_tp": 1, "to_tp": 1}) as one:
        one.register_kv_caches(LAYERS, 4)
        copies = [layer.copy() for layer in LAYERS]
        assert hand_over(one, "other", copies) == ["other"]
        assert one.counters.get("put_in_place", "ok") == 0 and one.take_reusable() == ["other"]
        assert hand_over(one, "bad", block_ids=[99]) == []
        assert hand_over(one, "worse", block_ids="x") == []
        assert set(one.take_failed_sends()) == {"bad", "worse"}
        assert one.take_reusable() == ["bad", "worse"]


def test_closing_takes_back_what_nobody_reads() -> None:
    one = sender({"from_tp": 1, "to_tp": 1})
    one.register_kv_caches(LAYERS, 4)
    assert hand_over(one, "a") == ["a"]
    begun = time.monotonic()
    one.close()
    assert time.monotonic() - begun < 4
    assert one.take_reusable() == ["a"]


def test_what_cannot_be_registered_is_told() -> None:
    with KvTransferManager(config("sender"), connector=Shelf()) as one:
        with pytest.raises(sl.InvalidArgument, match="the connector that pulls, not by Shelf"):
            one.register_kv_caches(LAYERS, 4)
        assert hand_over(one, "a") in ([], ["a"]) and one.take_reusable() == []
    with sender({"from_tp": 1, "to_tp": 1, "protocol": "shm"}) as one:
        with pytest.raises(sl.InvalidArgument, match="protocol: shm"):
            one.register_kv_caches(LAYERS, 4)
    with sender({"from_tp": 1, "to_tp": 1}) as one:
        for wrong, name in ((None, "kv_caches"), ([5], "layer 0"), ([], "0 pieces|layers")):
            with pytest.raises(sl.Error, match=name):
                one.register_kv_caches(wrong, 4)  # type: ignore[arg-type]
        one.register_kv_caches(LAYERS, 4)
        with pytest.raises(sl.InvalidState, match="registered already"):
            one.register_kv_caches(LAYERS, 4)
    with KvTransferManager(config("receiver"), connector=Shelf()) as one:
        with pytest.raises(sl.InvalidArgument, match="need_send_cache"):
            one.register_kv_caches(LAYERS, 4)
        assert one.take_reusable() == []
