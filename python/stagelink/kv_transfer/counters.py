"""What a KV transfer manager has done."""

from __future__ import annotations

import threading

__all__ = ["KvCounters"]

_HELP = {
    "sent": "Payloads that were to be put, by outcome.",
    "received": "Payloads that were to be got, by outcome.",
    "put_in_place": "Payloads of registered caches, by outcome: offered where they lie, or copied.",
    "requests_sent": "Requests whose cache was to be sent, by outcome.",
    "requests_received": "Requests whose cache was to be received, by outcome.",
}


class KvCounters:
    """Counts payloads and requests by outcome: ``ok``, or the reason why not.

    All methods may be called from any thread.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}
        self._bytes = {"sent": 0, "received": 0}

    def count(self, what: str, outcome: str, nbytes: int = 0) -> None:
        """Add one."""
        with self._lock:
            key = (what, outcome)
            self._counts[key] = self._counts.get(key, 0) + 1
            if nbytes:
                self._bytes[what] += nbytes

    def get(self, what: str, outcome: str) -> int:
        """How many there were."""
        with self._lock:
            return self._counts.get((what, outcome), 0)

    def failures(self) -> int:
        """Payloads that were not put or not got."""
        with self._lock:
            return sum(
                count
                for (what, outcome), count in self._counts.items()
                if what in ("sent", "received") and outcome != "ok"
            )

    def text(self, labels: str = "") -> str:
        """Return Prometheus text; ``labels`` such as ``stage="0"`` go to every sample."""
        with self._lock:
            counts, nbytes = dict(self._counts), dict(self._bytes)
        lines: list[str] = []
        comma = "," if labels else ""
        for what, about in _HELP.items():
            name = f"stagelink_kv_{what if '_' in what else 'payloads_' + what}_total"
            lines += [f"# HELP {name} {about}", f"# TYPE {name} counter"]
            for (kind, outcome), count in sorted(counts.items()):
                if kind == what:
                    lines.append(f'{name}{{{labels}{comma}outcome="{outcome}"}} {count}')
        for what, count in nbytes.items():
            name = f"stagelink_kv_bytes_{what}_total"
            lines += [f"# HELP {name} Bytes of the payloads {what}.", f"# TYPE {name} counter"]
            lines.append(f"{name}{{{labels}}} {count}" if labels else f"{name} {count}")
        return "\n".join(lines) + "\n"
