"""The two halves against stand-ins of vLLM's objects: what its contract asks of a connector."""

from __future__ import annotations

import inspect
import pickle
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA, supports_hma
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import RequestStatus

from stagelink.vllm import MoRIIOConnector, worker
from stagelink.vllm.groups import Pairs, Span
from stagelink.vllm.orders import (
    FinishOrder,
    OfferOrder,
    Orders,
    Peer,
    ReadOrder,
    ReceiveOrder,
    WriteOrder,
)
from stagelink.vllm.rank import Ended
from stagelink.vllm.scheduler import ConnectorScheduler, StepOrders
from stagelink.vllm.stats import MoRIIOStats

PEER = Peer("127.0.0.1", 1, 2)


def spec(window: int | None = None) -> Any:
    sizes = {"block_size": 32, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}
    return (
        SlidingWindowSpec(sliding_window=window, **sizes) if window else FullAttentionSpec(**sizes)
    )


def cache_config(*specs: Any) -> KVCacheConfig:
    groups = [KVCacheGroupSpec([f"layer.{i}"], one) for i, one in enumerate(specs)]
    return KVCacheConfig(num_blocks=64, kv_cache_tensors=[], kv_cache_groups=groups)


def vllm_config(role: str = "kv_both", **extra: Any) -> Any:
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_connector_extra_config={"host_ip": "127.0.0.1", **extra},
            kv_role=role,
            is_kv_producer=role != "kv_consumer",
            is_kv_consumer=role != "kv_producer",
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            data_parallel_rank=0,
            data_parallel_size=1,
            data_parallel_size_local=1,
            decode_context_parallel_size=1,
        ),
        model_config=SimpleNamespace(use_mla=False, get_total_num_kv_heads=lambda: 2),
    )


class StandInRank:
    """Keeps what it is told; ends transfers when the test says so."""

    def __init__(self, *arguments: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.ended: list[Ended] = []
        self.layers = ["layer.0", "layer.1"]
        self.stopped = True

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]

    def start_write(self, order: Any) -> None:
        self.calls.append(("start_write", order.transfer_id))

    def abort_write(self, transfer_id: str, why: str, timeout: float = 0.0) -> bool:
        self.calls.append(("abort_write", transfer_id, timeout))
        return self.stopped

    def events(self, wait: float) -> list[Ended]:
        ended, self.ended = self.ended, []
        return ended


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(worker, "Rank", StandInRank)
    monkeypatch.setattr(worker, "get_tensor_model_parallel_rank", lambda: 0)

    def build(*specs: Any, **extra: Any) -> worker.ConnectorWorker:
        return worker.ConnectorWorker(vllm_config(**extra), cache_config(*(specs or (spec(),))))

    return build


def step(**orders: Any) -> StepOrders:
    return StepOrders(Orders(**orders), idle=True)


def read_order(name: str = "a", **changes: Any) -> ReadOrder:
    fields = {
        "request_id": name,
        "transfer_id": f"tx-{name}",
        "peer": PEER,
        "spans": (Span(1, (5, 6)),),
        "pairs": (Pairs((5, 6), (8, 9)),),
    }
    return ReadOrder(**(fields | changes))


def ended(name: str, received: bool, reason: str | None = None) -> Ended:
    return Ended(f"tx-{name}", received, reason, 4096, 2)


# The worker half.


def test_a_load_is_reported_when_it_has_ended(make: Any) -> None:
    half = make()
    half.start_load(step(reads=[read_order()]))
    assert half.take_results() == (set(), set(), set())
    half.rank.ended = [ended("a", True)]
    assert half.take_results() == (set(), {"a"}, set())
    assert half.take_invalid_blocks() == set()
    assert half.take_stats().data["bytes_transferred"] == [4096]
    assert half.take_results() == (set(), set(), set())


def test_a_failed_load_of_one_group_is_told_by_its_blocks(make: Any) -> None:
    half = make()
    half.start_load(step(reads=[read_order()]))
    half.rank.ended = [ended("a", True, "peer_lost")]
    assert half.take_results() == (set(), {"a"}, set())
    assert half.take_invalid_blocks() == {5, 6}
    assert half.take_invalid_blocks() == set()
    assert half.take_stats().data["failures"] == {"peer_lost": 1}


def test_a_failed_load_of_several_groups_is_told_by_request(make: Any) -> None:
    half = make(spec(), spec(window=64))
    half.start_load(step(reads=[read_order()]))
    half.rank.ended = [ended("a", True, "peer_lost")]
    assert half.take_results() == (set(), {"a"}, {"a"})
    assert half.take_invalid_blocks() == set()


