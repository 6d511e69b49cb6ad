"""Engines with an encoder cache, and functions that run in them; each of these gets the LLM."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .engine import Job
from .inside import scheduler
from .tiny_models import IMAGE

REGISTRY = """
import sys
from stagelink._core import EncoderCacheRegistry
registry = EncoderCacheRegistry("127.0.0.1", int(sys.argv[1]))
print(registry.address, flush=True)
sys.stdin.read()
"""


class RegistryProcess:
    """A registry that is nobody's: the third process."""

    def __init__(self, port: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", REGISTRY, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        self.url = f"http://{self.address}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.communicate(timeout=20)


@dataclass
class CacheSetup:
    """One engine of the tiny LLaVA; without a role it encodes and answers by itself."""

    model: Path
    role: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    ec: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "model": str(self.model),
            "enforce_eager": True,
            "max_model_len": 512,
            "max_num_seqs": 8,
            "block_size": 32,
            "kv_cache_memory_bytes": 32 << 20,
            "dtype": "bfloat16",
            "seed": 0,
            "limit_mm_per_prompt": {"image": 2},
            "enable_prefix_caching": False,
            **self.engine,
        }
        if self.role is not None:
            from vllm.config import ECTransferConfig

            settings = {
                "ec_connector": "StagelinkECConnector",
                "ec_connector_module_path": "stagelink.vllm",
                "ec_role": self.role,
                "ec_buffer_device": "cpu",
                "ec_buffer_size": float(16 << 20),
                "ec_connector_extra_config": {"host": "127.0.0.1", **self.extra},
                **self.ec,
            }
            found["ec_transfer_config"] = ECTransferConfig(**settings)
        return found


def picture_job(name: str, image: int, words: int = 40, count: int = 8) -> Job:
    """A question about one picture."""
    return Job(name, [*range(60, 60 + 8), IMAGE, *range(70, 70 + words)], count, image=image)


def fetcher_usage(llm: Any) -> dict[str, Any]:
    found: dict[str, Any] = scheduler(llm).ec_connector.scheduler._fetcher.usage
    return found


def fetcher_is_idle(llm: Any) -> bool:
    """Nothing is wanted, nothing held for workers, no byte of the pool taken."""
    usage = fetcher_usage(llm)
    return not any(usage[name] for name in ("wanted", "handed_on", "pool_used", "in_flight"))


def cache_worker(llm: Any) -> Any:
    from vllm.distributed.ec_transfer import get_ec_transfer

    return get_ec_transfer().worker


def producer_usage(llm: Any) -> dict[str, Any]:
    found: dict[str, Any] = cache_worker(llm)._producer.usage
    return found


def has_reservations(llm: Any) -> bool:
    return bool(fetcher_usage(llm)["reservations"])


def has_no_reservations(llm: Any) -> bool:
    return not has_reservations(llm)


def announce_only(llm: Any) -> None:
    """What is encoded from now on is not saved: its consumers wait for it."""
    cache_worker(llm).save = lambda mm_hash, tensor: None


def flush_producer(llm: Any) -> None:
    cache_worker(llm)._producer.flush(10)


def evict_all(llm: Any) -> int:
    """What the producer has is gone, here and from the registry; how many there were."""
    producer = cache_worker(llm)._producer
    hashes = [mm_hash for mm_hash in encoder_cache(llm) if producer.evict(mm_hash)]
    encoder_cache(llm).clear()
    return len(hashes)


def encoder_cache(llm: Any) -> dict[str, Any]:
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.model_runner
    found: dict[str, Any] = runner.encoder_cache
    return found


def reset_encoder_cache(llm: Any) -> None:
    llm.llm_engine.engine_core.engine_core.reset_encoder_cache()
    scheduler(llm).ec_connector.scheduler._resident.clear()


def zero_loads(llm: Any) -> None:
    """What is loaded from now on is zeros: the control of a comparison."""
    worker = cache_worker(llm)
    load = worker.load

    def load_zeros(orders: Any, encoder_cache: Any) -> None:
        load(orders, encoder_cache)
        for spec in orders.loads:
            encoder_cache[spec.mm_hash].zero_()

    worker.load = load_zeros


def upstream_engine_writes(llm: Any) -> int:
    """Bytes that vLLM's own connector has written through stagelink's engine."""
    from vllm.distributed.ec_transfer import get_ec_transfer

    engine = get_ec_transfer()._worker._transfer._engine._engine.engine
    for line in engine.metrics_text().splitlines():
        if line.startswith("stagelink_written_bytes_total{"):
            return int(float(line.rsplit(" ", 1)[1]))
    return 0
