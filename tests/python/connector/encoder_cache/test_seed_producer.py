"""A producer of the seed: its registry knows one page, it gives no leases and writes by address."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from child import Child

from stagelink import _core

SHAPE = (256, 1024)

# Registry, ZeroMQ REP and TransferEngine, as the seed has them.
PRODUCER = """
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import numpy as np
import zmq
from stagelink.compat.mooncake import TransferEngine

engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
kept, published, asked = {}, {}, []
rep = zmq.Context.instance().socket(zmq.REP)
port = rep.bind_to_random_port("tcp://127.0.0.1")

def save(mm_hash, seed, shape):
    data = np.random.default_rng(seed).random(shape, dtype=np.float32)
    assert engine.register_memory(data.ctypes.data, data.nbytes) == 0
    kept[mm_hash] = data
    published[mm_hash] = {"nbytes": data.nbytes, "shape": list(shape), "dtype": "float32",
                          "producer_zmq": f"tcp://127.0.0.1:{port}"}

class Page(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def say(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        found = published.get(self.path.removeprefix("/ec/info/"))
        self.say(*((200, found) if found else (404, {"detail": "unknown mm_hash"})))
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.say(404, {"detail": "Not Found"})
    def log_message(self, *ignored):
        pass

http = ThreadingHTTPServer(("127.0.0.1", 0), Page)
threading.Thread(target=http.serve_forever, daemon=True).start()

def answer(message):
    if message.get("op") != "pull":
        return {"ok": False, "err": "unknown op"}
    asked.append(message)
    data = kept.get(message["mm_hash"])
    if data is None:
        return {"ok": False, "err": "unknown mm_hash"}
    if data.nbytes != message["nbytes"]:
        return {"ok": False, "err": "size mismatch"}
    code = engine.batch_transfer_sync_write(
        message["dst_session"], [data.ctypes.data], [message["dst_ptr"]], [data.nbytes])
    return {"ok": code == 0, "mooncake_ret": code}

def serve():
    while True:
        rep.send_json(answer(json.loads(rep.recv())))

threading.Thread(target=serve, daemon=True).start()
http.server_address[1]
"""


def embedding(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


@pytest.fixture
def producer() -> Iterator[Child]:
    child = Child()
    yield child
    child.close()


def test_our_consumer_gets_from_it_by_value_and_keeps_nothing(producer: Child) -> None:
    port = producer.run(PRODUCER)
    for number in range(20):
        producer.run("save(f'item-{n}', n, shape)", n=number, shape=SHAPE)
    producer.run("published['gone'] = published['item-1']")
    producer.run("published['other'] = {**published['item-1'], 'nbytes': 4096, 'shape': [1, 1024]}")
    producer.run("kept['other'] = kept['item-1']")
    extra = {"host": "127.0.0.1", "registry_http_port": 0, "buffer_size": "32MiB"}
    extra["remote_registry_url"] = f"http://127.0.0.1:{port}"
    fetcher = _core.EncoderCacheFetcher(json.dumps(extra), 1)
    rank = _core.EncoderCacheConsumer(json.dumps(extra))
    hashes = [f"item-{number}" for number in range(20)]

    def outcome(mm_hash: str) -> tuple[str, str, Any]:
        deadline = time.monotonic() + 30
        while fetcher.look(mm_hash)[0] in ("looking", "loading") and time.monotonic() < deadline:
            time.sleep(0.002)
        found: tuple[str, str, Any] = fetcher.look(mm_hash)
        return found

    for mm_hash in [*hashes, "gone", "other", "unpublished"]:
        fetcher.want(mm_hash)
    for number, mm_hash in enumerate(hashes):
        state, why, place = outcome(mm_hash)
        assert state == "ready", why
        fetcher.handed_on(mm_hash)
        tensor = np.empty(SHAPE, np.float32)
        assert rank.load([(mm_hash, [place], tensor)], handed_on=True) == [None]
        assert (tensor == embedding(number)).all()
    for mm_hash, why in [("gone", "not_found"), ("other", "incompatible"), ("unpublished", "not_")]:
        state, text, _ = outcome(mm_hash)
        assert state == "missing" and why in text, text
        fetcher.drop(mm_hash)
    # What it was told to write to is gone: a late or second write of it is refused.
    late = producer.run(
        "last = [m for m in asked if m['mm_hash'] == 'item-3'][0]\n"
        "[answer(last)['ok'], len({m['dst_ptr'] for m in asked[:2]})]"
    )
    assert late == [False, 2]
    deadline = time.monotonic() + 20
    while fetcher.usage["pool_used"] and time.monotonic() < deadline:
        time.sleep(0.002)
    assert fetcher.usage["pool_used"] == 0 and fetcher.usage["handed_on"] == 0
    # One that cannot be reached costs what an answer of a peer may take.
    dead = "published['dead'] = {**published['item-1'], 'producer_zmq': 'tcp://127.0.0.1:1'}"
    producer.run(dead)
    fetcher.want("dead")
    state, text, _ = outcome("dead")
    assert state == "missing" and "unreachable" in text, text
    fetcher.close()
    rank.close()