def test_an_aborted_load_is_stopped_and_still_reported_once(make: Any) -> None:
    half = make()
    half.start_load(step(reads=[read_order()]))
    half.start_load(step(aborts=["a"]))
    assert half.rank.named("cancel_load") == [("tx-a",)]
    assert half.take_results()[1] == set()
    half.rank.ended = [ended("a", True, "cancelled")]
    assert half.take_results()[1] == {"a"}
    half.start_load(step(aborts=["a"]))
    assert len(half.rank.named("cancel_load")) == 1


def test_an_abort_of_an_unknown_request_changes_nothing(make: Any) -> None:
    half = make()
    half.start_load(step(aborts=["never"]))
    assert not half.rank.calls


def test_a_synchronous_load_has_ended_or_is_told_in_the_same_step(make: Any) -> None:
    half = make(read_mode="true", async_load="false")
    half.start_load(step(reads=[read_order(synchronous=True)]))
    assert [call[0] for call in half.rank.calls] == ["read", "wait_received"]
    half.rank.ended = [ended("a", True, "timed_out")]
    half.take_results()
    assert half.take_invalid_blocks() == {5, 6}


def test_a_read_whose_lease_has_run_out_is_refused(make: Any) -> None:
    half = make()
    half.start_load(step(reads=[read_order(until=1.0)]))
    assert [call[0] for call in half.rank.calls] == ["refuse"]


def test_blocks_that_the_peer_lacks_are_a_failed_load(make: Any) -> None:
    half = make()
    half.start_load(step(reads=[read_order(pairs=None)]))
    assert [call[0] for call in half.rank.calls] == ["refuse"]


def test_offered_blocks_are_free_when_the_readers_have_gone(make: Any) -> None:
    half = make()
    half.start_load(step(offers=[OfferOrder("a", "tx-a", 60.0)]))
    assert half.take_results()[0] == set()
    half.rank.ended = [ended("a", False)]
    assert half.take_results()[0] == {"a"}


def test_written_blocks_are_free_when_the_request_has_finished_and_the_writes_have(
    make: Any,
) -> None:
    half = make()
    order = WriteOrder("a", "tx-a", PEER, (Span(0, (1,)),), last=True)
    half.step_computed(step(writes=[order]))
    half.rank.ended = [ended("a", False)]
    assert half.take_results()[0] == set()
    half.step_computed(step(finishes=[FinishOrder("a", "tx-a", PEER)]))
    assert half.take_results()[0] == {"a"}


def test_layers_whose_attention_calls_no_hook_are_written_too(make: Any) -> None:
    half = make()
    order = WriteOrder("a", "tx-a", PEER, (Span(0, (1,)),), last=True)
    half.layer_computed(step(writes=[order]), "layer.1")
    half.step_computed(step(writes=[order]))
    assert [call[1] for call in half.rank.named("write")] == ["layer.1", "layer.0"]
    assert len(half.rank.named("start_write")) == 1


def test_a_transfer_that_has_ended_takes_no_more_chunks(make: Any) -> None:
    half = make()
    first = WriteOrder("a", "tx-a", PEER, (Span(0, (1,)),), last=False)
    half.step_computed(step(writes=[first]))
    half.rank.ended = [ended("a", False, "cancelled")]
    assert half.take_results()[0] == set()
    written = len(half.rank.named("write"))
    half.step_computed(step(writes=[WriteOrder("a", "tx-a", PEER, (Span(1, (2,)),), last=True)]))
    assert len(half.rank.named("write")) == written
    half.step_computed(step(finishes=[FinishOrder("a", "tx-a", PEER)]))
    assert half.take_results()[0] == {"a"}


def test_an_abort_before_anything_was_written_frees_the_blocks_at_once(make: Any) -> None:
    half = make()
    half.step_computed(step(finishes=[FinishOrder("a", "tx-a", PEER, aborted=True)]))
    assert half.take_results()[0] == {"a"}


def test_an_abort_waits_for_writes_that_are_under_way(make: Any) -> None:
    half = make()
    order = WriteOrder("a", "tx-a", PEER, (Span(0, (1,)),), last=True)
    half.step_computed(step(writes=[order]))
    half.rank.stopped = False
    half.step_computed(step(finishes=[FinishOrder("a", "tx-a", PEER, aborted=True)]))
    assert half.take_results()[0] == set()
    half.rank.ended = [ended("a", False, "cancelled")]
    assert half.take_results()[0] == {"a"}


