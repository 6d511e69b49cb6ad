"""The cache of a model whose every element is known, and managers of its ranks."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

from stagelink.kv_transfer import KvTransferManager

BLOCK = 4
BLOCKS = (7, 2, 3, 9, 1)
TOKENS = 18  # Of the 20 that the blocks hold.
DIM = 3
LAYERS = 4

_NAMES = "YuanrongTransferEngineConnector"


def element(layer: int, value: int, token: Any, head: Any, dim: Any) -> Any:
    return (((layer * 2 + value) * 64 + token) * 64 + head) * 8 + dim


def heads_of(heads: int, tp: int, rank: int) -> range:
    """Which of the model's heads a rank has: its share, or a copy of one."""
    if heads >= tp:
        each = heads // tp
        return range(rank * each, (rank + 1) * each)
    return range(rank // (tp // heads), rank // (tp // heads) + 1)


def dense(layer: int, value: int, heads: range) -> Any:
    """[tokens, heads, dim], as a receiver must have it."""
    token, head, dim = np.ogrid[:TOKENS, heads.start : heads.stop, :DIM]
    return element(layer, value, token, head, dim).astype(np.int32)


def _paged(layer: int, value: int, heads: range) -> Any:
    """[blocks, tokens, heads, dim], and -1 where nothing of the request is."""
    blocks = np.full((11, BLOCK, len(heads), DIM), -1, np.int32)
    token, head, dim = np.ogrid[: len(BLOCKS) * BLOCK, heads.start : heads.stop, :DIM]
    rows = element(layer, value, token, head, dim)
    for at, block in enumerate(BLOCKS):
        blocks[block] = rows[at * BLOCK : (at + 1) * BLOCK]
    return blocks


def cache(heads: range, mla: bool) -> list[Any]:
    """Layers, each in another of the forms that backends have."""
    if mla:
        return [_paged(layer, 0, heads)[:, :, 0, :] for layer in range(LAYERS)]
    layers: list[Any] = []
    for layer in range(LAYERS):
        keys, values = _paged(layer, 0, heads), _paged(layer, 1, heads)
        if layer == 0:
            layers.append(np.stack([keys, values]))
        elif layer == 1:
            layers.append(np.stack([keys, values], axis=1))
        elif layer == 2:
            layers.append(np.concatenate([keys, values], axis=3).transpose(0, 2, 1, 3).copy())
        else:
            # Heads before tokens in memory, tokens before heads by name.
            pair = [x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for x in (keys, values)]
            layers.append(tuple(pair))
    return layers


def manager(role: str, rank: int, case: dict[str, Any], **extra: Any) -> KvTransferManager:
    sends = role == "sender"
    connector = {
        "type": _NAMES,
        "host": "127.0.0.1",
        "zmq_port": case.get("zmq_port", "auto"),
        "memory_pool_size": 4 << 20,
        "protocol": case["protocol"],
    }
    return KvTransferManager(
        {
            "need_send_cache": sends,
            "need_recv_cache": not sends,
            "omni_from_stage": 0,
            "omni_to_stage": 1,
            "stage_id": 0 if sends else 1,
            "engine_input_source": [0],
            "rank_mapping": {"from_tp": case["from_tp"], "to_tp": case["to_tp"]},
            "tp_rank": rank,
            "kv_heads": 0 if case.get("mla") else case["heads"],
            "mla": bool(case.get("mla")),
            "connector_config": connector,
            **extra,
        }
    )


def send(one: KvTransferManager, request: str, rank: int, case: dict[str, Any]) -> Any:
    """Send, and wait until the blocks come back: their ids, why not, payloads, bytes."""
    heads = range(1) if case.get("mla") else heads_of(case["heads"], case["from_tp"], rank)
    layers = cache(heads, bool(case.get("mla")))
    before = one.connector.health()["bytes_transferred"]
    asked = {request: {"block_ids": list(BLOCKS), "seq_len": TOKENS}}
    done = one.handle_finished_requests_kv_transfer(asked, layers, BLOCK, "int32")
    failed: dict[str, Any] = {}
    until = time.monotonic() + 20
    while not done and not failed and time.monotonic() < until:
        time.sleep(0.002)
        done = one.handle_finished_requests_kv_transfer({}, layers, BLOCK, "int32")
        failed = one.take_failed_sends()
    offered = one.connector.health()["bytes_transferred"] - before
    return done, failed, one.counters.get("sent", "ok"), offered


def receive(
    one: KvTransferManager, request: str, rank: int, case: dict[str, Any], senders: Any, wait: float
) -> Any:
    """What is wrong with what was received, or "" and the number of payloads."""
    begun = time.monotonic()
    data, _ = one.receive_kv_cache_for_request(request, sender_info=senders, timeout=wait)
    taken = time.monotonic() - begun
    if data is None:
        return "nothing", one.counters.get("received", "timed_out"), taken
    mla = bool(case.get("mla"))
    heads = range(1) if mla else heads_of(case["heads"], case["to_tp"], rank)
    for value, name in enumerate(("key_cache", "value_cache")):
        for layer, got in enumerate(data["layer_blocks"][name]):
            if mla and value == 1:
                if got is not None:
                    return f"{name} {layer} should not be there", 0, taken
                continue
            wanted = dense(layer, value, heads)
            if mla:
                wanted = wanted[:, 0, :]
            if got.shape != wanted.shape or not (np.asarray(got) == wanted).all():
                return f"{name} {layer} differs", 0, taken
            if got.ctypes.data % 64 != 0:
                return f"{name} {layer} is not aligned", 0, taken
    return "", one.counters.get("received", "ok"), taken


class Lines(logging.Handler):
    """Keeps what was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        for name in ("stagelink.kv", "stagelink.pull"):
            logging.getLogger(name).addHandler(self)
            logging.getLogger(name).setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
