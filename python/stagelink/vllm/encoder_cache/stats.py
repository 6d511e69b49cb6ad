"""What vLLM's log and its /metrics page tell of the encoder cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import Counter, Gauge
from vllm.distributed.ec_transfer.ec_connector.metrics import (
    ECConnectorPromMetrics,
    ECConnectorStats,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig

COUNTERS = {
    "loads": ("vllm:ec_stagelink_loads", "Embeddings that were loaded."),
    "failures": ("vllm:ec_stagelink_load_failures", "Embeddings that could not be loaded."),
    "loaded_bytes": ("vllm:ec_stagelink_loaded_bytes", "Bytes of embeddings that were loaded."),
    "fallbacks": ("vllm:ec_stagelink_fallback", "Embeddings that were encoded here instead."),
    "failed_saves": ("vllm:ec_stagelink_failed_saves", "Embeddings that could not be kept here."),
}
GAUGES = {
    "pool_used": ("vllm:ec_stagelink_pool_used_bytes", "Memory that embeddings take."),
    "wanted": ("vllm:ec_stagelink_wanted", "Embeddings that requests wait for."),
}


class ECMooncakeStats(ECConnectorStats):
    """Counts since the last report, and gauges as they are."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data=data or {})
        if not data:
            self.reset()

    def reset(self) -> None:
        self.data = dict.fromkeys([*COUNTERS, *GAUGES], 0)

    def is_empty(self) -> bool:
        return not any(self.data[name] for name in COUNTERS)

    def aggregate(self, other: ECConnectorStats) -> ECConnectorStats:
        for name in COUNTERS:
            self.data[name] += other.data[name]
        for name in GAUGES:
            self.data[name] = max(self.data[name], other.data[name])
        return self

    def reduce(self) -> dict[str, int | float]:
        return {
            "EC loads": self.data["loads"],
            "EC load failures": self.data["failures"],
            "EC MiB loaded": round(self.data["loaded_bytes"] / 2**20, 3),
            "EC encoded here instead": self.data["fallbacks"],
            "EC failed saves": self.data["failed_saves"],
        }


class UsageDelta:
    """Turns totals into what was added since the last look."""

    def __init__(self) -> None:
        self._before = dict.fromkeys(COUNTERS, 0)

    def stats_of(
        self, usage: dict[str, Any] | None, failed_saves: int = 0
    ) -> ECMooncakeStats | None:
        """None if nothing was counted. A scheduler that only produces has no usage."""
        now = dict.fromkeys(COUNTERS, 0) | {"failed_saves": failed_saves}
        if usage is not None:
            loads = usage["loads"]
            now["loads"] = loads.get("ok", 0)
            now["failures"] = sum(count for reason, count in loads.items() if reason != "ok")
            now["loaded_bytes"] = usage["loaded_bytes"]
            now["fallbacks"] = usage["fallbacks"]
        if now == self._before:
            return None
        stats = ECMooncakeStats()
        for name, value in now.items():
            stats.data[name] = value - self._before[name]
        if usage is not None:
            stats.data |= {name: usage[name] for name in GAUGES}
        self._before = now
        return stats


class ECMooncakePromMetrics(ECConnectorPromMetrics):
    """Thread-safety: none; the thread that records vLLM's metrics."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[Any], type[Any]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: metric_types[Counter](name=metric, documentation=text, labelnames=labelnames)
            for name, (metric, text) in COUNTERS.items()
        }
        self._gauges = {
            name: metric_types[Gauge](name=metric, documentation=text, labelnames=labelnames)
            for name, (metric, text) in GAUGES.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for name, counter in self._counters.items():
            counter.labels(*labels).inc(transfer_stats_data[name])
        for name, gauge in self._gauges.items():
            gauge.labels(*labels).set(transfer_stats_data[name])