def test_writes_of_preempted_blocks_are_fenced_before_the_forward(make: Any) -> None:
    half = make()
    order = WriteOrder("a", "tx-a", PEER, (Span(0, (1,)),), last=False)
    half.step_computed(step(writes=[order]))
    half.fence_preempted(Orders(preempted=["a", "unknown"]))
    assert half.rank.named("abort_write") == [("tx-a", half.settings.transfer_timeout)]


def test_a_receiver_tells_the_peer_where_its_blocks_go(make: Any) -> None:
    half = make()
    order = ReceiveOrder("a", "tx-a", PEER, (Span(0, (5,)),), 0)
    half.start_load(step(receives=[order]))
    assert half.rank.named("receive") == [(order, half.settings.recv_abort_timeout)]


# The scheduler half.


class Blocks:
    def __init__(self, *groups: list[int]) -> None:
        self.groups = groups

    def get_block_ids(self) -> tuple[list[int], ...]:
        return self.groups


def request(name: str = "a", prompt: int = 64, **params: Any) -> Any:
    return SimpleNamespace(
        request_id=name,
        num_prompt_tokens=prompt,
        num_computed_tokens=prompt,
        kv_transfer_params=params or None,
        status=RequestStatus.FINISHED_LENGTH_CAPPED,
    )


def leg(**changes: Any) -> dict[str, Any]:
    return {
        "do_remote_prefill": True,
        "transfer_id": "tx-a",
        "remote_host": "127.0.0.1",
        "remote_handshake_port": 1,
        "remote_notify_port": 2,
        "remote_block_ids": [[7, 8]],
    } | changes


def output(**changes: Any) -> Any:
    return SimpleNamespace(
        **{
            "preempted_req_ids": set(),
            "scheduled_new_reqs": [],
            "scheduled_cached_reqs": SimpleNamespace(req_ids=[], num_computed_tokens=[]),
            "num_scheduled_tokens": {},
            "kv_connector_block_state": None,
            "total_num_scheduled_tokens": 0,
        }
        | changes
    )


def scheduler(*specs: Any, **extra: Any) -> ConnectorScheduler:
    return ConnectorScheduler(
        vllm_config(**({"read_mode": "true"} | extra)), cache_config(*(specs or (spec(),)))
    )


def test_a_load_is_asynchronous_and_none_is_not() -> None:
    half = scheduler()
    plain, wanted = request("plain"), request(**leg())
    for one in (plain, wanted):
        half.on_new_request(one)
    assert half.get_num_new_matched_tokens(plain, 0) == (0, False)
    assert half.get_num_new_matched_tokens(wanted, 0) == (64, True)
    half.update_state_after_alloc(wanted, Blocks([1, 2]), 64)  # type: ignore[arg-type]
    orders = half.build_connector_meta(output()).orders
    assert orders.reads[0].pairs == (Pairs((1, 2), (7, 8)),)
    assert not half.build_connector_meta(output()).orders


def test_a_synchronous_load_leaves_a_token_to_compute() -> None:
    half = scheduler(async_load="false")
    wanted = request(**leg())
    half.on_new_request(wanted)
    assert half.get_num_new_matched_tokens(wanted, 0) == (63, False)


def test_params_that_are_wrong_are_counted_and_the_prompt_is_computed() -> None:
    half = scheduler()
    wanted = request(**leg(remote_tp_size="eight"))
    half.on_new_request(wanted)
    assert half.get_num_new_matched_tokens(wanted, 0) == (0, False)
    stats = half.take_stats()
    assert stats is not None
    assert stats.data["failures"] == {"params": 1}


def test_a_finished_prompt_hands_its_blocks_over() -> None:
    half = scheduler()
    done = request(do_remote_decode=True, transfer_id="tx-a")
    half.on_new_request(done)
    held, params = half.request_finished(done, ([1, 2],))
    assert held
    assert params is not None
    assert params["remote_block_ids"] == [[1, 2]]
    assert half.has_pending_push_work()
    assert half.build_connector_meta(output()).orders.offers
    assert not half.has_pending_push_work()


