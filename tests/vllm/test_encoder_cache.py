"""Embeddings of pictures from one real engine to another, with a registry as the third process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Engines
from harness import caches
from harness.caches import CacheSetup, RegistryProcess, picture_job
from harness.engine import EngineProcess, Job
from harness.setups import free_ports


@pytest.fixture(scope="session")
def llava() -> Path:
    folder = Path(os.environ.get("STAGELINK_TINY_MODELS", "build/models-vllm")).resolve()
    if not (folder / "done-llava").exists():
        program = Path(__file__).parent / "harness" / "tiny_models.py"
        subprocess.run(
            [sys.executable, str(program), str(folder), "llava"], check=True, timeout=300
        )
    return folder / "llava"


def use_our_engine() -> None:
    """Runs in the child, before vLLM looks for Mooncake."""
    from stagelink.compat import mooncake

    assert mooncake.enable()


def test_vllms_own_connector_works_over_our_engine(engines: Engines, llava: Path) -> None:
    """Unmodified, over loopback tcp. With ec_buffer_device=cpu it calls nothing of a GPU, so that
    nothing had to be replaced. The V1 runner, the only one without Triton, asks connectors only in
    steps that compute tokens: a request without a picture keeps it busy."""
    ports = free_ports(2)
    ec = {"ec_connector": "ECMooncakeConnector", "ec_connector_module_path": None}

    def setup(role: str, port: int) -> CacheSetup:
        extra = {"mooncake_protocol": "tcp"}
        place = {"ec_ip": "127.0.0.1", "ec_port": port, "ec_connector_extra_config": extra}
        return CacheSetup(llava, role, ec={**ec, **place})

    mono = engines.start("mono", CacheSetup(llava))
    producer = engines.start("producer", setup("ec_producer", ports[0]), use_our_engine)
    consumer = engines.start("consumer", setup("ec_consumer", ports[1]), use_our_engine)
    for engine in (mono, producer, consumer):
        engine.wait_ready()
    leg = picture_job("r1", 1)
    leg.ec_params = {
        "consumer_zmq": f"tcp://127.0.0.1:{ports[1]}",
        "ec_items": [{"transfer_id": "tx-1"}],
    }
    consumer.submit(Job("busy", [*range(60, 90)], 400, sampling={"ignore_eos": True}))
    consumer.submit(leg)
    producer.run(leg)
    ours = consumer.outcome("r1")
    assert ours.tokens == mono.run(picture_job("m1", 1)).tokens
    assert len(ours.tokens) == 8
    moved = producer.call(caches.upstream_engine_writes)
    assert moved > 0, "the embedding came another way"


def test_what_is_pushed_is_what_the_model_uses(engines: Engines, llava: Path) -> None:
    """Without a registry: requests name the consumer, whose request waits for the push."""
    port = free_ports(1)[0]
    extra = {"ec_mode": "push", "zmq_port": port, "reservation_ttl": "1s"}
    mono = engines.start("mono", CacheSetup(llava))
    producer = engines.start("producer", CacheSetup(llava, "ec_producer", extra))
    consumer = engines.start("consumer", CacheSetup(llava, "ec_consumer", extra))
    for engine in (mono, producer, consumer):
        engine.wait_ready()

    def leg(name: str, image: int, transfer: str) -> Job:
        job = picture_job(name, image)
        items = [{"transfer_id": transfer}]
        job.ec_params = {"consumer_zmq": f"tcp://127.0.0.1:{port}", "ec_items": items}
        return job

    consumer.submit(leg("r1", 1, "tx-1"))  # Waits before anybody encodes.
    producer.run(leg("r1", 1, "tx-1"))
    tokens = consumer.outcome("r1").tokens
    assert tokens == mono.run(picture_job("m1", 1)).tokens and len(tokens) == 8
    assert consumer.until(caches.has_no_reservations)
    usage = consumer.call(caches.fetcher_usage)
    assert usage["loads"] == {"ok": 1} and usage["fallbacks"] == 0
    assert producer.call(caches.producer_usage)["pushes"] == {"ok": 1}
    # Encoded first, asked for later.
    producer.run(leg("r2", 2, "tx-2"))
    assert consumer.run(leg("r2", 2, "tx-2")).tokens == mono.run(picture_job("m2", 2)).tokens
    # The control: zeros in its place are other tokens.
    consumer.call(caches.zero_loads)
    producer.run(leg("r3", 3, "tx-3"))
    assert consumer.run(leg("r3", 3, "tx-3")).tokens != mono.run(picture_job("m3", 3)).tokens
    # What is announced and never comes is encoded here, as soon as its producer is missed.
    producer.call(caches.announce_only)
    consumer.submit(leg("r4", 4, "tx-4"))
    producer.run(leg("r4", 4, "tx-4"))
    assert consumer.until(caches.has_reservations)
    producer.kill()
    assert consumer.outcome("r4").tokens == mono.run(picture_job("m4", 4)).tokens
    usage = consumer.call(caches.fetcher_usage)
    assert usage["fallbacks"] == 1 and usage["pushes"]["expired"] == 1


@dataclass
class Trio:
    mono: EngineProcess
    producer: EngineProcess
    consumer: EngineProcess
    registry: RegistryProcess

    def encode(self, name: str, image: int) -> None:
        """The leg of the encoder; the registry knows of the picture when this returns."""
        outcome = self.producer.run(picture_job(name, image))
        assert outcome.tokens == []  # It computes no more than embeddings.
        self.producer.call(caches.flush_producer)


@pytest.fixture(scope="module")
def trio(module_engines: Engines, llava: Path) -> Iterator[Trio]:
    registry = RegistryProcess()
    extra = {"remote_registry_url": registry.url}
    mono = module_engines.start("mono", CacheSetup(llava))
    producer = module_engines.start("producer", CacheSetup(llava, "ec_producer", extra))
    consumer = module_engines.start("consumer", CacheSetup(llava, "ec_consumer", extra))
    for engine in (mono, producer, consumer):
        engine.wait_ready()
    yield Trio(mono, producer, consumer, registry)
    registry.stop()


def test_tokens_are_those_of_one_engine(trio: Trio) -> None:
    trio.encode("e1", 1)
    before = trio.consumer.call(caches.fetcher_usage)
    ours = trio.consumer.run(picture_job("c1", 1))
    after = trio.consumer.call(caches.fetcher_usage)
    assert ours.tokens == trio.mono.run(picture_job("m1", 1)).tokens
    assert after["loads"]["ok"] == before["loads"].get("ok", 0) + 1
    assert after["fallbacks"] == before["fallbacks"]
    # Another picture is another answer: the tokens do depend on it.
    assert ours.tokens != trio.mono.run(picture_job("m2", 2)).tokens
    assert trio.consumer.until(caches.fetcher_is_idle)


def test_a_picture_that_nobody_has_is_encoded_here(trio: Trio) -> None:
    before = trio.consumer.call(caches.fetcher_usage)
    ours = trio.consumer.run(picture_job("c3", 3))
    assert ours.tokens == trio.mono.run(picture_job("m3", 3)).tokens
    assert trio.consumer.call(caches.fetcher_usage)["fallbacks"] == before["fallbacks"] + 1
    assert trio.consumer.until(caches.fetcher_is_idle)


def test_many_requests_of_one_picture_load_it_once(trio: Trio) -> None:
    trio.encode("e4", 4)
    before = trio.consumer.call(caches.fetcher_usage)["loads"]["ok"]
    jobs = [picture_job(f"c4-{turn}", 4, words=20 + turn) for turn in range(4)]
    for job in jobs:
        trio.consumer.submit(job)
    ours = [trio.consumer.outcome(job.request_id).tokens for job in jobs]
    for job, tokens in zip(jobs, ours, strict=True):
        job.request_id = f"m-{job.request_id}"
        assert trio.mono.run(job).tokens == tokens
    assert trio.consumer.call(caches.fetcher_usage)["loads"]["ok"] == before + 1


def test_what_is_evicted_is_gone_on_both_sides(trio: Trio) -> None:
    trio.encode("e5", 5)
    assert trio.producer.call(caches.evict_all) >= 1
    usage = trio.producer.call(caches.producer_usage)
    assert usage["entries"] == 0 and usage["leases"] == 0
    trio.producer.call(caches.flush_producer)
    before = trio.consumer.call(caches.fetcher_usage)["fallbacks"]
    ours = trio.consumer.run(picture_job("c5", 5))
    assert ours.tokens == trio.mono.run(picture_job("m5", 5)).tokens
    assert trio.consumer.call(caches.fetcher_usage)["fallbacks"] == before + 1


def test_loaded_zeros_give_other_tokens(trio: Trio, module_engines: Engines, llava: Path) -> None:
    """The control: what is loaded is what the model uses."""
    trio.encode("e6", 6)
    extra = {"remote_registry_url": trio.registry.url}
    control = module_engines.start("control", CacheSetup(llava, "ec_consumer", extra)).wait_ready()
    control.call(caches.zero_loads)
    zeros = control.run(picture_job("z6", 6))
    assert control.call(caches.fetcher_usage)["loads"] == {"ok": 1}
    assert zeros.tokens != trio.mono.run(picture_job("m6", 6)).tokens
    control.stop()


def test_a_producer_that_dies_costs_no_request(trio: Trio) -> None:
    trio.encode("e7", 7)
    trio.producer.kill()
    before = trio.consumer.call(caches.fetcher_usage)["fallbacks"]
    ours = trio.consumer.run(picture_job("c7", 7))
    assert ours.tokens == trio.mono.run(picture_job("m7", 7)).tokens
    assert trio.consumer.call(caches.fetcher_usage)["fallbacks"] == before + 1
    assert trio.consumer.until(caches.fetcher_is_idle)


def test_a_registry_that_dies_costs_no_request(trio: Trio) -> None:
    trio.registry.kill()
    ours = trio.consumer.run(picture_job("c8", 8))
    assert ours.tokens == trio.mono.run(picture_job("m8", 8)).tokens
