"""The encoder cache between processes of several sizes, without vLLM."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stagelink as sl
from stagelink import _core

sys.path.insert(0, str(Path(__file__).parent))

SHAPE = (256, 1024)


def embedding(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(SHAPE, dtype=np.float32)


def extra(**more: Any) -> str:
    return json.dumps({"host": "127.0.0.1", "registry_http_port": 0, "buffer_size": "8MiB", **more})


@pytest.fixture
def registry() -> Iterator[Any]:
    made = _core.EncoderCacheRegistry("127.0.0.1", 0)
    yield made
    made.close()


def wait_for(fetcher: Any, mm_hash: str, timeout: float = 20.0) -> tuple[str, str, Any]:
    deadline = time.monotonic() + timeout
    while fetcher.look(mm_hash)[0] in ("looking", "loading") and time.monotonic() < deadline:
        time.sleep(0.002)
    found: tuple[str, str, Any] = fetcher.look(mm_hash)
    return found


def test_options_are_refused_by_name() -> None:
    with pytest.raises(Exception, match="did you mean `registry_wait`"):
        _core.EncoderCacheProducer(extra(registry_wiat="1s"))
    with pytest.raises(Exception, match="remote_registry_url"):
        _core.EncoderCacheFetcher(extra(), 1)
    with pytest.raises(Exception, match="mooncake_protocol"):
        _core.EncoderCacheProducer(extra(mooncake_protocol="smoke"))


def test_memory_of_another_type_or_order_is_refused_and_bytes_are_not() -> None:
    producer = _core.EncoderCacheProducer(extra())
    data = embedding(2)
    big_endian, other_order = data.astype(">f4"), np.asfortranarray(data)
    for wrong in (data.astype(np.int32), big_endian, other_order, memoryview(data).cast("B")[::2]):
        with pytest.raises(sl.InvalidArgument):
            producer.save("h", SHAPE, "float32", wrong)
    assert producer.save("h", SHAPE, "float32", data.view(np.uint8))
    place = (data.nbytes, SHAPE, "float32", producer.producer_zmq, 0)
    consumer = _core.EncoderCacheConsumer(extra())
    for into in (np.zeros(SHAPE, np.int32), np.zeros_like(big_endian), np.zeros_like(other_order)):
        with pytest.raises(sl.InvalidArgument):
            consumer.load([("h", [place], into)])
        assert not into.any()
    raw = bytearray(data.nbytes)
    assert consumer.load([("h", [place], raw)]) == [None] and bytes(raw) == data.tobytes()
    consumer.close()
    producer.close()


def test_a_producer_is_told_of_by_its_advertised_address_and_listens_at_its_own() -> None:
    for more in ({}, {"registry_host": "0.0.0.0"}):
        one = _core.EncoderCacheProducer(extra(advertise_host="10.9.8.7", **more))
        assert one.producer_zmq.startswith("tcp://10.9.8.7:")
        assert one.registry_url.startswith("http://10.9.8.7:")
        at = ("127.0.0.1", int(one.registry_url.rsplit(":", 1)[1]))
        socket.create_connection(at, timeout=10).close()
        one.close()
    for wildcard in ("0", "::0", "0x0", "::ffff:0.0.0.0"):
        with pytest.raises(sl.InvalidArgument, match="wildcard"):
            _core.EncoderCacheProducer(extra(advertise_host=wildcard))


def test_only_who_holds_the_secret_is_served(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 40)
    secret.chmod(0o600)
    producer = _core.EncoderCacheProducer(extra(secret_file=str(secret)))
    data = embedding(1)
    assert producer.save("h", SHAPE, "float32", data)
    place = (data.nbytes, SHAPE, "float32", producer.producer_zmq, 0)
    out = np.empty(SHAPE, np.float32)
    holder = _core.EncoderCacheConsumer(extra(secret_file=str(secret)))
    assert holder.load([("h", [place], out)]) == [None]
    assert (out == data).all()
    stranger = _core.EncoderCacheConsumer(extra(control_timeout="300ms"))
    assert stranger.load([("h", [place], out)], timeout=2)[0] is not None
    seeker = _core.EncoderCacheFetcher(extra(remote_registry_url=producer.registry_url), 1)
    seeker.want("h")
    state, why, _ = wait_for(seeker, "h")
    assert state == "missing" and "authentication" in why, why
    for end in (holder, stranger, seeker, producer):
        end.close()


def test_the_page_is_true() -> None:
    page = Path(__file__).parents[4] / "docs" / "connectors" / "encoder-cache.md"
    text = _core.encoder_cache_options_text().replace("## ", "### ").strip()
    assert text in page.read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, str(page), "exec"), {})
