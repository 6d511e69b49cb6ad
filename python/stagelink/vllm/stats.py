"""What vLLM's log and its /metrics page tell of the transfers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig

SERIES = ("transfer_duration", "bytes_transferred", "num_descriptors")
MAX_SAMPLES = 10_000  # Of one series between two reports.


@dataclass
class MoRIIOStats(KVConnectorStats):
    """Durations, bytes and ranges of transfers that succeeded; failures by reason."""

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data: dict[str, Any] = {name: [] for name in SERIES}
        self.data["failures"] = {}

    def succeeded(self, seconds: float, nbytes: int, ranges: int) -> None:
        for name, value in zip(SERIES, (seconds, nbytes, ranges), strict=True):
            if len(self.data[name]) < MAX_SAMPLES:
                self.data[name].append(value)

    def failed(self, reason: str) -> None:
        failures = self.data["failures"]
        failures[reason] = failures.get(reason, 0) + 1

    def take(self) -> MoRIIOStats | None:
        """What was counted since the last call; None if nothing was."""
        if self.is_empty():
            return None
        taken = MoRIIOStats(self.data)
        self.reset()
        return taken

    def is_empty(self) -> bool:
        return not self.data["failures"] and not self.data["transfer_duration"]

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name in SERIES:
            self.data[name].extend(other.data[name])
        failures = self.data["failures"]
        for reason, count in other.data["failures"].items():
            failures[reason] = failures.get(reason, 0) + count
        return self

    def reduce(self) -> dict[str, int | float]:
        seconds = sorted(self.data["transfer_duration"])
        count = len(seconds)
        mebibytes = sum(self.data["bytes_transferred"]) / 2**20
        total = sum(seconds)
        reduced: dict[str, int | float] = {
            "Num successful transfers": count,
            "Avg xfer time (ms)": round(total / count * 1e3, 3) if count else 0,
            "P90 xfer time (ms)": round(seconds[(count * 9) // 10] * 1e3, 3) if count else 0,
            "Avg MB per transfer": round(mebibytes / count, 3) if count else 0,
            "Throughput (MB/s)": round(mebibytes / total, 3) if total else 0,
            "Avg number of descriptors": round(sum(self.data["num_descriptors"]) / count, 1)
            if count
            else 0,
            "Num failed transfers": sum(self.data["failures"].values()),
        }
        for reason, failures in sorted(self.data["failures"].items()):
            reduced[f"Failed: {reason}"] = failures
        return reduced


HISTOGRAMS = {
    "transfer_duration": (
        "vllm:moriio_xfer_time_seconds",
        "How long transfers of KV caches took.",
        [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0],
    ),
    "bytes_transferred": (
        "vllm:moriio_bytes_transferred",
        "Bytes of one transfer.",
        [2 ** (11 + 2 * step) for step in range(12)],
    ),
    "num_descriptors": (
        "vllm:moriio_num_descriptors",
        "Ranges of one transfer, after merging.",
        [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000],
    ),
}


class MoRIIOPromMetrics(KVConnectorPromMetrics):
    """Thread-safety: none; the thread that records vLLM's metrics."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[Any], type[Any]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._histograms = {
            name: metric_types[Histogram](
                name=metric, documentation=text, buckets=buckets, labelnames=labelnames
            )
            for name, (metric, text, buckets) in HISTOGRAMS.items()
        }
        self._failures = metric_types[Counter](
            name="vllm:moriio_failures_total",
            documentation="Transfers that failed, by what went wrong.",
            labelnames=[*labelnames, "reason"],
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for name, histogram in self._histograms.items():
            for value in transfer_stats_data[name]:
                histogram.labels(*labels).observe(value)
        for reason, count in transfer_stats_data["failures"].items():
            self._failures.labels(*labels, reason).inc(count)
