"""Producer ranks, consumer ranks, their scheduler and the registry, each a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from child import Child

EXTRA = {"host": "127.0.0.1", "registry_http_port": 0, "buffer_size": "8MiB"}

# What every process begins with. Releases arrive after the call that sends them.
TOOLS = """
import time
import numpy as np
from stagelink import _core

SHAPE = (256, 1024)

def embedding(seed):
    return np.random.default_rng(seed).random(SHAPE, dtype=np.float32)

def left(end, *names):
    deadline = time.monotonic() + 20
    while True:
        found = {name: end.usage[name] for name in names if end.usage[name]}
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.002)

def outcome(mm_hash):
    deadline = time.monotonic() + 20
    while fetcher.look(mm_hash)[0] in ("looking", "loading") and time.monotonic() < deadline:
        time.sleep(0.002)
    return fetcher.look(mm_hash)

def entries(registry):
    page = registry.metrics_text().splitlines()
    return [line for line in page if line.startswith("stagelink_registry_entries ")]
"""

LOAD = """
tensors = {mm_hash: np.empty(SHAPE, np.float32) for mm_hash in places}
wanted = [(mm_hash, [places[mm_hash]], tensors[mm_hash]) for mm_hash in places]
why = rank.load(wanted, handed_on=True)
(why, [bool((tensors[mm_hash] == embedding(seed)).all()) for mm_hash, seed in seeds.items()])
"""


class Processes:
    def __init__(self) -> None:
        self.registry, self.scheduler = Child(), Child()
        self.producers = [Child(), Child()]
        self.ranks = [Child(), Child()]
        for process in self.all():
            process.run(TOOLS)

    def all(self) -> list[Child]:
        return [self.registry, self.scheduler, *self.producers, *self.ranks]


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    for process in made.all():
        process.close()


@pytest.mark.parametrize(("encoders", "models"), [(1, 1), (2, 2), (1, 2), (2, 1)])
def test_every_rank_has_the_embedding_and_nothing_is_left(
    processes: Processes, encoders: int, models: int
) -> None:
    """Each of `encoders` producers keeps its own items; `models` ranks get every one of them."""
    address = processes.registry.run(
        "registry = _core.EncoderCacheRegistry('127.0.0.1', 0); registry.address"
    )
    extra = json.dumps({**EXTRA, "remote_registry_url": f"http://{address}"})
    producers, ranks = processes.producers[:encoders], processes.ranks[:models]
    seeds = {f"item-{number}": number for number in range(2 * encoders)}
    of_producer = [dict(list(seeds.items())[at::encoders]) for at in range(encoders)]
    for producer, items in zip(producers, of_producer, strict=True):
        saved = producer.run(
            "producer = _core.EncoderCacheProducer(extra)\n"
            "saved = [producer.save(h, SHAPE, 'float32', embedding(s)) for h, s in items.items()]\n"
            "producer.flush(); saved",
            extra=extra,
            items=items,
        )
        assert saved == [True, True]
    for rank in ranks:
        rank.run("rank = _core.EncoderCacheConsumer(extra)", extra=extra)
    processes.scheduler.run(
        "fetcher = _core.EncoderCacheFetcher(extra, models)\nfor h in hashes: fetcher.want(h)",
        extra=extra,
        models=models,
        hashes=list(seeds),
    )
    places: dict[str, Any] = {}
    for mm_hash in seeds:
        state, why, places[mm_hash] = processes.scheduler.run("outcome(h)", h=mm_hash)
        assert state == "ready", why
    processes.scheduler.run("for h in hashes: fetcher.handed_on(h)", hashes=list(seeds))
    for rank in ranks:  # All at once.
        rank.start(LOAD, places=places, seeds=seeds)
    for rank in ranks:
        assert rank.finish() == ([None] * len(seeds), [True] * len(seeds))
    held = "left(fetcher, 'pool_used', 'handed_on', 'wanted', 'in_flight')"
    assert processes.scheduler.run(held) == {}
    assert processes.registry.run("entries(registry)") == [
        f"stagelink_registry_entries {len(seeds)}"
    ]
    # What is evicted is gone on both sides, and at the registry.
    for producer, items in zip(producers, of_producer, strict=True):
        evicted = "evicted = [producer.evict(h) for h in items]; producer.flush(); evicted"
        assert producer.run(evicted, items=items) == [True, True]
        assert producer.run("left(producer, 'entries', 'pool_used', 'leases')") == {}
    for mm_hash in seeds:
        assert processes.scheduler.run("fetcher.want(h); outcome(h)", h=mm_hash)[0] == "missing"
        processes.scheduler.run("fetcher.drop(h)", h=mm_hash)
    for rank in ranks:  # An old place is a miss, and no other bytes.
        why, equal = rank.run(LOAD, places=places, seeds=seeds)
        assert [code for code, _ in why] == ["not_found"] * len(seeds) and not any(equal)
    assert processes.scheduler.run(held) == {}
    assert processes.registry.run("entries(registry)") == ["stagelink_registry_entries 0"]
    for process, name in [
        *((producer, "producer") for producer in producers),
        *((rank, "rank") for rank in ranks),
        (processes.scheduler, "fetcher"),
        (processes.registry, "registry"),
    ]:
        process.run(f"{name}.close()")
