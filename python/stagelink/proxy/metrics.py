"""What the proxy counts, in a registry of its own."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from .servers.table import Role, ServerPool

_PREFIX = "stagelink_proxy"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class _PoolCollector(Collector):
    """Gauges that are read from the table of servers when somebody asks."""

    def __init__(self, pool: ServerPool) -> None:
        self._pool = pool

    def collect(self) -> list[GaugeMetricFamily]:
        servers = GaugeMetricFamily(
            f"{_PREFIX}_servers", "Servers in the table", labels=("role", "state")
        )
        in_flight = GaugeMetricFamily(
            f"{_PREFIX}_server_requests_in_flight", "Legs that run now", labels=("role", "server")
        )
        now = self._pool.now()
        counts = {(role.value, state): 0 for role in Role for state in ("up", "down", "trial")}
        for server in self._pool:
            counts[(server.role.value, server.state(now))] += 1
            in_flight.add_metric((server.role.value, server.url), server.in_flight)
        for labels, count in counts.items():
            servers.add_metric(labels, count)
        return [servers, in_flight]


class Metrics:
    """Counters, gauges and histograms of one proxy."""

    def __init__(self, pool: ServerPool) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_PoolCollector(pool))
        self.requests = Counter(
            f"{_PREFIX}_requests", "Requests of clients by how they ended",
            ("path", "outcome"), registry=self.registry,
        )  # fmt: skip
        self.in_flight = Gauge(
            f"{_PREFIX}_requests_in_flight", "Requests of clients that run now",
            registry=self.registry,
        )  # fmt: skip
        self.leg_failures = Counter(
            f"{_PREFIX}_leg_failures", "Legs that failed, by what happened",
            ("role", "reason"), registry=self.registry,
        )  # fmt: skip
        self.retries = Counter(
            f"{_PREFIX}_retries", "Attempts after the first", ("role",), registry=self.registry
        )
        self.heartbeats = Counter(
            f"{_PREFIX}_heartbeats", "Messages on the heartbeat port",
            ("outcome",), registry=self.registry,
        )  # fmt: skip
        self.without_blocks = Counter(
            f"{_PREFIX}_prefills_without_blocks",
            "Read mode: prefill answered, but named no blocks; decode computed the prompt itself",
            registry=self.registry,
        )
        self.prefill_seconds = Histogram(
            f"{_PREFIX}_prefill_seconds", "Time of a prefill leg",
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.first_byte_seconds = Histogram(
            f"{_PREFIX}_first_byte_seconds",
            "From a request's arrival to the first byte of its answer",
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.request_seconds = Histogram(
            f"{_PREFIX}_request_seconds", "From a request's arrival to the end of its answer",
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip

    def text(self) -> bytes:
        return generate_latest(self.registry)
