"""``MoRIIOWriter`` under a worker like vLLM's: bytes arrive, and everybody is told once."""

import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stagelink.moriio import MoRIIOTransferAck, MoRIIOWriter, RemoteAllocInfo

sys.path.insert(0, str(Path(__file__).parent))

from pair import LAYERS, Event, Pair, Tensor, Worker, eventually  # noqa: E402


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    made.listen()
    yield made
    made.close()


def allocate(pair: Pair, transfer_id: str, blocks: list[int]) -> None:
    pair.producer.done_remote_allocate_req_dict[transfer_id] = RemoteAllocInfo(block_ids=blocks)


def acknowledged(pair: Pair, transfer_id: str) -> bool:
    return eventually(lambda: MoRIIOTransferAck(transfer_id) in pair.producer.done_req_ids)


def test_all_layers_arrive_and_both_sides_are_told_once(pair: Pair) -> None:
    for layer in LAYERS:
        assert pair.writer.schedule_write(pair.task("tx", layer))
    assert not pair.writer.schedule_write(pair.task("tx", LAYERS[0]))
    assert pair.writer.is_scheduled("tx", LAYERS[0])
    assert not pair.writer.is_scheduled("tx", "another")
    pair.writer.seal_pending_transfers()
    allocate(pair, "tx", [5, 9])
    assert eventually(lambda: "tx" in pair.consumer.done_write_cache_req_ids)
    for index, tensor in enumerate(pair.remote):
        assert tensor.block(5) == tensor.block(9) == bytes([index + 1]) * 4096
        assert tensor.block(4) == bytes(4096)
    assert acknowledged(pair, "tx")
    assert pair.producer.pop_finished_req_ids() == [MoRIIOTransferAck("tx")]
    assert pair.writer.state("tx") == "done"
    assert not pair.writer.schedule_write(pair.task("tx", "late"))
    assert len(pair.producer.done_remote_allocate_req_dict) == 0


def test_a_layer_is_written_when_its_event_has_come(pair: Pair) -> None:
    event = Event()
    allocate(pair, "tx", [5, 9])
    assert pair.writer.schedule_write(pair.task("tx", LAYERS[0], event))
    pair.writer.seal_pending_transfers()
    pair.worker.caches[LAYERS[0]].set_block(1, 77)
    event.computed.set()
    assert eventually(lambda: "tx" in pair.consumer.done_write_cache_req_ids)
    assert pair.remote[0].block(5) == bytes([77]) * 4096


def test_a_failure_of_the_worker_ends_one_transfer(pair: Pair) -> None:
    pair.worker.failure = ValueError("local list longer than remote")
    allocate(pair, "bad", [5, 9])
    assert pair.writer.schedule_write(pair.task("bad", LAYERS[0]))
    pair.writer.seal_pending_transfers()
    assert acknowledged(pair, "bad")
    assert pair.writer.state("bad") == "failed"
    pair.worker.failure = None
    allocate(pair, "good", [5, 9])
    assert pair.writer.schedule_write(pair.task("good", LAYERS[0]))
    pair.writer.seal_pending_transfers()
    assert acknowledged(pair, "good")
    assert pair.writer.state("good") == "done"


def test_a_consumer_that_needs_nothing_frees_the_blocks(pair: Pair) -> None:
    assert pair.writer.schedule_write(pair.task("tx", LAYERS[0]))
    allocate(pair, "tx", [])
    assert acknowledged(pair, "tx")


def test_blocks_that_never_come_expire() -> None:
    pair = Pair()
    pair.worker.moriio_config.defer_timeout = 0.01
    pair.writer = MoRIIOWriter(pair.worker)
    try:
        assert pair.writer.schedule_write(pair.task("tx", LAYERS[0]))
        assert acknowledged(pair, "tx")
        assert pair.writer.state("tx") == "expired"
    finally:
        pair.close()


def test_an_abort_returns_when_nothing_is_under_way(pair: Pair) -> None:
    assert pair.writer.schedule_write(pair.task("tx", LAYERS[0]))
    pair.writer.abort("tx", 20.0)
    assert pair.writer.state("tx") == "aborted"
    assert acknowledged(pair, "tx")


@pytest.mark.parametrize(
    ("rank", "fields", "place"),
    [
        (0, {}, ("10.0.0.1", 7000)),
        (3, {}, ("10.0.0.1", 7003)),
        (3, {"multi_pod_hosts": ["a", "b"], "remote_dp_size_local": 2}, ("b", 7001)),
        (9, {"multi_pod_hosts": ["a", "b"], "remote_dp_size_local": 2}, ("10.0.0.1", 7001)),
        (0, {"remote_ip": "[fe80::1]"}, ("fe80::1", 7000)),
    ],
)
def test_the_rank_that_is_told_is_that_of_its_pod(
    pair: Pair, rank: int, fields: dict[str, Any], place: tuple[str, int]
) -> None:
    from stagelink.moriio.writer import _Host

    address = {"remote_ip": "10.0.0.1", "remote_notify_port": 7000}
    task = pair.task("tx", LAYERS[0], **(address | fields))
    assert _Host(pair.writer._worker_ref).consumer_of([1], rank, task) == place


class ForeignStatus:
    """A batch of a session that is not ours: it has been copied when it is made."""

    def Succeeded(self) -> bool:  # noqa: N802
        return True

    def Failed(self) -> bool:  # noqa: N802
        return False

    def Message(self) -> str:  # noqa: N802
        return ""


class ForeignSession:
    def __init__(self) -> None:
        self.batches: list[tuple[list[int], list[int], list[int]]] = []

    def batch_write(
        self, local: list[int], remote: list[int], sizes: list[int], _uid: int
    ) -> ForeignStatus:
        self.batches.append((local, remote, sizes))
        return ForeignStatus()


def test_sessions_of_another_engine_are_written_through_their_own_methods(pair: Pair) -> None:
    session = ForeignSession()
    pair.worker.sessions[:] = [session] * len(LAYERS)
    for layer in LAYERS[:2]:
        assert pair.writer.schedule_write(pair.task("tx", layer))
    pair.writer.seal_pending_transfers()
    allocate(pair, "tx", [5, 9])
    assert acknowledged(pair, "tx")
    assert session.batches == [([4096, 8192] * 2, [20480, 36864] * 2, [4096] * 4)]


@dataclass
class SeedTask:
    """Of former times: without a transfer id, complete with the model's layers."""

    request_id: str
    dst_engine_id: str
    local_block_ids: list[int]
    layer_name: str
    event: Any
    remote_notify_port: int
    remote_ip: str


def test_tasks_without_a_transfer_id_are_complete_with_all_layers(pair: Pair) -> None:
    pair.worker.num_layers = len(LAYERS)  # type: ignore[attr-defined]
    allocate(pair, "request", [5, 9])
    host, port = pair.consumer.notify_address or ("", 0)
    for layer in LAYERS:
        task = SeedTask("request", "decode", [1, 2], layer, None, port, host)
        assert pair.writer.schedule_write(task)
    assert eventually(lambda: "request" in pair.consumer.done_write_cache_req_ids)


def test_the_writer_does_not_keep_its_worker(pair: Pair) -> None:
    worker = Worker(pair.producer, caches={LAYERS[0]: Tensor(1)})
    writer = MoRIIOWriter(worker)
    writer.seal_pending_transfers()
    del worker
    gc.collect()
    with pytest.raises(RuntimeError, match="garbage collected"):
        _ = writer.worker
    writer.shutdown()
