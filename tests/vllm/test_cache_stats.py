"""What the encoder cache tells vLLM's log and its /metrics page."""

from __future__ import annotations

import pickle
from functools import partial
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from stagelink.vllm.encoder_cache.stats import ECMooncakePromMetrics, UsageDelta


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
        "loads": 2, "failures": 2, "loaded_bytes": 2 << 20, "fallbacks": 3, "pool_used": 5,
        "wanted": 1,
    }  # fmt: skip
    assert delta.stats_of(usage(2, 1, 2 << 20, 3, pool=9)) is None
    second = delta.stats_of(usage(3, 1, 3 << 20, 3, pool=7))
    assert second is not None and second.data["loads"] == 1 and second.data["failures"] == 0
    joined = pickle.loads(pickle.dumps(first)).aggregate(second)
    assert joined.data["loads"] == 3 and joined.data["pool_used"] == 7  # A gauge adds up to none.
    assert joined.reduce() == {
        "EC loads": 3, "EC load failures": 2, "EC MiB loaded": 3.0, "EC encoded here instead": 3,
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
        stats = delta.stats_of(seen)
        assert stats is not None
        metrics.observe(stats.data, 0)
    labels = {"model_name": "m", "engine": "0"}
    value = registry.get_sample_value
    assert value("vllm:ec_stagelink_loads_total", labels) == 5
    assert value("vllm:ec_stagelink_load_failures_total", labels) == 2
    assert value("vllm:ec_stagelink_loaded_bytes_total", labels) == 8192
    assert value("vllm:ec_stagelink_fallback_total", labels) == 4
    assert value("vllm:ec_stagelink_pool_used_bytes", labels) == 1
