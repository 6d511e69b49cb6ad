"""The encoder cache between processes of several sizes, without vLLM."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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


def left(end: Any, *names: str, timeout: float = 20.0) -> dict[str, int]:
    """What of its usage is not zero in time: releases arrive after the call that sends them."""
    deadline = time.monotonic() + timeout
    while True:
        usage = end.usage
        found = {name: usage[name] for name in names if usage[name]}
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.002)


@pytest.mark.parametrize(("encoders", "models"), [(1, 1), (2, 2), (1, 2), (2, 1)])
def test_every_rank_has_the_embedding_and_nothing_is_left(
    registry: Any, encoders: int, models: int
) -> None:
    """Each of `encoders` producers keeps its own items; `models` ranks get every one of them."""
    url = f"http://{registry.address}"
    producers = [
        _core.EncoderCacheProducer(extra(remote_registry_url=url)) for _ in range(encoders)
    ]
    fetcher = _core.EncoderCacheFetcher(extra(remote_registry_url=url), models)
    ranks = [_core.EncoderCacheConsumer(extra()) for _ in range(models)]
    hashes = [f"item-{number}" for number in range(2 * encoders)]
    for number, mm_hash in enumerate(hashes):
        producer = producers[number % encoders]
        assert producer.save(mm_hash, SHAPE, "float32", embedding(number))
        producer.flush()
    for mm_hash in hashes:
        fetcher.want(mm_hash)
    places = {}
    for mm_hash in hashes:
        state, why, places[mm_hash] = wait_for(fetcher, mm_hash)
        assert state == "ready", why
        fetcher.handed_on(mm_hash)
    for rank in ranks:
        tensors = [np.empty(SHAPE, np.float32) for _ in hashes]
        wanted = [
            (mm_hash, [places[mm_hash]], tensor)
            for mm_hash, tensor in zip(hashes, tensors, strict=True)
        ]
        assert rank.load(wanted, handed_on=True) == [None] * len(hashes)
        for number, tensor in enumerate(tensors):
            assert (tensor == embedding(number)).all()
    assert left(fetcher, "pool_used", "handed_on", "wanted", "in_flight") == {}
    # What is evicted is gone on both sides.
    for number, mm_hash in enumerate(hashes):
        assert producers[number % encoders].evict(mm_hash)
        fetcher.want(mm_hash)
    for mm_hash in hashes:
        assert wait_for(fetcher, mm_hash)[0] == "missing"
        fetcher.drop(mm_hash)
    for producer in producers:
        assert left(producer, "entries", "pool_used", "leases") == {}
    for end in (*producers, fetcher, *ranks):
        end.close()


def test_options_are_refused_by_name() -> None:
    with pytest.raises(Exception, match="did you mean `registry_wait`"):
        _core.EncoderCacheProducer(extra(registry_wiat="1s"))
    with pytest.raises(Exception, match="remote_registry_url"):
        _core.EncoderCacheFetcher(extra(), 1)
    with pytest.raises(Exception, match="mooncake_protocol"):
        _core.EncoderCacheProducer(extra(mooncake_protocol="smoke"))


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
