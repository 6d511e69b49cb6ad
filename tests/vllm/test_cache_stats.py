"""What the encoder cache tells vLLM's log and its /metrics page."""

from __future__ import annotations

import pickle
import socket
import time
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from stagelink._core import EncoderCacheProducer
from stagelink.vllm.encoder_cache.metadata import ECMooncakeWorkerMetadata
from stagelink.vllm.encoder_cache.scheduler import PUSHES_COUNT_S, CacheScheduler
from stagelink.vllm.encoder_cache.settings import CacheSettings
from stagelink.vllm.encoder_cache.stats import ECMooncakePromMetrics, UsageDelta
from stagelink.vllm.encoder_cache.worker import CacheWorker


def usage(
    ok: int, timed_out: int, loaded_bytes: int, fallbacks: int, pool: int = 0
) -> dict[str, Any]:
    return {
        "loads": {"ok": ok, "timed_out": timed_out, "not_found": timed_out},
        "loaded_bytes": loaded_bytes,
        "fallbacks": fallbacks,
        "pool_used": pool,
        "wanted": 1,
    }


def test_totals_become_what_was_added_and_nothing_is_told_twice() -> None:
    delta = UsageDelta()
    assert delta.stats_of(usage(0, 0, 0, 0)) is None
    first = delta.stats_of(usage(2, 1, 2 << 20, 3, pool=5))
    assert first is not None and not first.is_empty()
    assert first.data == {
        "loads": 2, "failures": 2, "loaded_bytes": 2 << 20, "fallbacks": 3, "failed_saves": 0,
        "pool_used": 5, "wanted": 1,
    }  # fmt: skip
    assert delta.stats_of(usage(2, 1, 2 << 20, 3, pool=9)) is None
    second = delta.stats_of(usage(3, 1, 3 << 20, 3, pool=7), failed_saves=1)
    assert second is not None and second.data["loads"] == 1 and second.data["failures"] == 0
    joined = pickle.loads(pickle.dumps(first)).aggregate(second)
    assert joined.data["loads"] == 3 and joined.data["pool_used"] == 7  # A gauge adds up to none.
    assert joined.reduce() == {
        "EC loads": 3, "EC load failures": 2, "EC MiB loaded": 3.0, "EC encoded here instead": 3,
        "EC failed saves": 1,
    }  # fmt: skip
    joined.reset()
    assert joined.is_empty()


def test_the_metrics_page_has_them_by_name() -> None:
    registry = CollectorRegistry()
    kinds = {kind: partial(kind, registry=registry) for kind in (Gauge, Counter, Histogram)}
    config: Any = SimpleNamespace(ec_transfer_config=None)
    metrics = ECMooncakePromMetrics(
        config,
        kinds,  # type: ignore[arg-type]
        ["model_name", "engine"],
        {0: ["m", "0"]},
    )
    delta = UsageDelta()
    for seen in (usage(2, 1, 4096, 3, pool=5), usage(5, 1, 8192, 4, pool=1)):
        stats = delta.stats_of(seen, failed_saves=2)
        assert stats is not None
        metrics.observe(stats.data, 0)
    labels = {"model_name": "m", "engine": "0"}
    value = registry.get_sample_value
    assert value("vllm:ec_stagelink_loads_total", labels) == 5
    assert value("vllm:ec_stagelink_load_failures_total", labels) == 2
    assert value("vllm:ec_stagelink_loaded_bytes_total", labels) == 8192
    assert value("vllm:ec_stagelink_fallback_total", labels) == 4
    assert value("vllm:ec_stagelink_failed_saves_total", labels) == 2
    assert value("vllm:ec_stagelink_pool_used_bytes", labels) == 1


def settings_of(**more: Any) -> CacheSettings:
    extra = {"host": "127.0.0.1", "registry_http_port": 0, "buffer_size": "64KiB", **more}
    return CacheSettings(extra, None, "cpu", 1, False, is_push=more.get("ec_mode") == "push")


def halves_of(settings: CacheSettings) -> tuple[CacheScheduler, CacheWorker]:
    """Both halves of a producer, without an engine around them."""
    worker = CacheWorker(settings, is_producer=True, is_consumer=False)
    worker._producer = EncoderCacheProducer(settings.producer_json())
    return CacheScheduler(settings, True, False, cast(Any, None)), worker


def tell(scheduler: CacheScheduler, report: ECMooncakeWorkerMetadata | None) -> None:
    """What an engine does with a report."""
    scheduler.update_connector_output(cast(Any, SimpleNamespace(ec_connector_worker_meta=report)))


def test_a_save_that_failed_is_told_by_a_scheduler_that_only_produces() -> None:
    scheduler, worker = halves_of(settings_of())
    assert scheduler.take_stats() is None
    worker.save("fits", torch.zeros(4, 8))
    worker.save("large", torch.zeros(1 << 15))
    tell(scheduler, worker.take_report())
    assert worker.take_report() is None
    stats = scheduler.take_stats()
    assert stats is not None and not stats.is_empty()
    assert stats.reduce()["EC failed saves"] == 1
    assert scheduler.take_stats() is None
    worker.close()


def test_an_engine_goes_on_with_its_steps_while_a_push_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler, worker = halves_of(settings_of(ec_mode="push"))
    producer = worker._producer
    assert producer is not None
    assert worker.take_report() is None and not scheduler.has_pending_push_work()
    with socket.socket() as silent:  # Takes the connection, and never answers.
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        assert producer.push("tx-1", address, "h", (128, (4, 8), "float32"))
        tell(scheduler, worker.take_report())
        assert scheduler.has_pending_push_work()
        # A step that reaches no worker takes nothing back: it counts for a while.
        with monkeypatch.context() as later:
            now = time.monotonic()
            later.setattr(time, "monotonic", lambda: now + PUSHES_COUNT_S)
            assert not scheduler.has_pending_push_work()
        producer.cancel_push("tx-1")
        deadline = time.monotonic() + 20
        while producer.usage["pushes_pending"] and time.monotonic() < deadline:
            time.sleep(0.002)
    tell(scheduler, worker.take_report())
    assert not scheduler.has_pending_push_work()
    assert worker.take_report() is None
    worker.close()