def test_the_writes_of_a_step_follow_what_it_computes() -> None:
    half = scheduler(read_mode="false")
    one = request(do_remote_decode=True, **leg(do_remote_prefill=False, remote_block_ids=[]))
    half.on_new_request(one)
    state = SimpleNamespace(resolve_block_ids=lambda _: ([1, 2],))
    new = SimpleNamespace(req_id="a", num_computed_tokens=0)
    made = half.build_connector_meta(
        output(
            scheduled_new_reqs=[new],
            num_scheduled_tokens={"a": 64},
            kv_connector_block_state=state,
            total_num_scheduled_tokens=64,
        )
    )
    assert made.orders.writes[0].spans == (Span(0, (1, 2)),)
    assert not made.idle


def test_what_a_step_carries_does_not_grow_with_the_requests_under_way() -> None:
    half = scheduler()
    for number in range(1000):
        name = f"r{number}"
        one = request(name, **leg(transfer_id=f"tx-{number}"))
        half.on_new_request(one)
        half.get_num_new_matched_tokens(one, 0)
        half.update_state_after_alloc(one, Blocks([1, 2]), 64)  # type: ignore[arg-type]
    assert len(half.build_connector_meta(output()).orders.reads) == 1000
    assert len(pickle.dumps(half.build_connector_meta(output()))) < 1000


def test_a_cache_of_running_states_is_refused_by_name() -> None:
    mamba = MambaSpec(block_size=32, shapes=((2, 2),), dtypes=(torch.float32,))
    with pytest.raises(NotImplementedError, match="MambaSpec"):
        scheduler(mamba)


def test_a_synchronous_load_of_several_groups_is_refused_at_the_start() -> None:
    with pytest.raises(NotImplementedError, match="async_load"):
        scheduler(spec(), spec(window=64), async_load="false")


@pytest.mark.parametrize(("key", "value"), [("read_moed", "true"), ("transfer_timeout", 0)])
def test_a_setting_that_is_wrong_is_named_at_the_start(key: str, value: Any) -> None:
    with pytest.raises(Exception, match=key):
        scheduler(**{key: value})


# The class.


def test_vllm_finds_the_class_by_its_module_path() -> None:
    config = SimpleNamespace(
        kv_connector="MoRIIOConnector", kv_connector_module_path="stagelink.vllm"
    )
    assert KVConnectorFactory.get_connector_class(config) is MoRIIOConnector  # type: ignore[arg-type]
    assert issubclass(MoRIIOConnector, SupportsHMA)
    assert supports_hma(MoRIIOConnector)
    names = list(inspect.signature(MoRIIOConnector).parameters)
    assert names == ["vllm_config", "role", "kv_cache_config"]
    assert not inspect.isabstract(MoRIIOConnector)


def test_writing_layer_by_layer_needs_graphs_in_pieces() -> None:
    assert MoRIIOConnector.requires_piecewise_for_cudagraph({})
    assert not MoRIIOConnector.requires_piecewise_for_cudagraph({"read_mode": "true"})


def test_stats_are_joined_over_workers_and_reduced_for_the_log() -> None:
    one, two = MoRIIOStats(), MoRIIOStats()
    one.succeeded(0.5, 1 << 20, 4)
    two.succeeded(1.5, 3 << 20, 8)
    two.failed("peer_lost")
    joined = pickle.loads(pickle.dumps(one)).aggregate(two)
    reduced = joined.reduce()
    assert reduced["Num successful transfers"] == 2
    assert reduced["Throughput (MB/s)"] == 2.0
    assert reduced["Failed: peer_lost"] == 1
    again = MoRIIOConnector.build_kv_connector_stats(joined.to_dict())
    assert again is not None
    assert again.reduce() == reduced
    assert MoRIIOStats().is_empty()


def test_metrics_count_successes_in_histograms_and_failures_by_reason() -> None:
    registry = CollectorRegistry()
    kinds = {kind: partial(kind, registry=registry) for kind in (Gauge, Counter, Histogram)}
    metrics = MoRIIOConnector.build_prom_metrics(
        vllm_config(),
        kinds,
        ["model_name", "engine"],
        {0: ["m", "0"]},  # type: ignore[arg-type]
    )
    stats = MoRIIOStats()
    stats.succeeded(0.5, 1 << 20, 4)
    stats.failed("peer_lost")
    metrics.observe(stats.to_dict(), 0)
    labels = {"model_name": "m", "engine": "0"}
    value = registry.get_sample_value
    assert value("vllm:moriio_xfer_time_seconds_count", labels) == 1
    assert value("vllm:moriio_bytes_transferred_sum", labels) == 1 << 20
    failed = labels | {"reason": "peer_lost"}
    assert value("vllm:moriio_failures_total", failed) == 1
