"""Pickles at every listening socket of a sender, of a producer and of its registry."""

from __future__ import annotations

import json
import re
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from stagelink import _core

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parents[1] / "process"))

import pulls  # noqa: E402
from stranger import Bomb, listening_doors  # noqa: E402

import pickle  # noqa: E402  isort: skip

# How long a socket that says nothing is listened to: ZeroMQ waits for the rest of a greeting.
_SILENCE_S = 0.3


def _refused(text: str) -> int:
    found = re.findall(r"^stagelink_pull_messages_refused_total\{.*\} (\d+)$", text, re.M)
    return sum(map(int, found))


def _throw_over_zmq(port: int, frames: list[list[bytes]]) -> None:
    """As each kind of socket can, and waits until a dealer's have been answered."""
    zmq = pytest.importorskip("zmq")
    context = zmq.Context()
    try:
        for kind in (zmq.REQ, zmq.PUSH, zmq.PUB, zmq.DEALER):
            guest = context.socket(kind)
            guest.connect(f"tcp://127.0.0.1:{port}")
            for message in frames if kind == zmq.DEALER else frames[:1]:
                if kind == zmq.PUSH:  # Finds no socket there that it may speak with.
                    guest.setsockopt(zmq.SNDTIMEO, 100)
                try:
                    guest.send_multipart(message)
                except zmq.Again:
                    continue
                if kind in (zmq.DEALER, zmq.REQ):
                    assert guest.poll(20_000), message
                    guest.recv_multipart()
            guest.close(0)
    finally:
        context.destroy(0)


def test_pickles_make_no_object_wherever_they_are_thrown(tmp_path: Path) -> None:
    marker = tmp_path / "unpickled"
    bomb = pickle.dumps(Bomb(marker))
    body = b"POST /ec/publish HTTP/1.1\r\nContent-Type: application/x-pickle\r\n"
    body += b"Content-Length: %d\r\n\r\n" % len(bomb) + bomb
    options = {"host": "127.0.0.1", "registry_http_port": 0, "buffer_size": "4MiB"}
    data = np.arange(1024, dtype=np.float32)
    out = np.empty_like(data)
    with pulls.sender() as sender, pulls.receiver(sender) as receiver:
        producer = _core.EncoderCacheProducer(json.dumps(options))
        consumer = _core.EncoderCacheConsumer(json.dumps(options))
        assert producer.save("h", data.shape, "float32", data)
        registry = producer.registry_url  # It is started by this.
        doors = list(listening_doors())
        ports = {door.address[1] for door in doors if door.family == socket.AF_INET}
        assert {sender.zmq_port, sender.rpc_port, int(registry.rsplit(":", 1)[1])} <= ports
        assert socket.SOCK_SEQPACKET in {door.kind for door in doors}
        for door in doors:
            for raw in (bomb, body):
                door.throw(raw, _SILENCE_S)
        before = _refused(sender.metrics_text())
        cleanup = b"cleanup_key" + b"\x81\xaarequest_id\xa5r@0_1"  # Of a peer of 0.30.
        sender.put(*pulls.EDGE, "r", b"safe")
        _throw_over_zmq(sender.zmq_port, [[b"", bomb], [bomb], [b"", cleanup], [b"", b""]])
        assert _refused(sender.metrics_text()) >= before + 5
        producer_port = int(producer.producer_zmq.rsplit(":", 1)[1])
        _throw_over_zmq(producer_port, [[b"", bomb], [bomb], [b"", b'{"op": "pickle"}']])
        # All of them go on, and nothing was taken.
        assert pulls.raw(receiver.get(*pulls.EDGE, "r")) == b"safe"
        place = (data.nbytes, data.shape, "float32", producer.producer_zmq, 0)
        assert consumer.load([("h", [place], out)]) == [None]
        assert (out == data).all()
        consumer.close()
        producer.close()
    assert not marker.exists()
