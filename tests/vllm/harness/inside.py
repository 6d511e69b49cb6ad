"""Functions that run in an engine's process; each gets the LLM."""

from __future__ import annotations

from typing import Any


def scheduler(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


def is_idle(llm: Any) -> bool:
    """No request is known, and every block but the null block is free."""
    found = scheduler(llm)
    pool = found.kv_cache_manager.block_pool
    return not found.requests and pool.get_num_free_blocks() == pool.num_gpu_blocks - 1


def describe(llm: Any) -> str:
    found = scheduler(llm)
    pool = found.kv_cache_manager.block_pool
    states = {name: str(request.status) for name, request in found.requests.items()}
    return f"{pool.get_num_free_blocks()} of {pool.num_gpu_blocks} blocks free, {states}"


def statuses(llm: Any) -> list[str]:
    return [request.status.name for request in scheduler(llm).requests.values()]


def waits_for_remote(llm: Any) -> bool:
    return "WAITING_FOR_REMOTE_KVS" in statuses(llm)


def preemptions(llm: Any) -> int:
    return sum(request.num_preemptions for request in scheduler(llm).requests.values())


def worker(llm: Any) -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group().worker


def bytes_moved(llm: Any) -> int:
    """By this rank's reader and writer."""
    return worker(llm).rank.bytes_moved


def tables(llm: Any) -> dict[str, int]:
    """What the two halves still know of; all 0 when nothing is under way."""
    half = scheduler(llm).connector.scheduler
    found = {
        "producer": len(half._producer or ()),
        "consumer": len(half._consumer or ()),
        "inbound": len(worker(llm)._inbound),
        "outbound": len(worker(llm)._outbound),
    }
    return found


def placement(llm: Any) -> str:
    return worker(llm).placement.value


def wipe_cache(llm: Any) -> None:
    """What is in the cache now is lost, without anybody being told."""
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.model_runner
    for cache in runner.kv_caches:
        cache.zero_()


def hold_reads(llm: Any) -> None:
    """Reads wait until let_reads_go: a network that is slow."""
    rank = worker(llm).rank
    rank.held = []
    rank.read_now = rank.read
    rank.read = lambda *order: rank.held.append(order)


def let_reads_go(llm: Any) -> int:
    rank = worker(llm).rank
    held, rank.held = rank.held, []
    rank.read = rank.read_now
    for order in held:
        rank.read(*order)
    return len(held)


def drop_prefix_cache(llm: Any) -> bool:
    return scheduler(llm).reset_prefix_cache()
