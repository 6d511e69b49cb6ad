"""``MoRIIOWrapper``: the surface that vLLM 0.32's worker uses."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import stagelink.errors
from stagelink.moriio import (
    HandshakeError,
    MoRIIOError,
    MoRIIOTransferAck,
    MoRIIOWrapper,
    RemoteAllocInfo,
    TransferBatchState,
    TransferError,
)

sys.path.insert(0, str(Path(__file__).parent))

from pair import LAYERS, Pair, eventually  # noqa: E402

# remote_blocks(req-1, tx-1, [4, 5, 300], rank 3), as vLLM 0.32 sends it.
REMOTE_BLOCKS = bytes.fromhex(
    "85a67265715f6964a57265712d31ab7472616e736665725f6964a474782d31b1626c6f636b5f6e6f746966795f6c"
    "697374930405cd012cab6465636f64655f72616e6b03a474797065ad72656d6f74655f626c6f636b73"
)


class Status:
    """Of a session that is not ours."""

    def __init__(self, state: str) -> None:
        self.state = state

    def Succeeded(self) -> bool:  # noqa: N802
        return self.state == "done"

    def Failed(self) -> bool:  # noqa: N802
        return self.state == "failed"

    def Message(self) -> str:  # noqa: N802
        return "the cable"

    def Code(self) -> int:  # noqa: N802
        return 13


@pytest.fixture
def producer() -> Iterator[MoRIIOWrapper]:
    wrapper = MoRIIOWrapper(role="producer")
    yield wrapper
    wrapper.shutdown()


@pytest.fixture
def consumer() -> Iterator[MoRIIOWrapper]:
    wrapper = MoRIIOWrapper(role="consumer")
    yield wrapper
    wrapper.shutdown()


def test_releases_are_given_one_by_one_and_completions_once(
    producer: MoRIIOWrapper, consumer: MoRIIOWrapper
) -> None:
    for wrapper in (producer, consumer):
        wrapper.notify_port = 0
        wrapper.async_wait_reqid()
    assert producer.notify_address is not None and consumer.notify_address is not None
    fields = {"consumer_tp_size": 8}
    consumer.send_notify("tx-1", *producer.notify_address, "release", fields)
    consumer.send_notify(["tx-1", "tx-2"], *producer.notify_address)
    producer.send_notify("tx-3", *consumer.notify_address, message_type="write_done")
    producer.send_notify("tx-3", consumer.notify_address[0], str(consumer.notify_address[1]))
    assert eventually(lambda: len(producer.done_req_ids) == 3)
    assert eventually(lambda: len(consumer.done_write_cache_req_ids) == 1)
    assert producer.pop_finished_req_ids() == [
        MoRIIOTransferAck("tx-1", 8),
        MoRIIOTransferAck("tx-1"),
        MoRIIOTransferAck("tx-2"),
    ]
    assert producer.pop_finished_req_ids() == []
    assert consumer.pop_finished_write_req_ids() == {"tx-3"}
    assert consumer.pop_finished_write_req_ids() == set()


def test_allocations_are_a_dictionary(producer: MoRIIOWrapper) -> None:
    producer._handle_message(REMOTE_BLOCKS)
    table = producer.done_remote_allocate_req_dict
    assert list(table) == ["tx-1"] and "tx-1" in table and "tx-2" not in table
    assert table["tx-1"] == RemoteAllocInfo(block_ids=[4, 5, 300], decode_dp_rank=3)
    table["tx-1"].writes_done = 2
    assert table["tx-1"].writes_done == 2
    table["tx-2"] = RemoteAllocInfo(block_ids=[])
    assert len(table) == 2 and table.get("tx-2") == RemoteAllocInfo(block_ids=[])
    assert table.pop("tx-1", None) is not None
    assert table.pop("tx-1", None) is None
    with pytest.raises(KeyError):
        table["tx-1"]


def test_blocks_of_a_transfer_that_has_ended_are_ignored(producer: MoRIIOWrapper) -> None:
    with producer.lock:
        assert not producer._is_transfer_terminal_locked("tx-1")
        producer.done_req_ids.append(MoRIIOTransferAck("tx-1"))
        producer._mark_transfer_terminal_locked("tx-1")
        assert producer._is_transfer_terminal_locked("tx-1")
    producer._handle_message(REMOTE_BLOCKS)
    assert len(producer.done_remote_allocate_req_dict) == 0
    assert producer.pop_finished_req_ids() == [MoRIIOTransferAck("tx-1")]


def test_the_lists_may_be_assigned(producer: MoRIIOWrapper) -> None:
    producer.done_req_ids.append(MoRIIOTransferAck("old"))
    producer.done_req_ids = [MoRIIOTransferAck("new")]
    assert producer.done_req_ids == [MoRIIOTransferAck("new")]
    producer.done_write_cache_req_ids = ["tx"]
    assert producer.done_write_cache_req_ids == ["tx"]


def test_a_wrong_message_is_counted_and_raises_nothing(producer: MoRIIOWrapper) -> None:
    producer._handle_message(b"\xff\xfe")
    producer._handle_message(b"\x81\xa4type\xa4nope")
    counts = producer.control.rejects()
    assert counts["malformed"] == 1 and counts["unknown_type"] == 1
    assert 'reason="malformed"} 1' in producer.control.metrics_text()


def test_a_write_that_failed_is_no_completion(consumer: MoRIIOWrapper) -> None:
    # {type: write_failed, transfer_id: tx}
    consumer._handle_message(b"\x82\xa4type\xacwrite_failed\xabtransfer_id\xa2tx")
    assert consumer.pop_finished_write_req_ids() == set()
    assert list(consumer.pop_failed_write_req_ids()) == ["tx"]


def test_sending_while_the_lock_is_held_neither_waits_nor_blocks(consumer: MoRIIOWrapper) -> None:
    with consumer.lock:
        consumer.send_notify("tx", "127.0.0.1", 1, "release")  # Nobody is there.


def test_notifications_without_an_address_or_a_name_are_not_sent(consumer: MoRIIOWrapper) -> None:
    consumer.send_notify("tx", None, 1)
    consumer.send_notify("tx", "127.0.0.1", None)
    consumer.send_notify([7], "127.0.0.1", 1)  # type: ignore[list-item]
    assert "stagelink_moriio_notifications_total" not in consumer.control.metrics_text()
    with pytest.raises(MoRIIOError, match="colour"):
        consumer.send_notify("tx", "127.0.0.1", 1, "release", {"colour": "red"})
    with pytest.raises(stagelink.errors.InvalidArgument, match="nope"):
        consumer.control.notify("127.0.0.1", 1, "tx", "nope")


def test_a_port_that_is_taken_is_an_error_of_the_caller(producer: MoRIIOWrapper) -> None:
    producer.notify_port = 0
    producer.async_wait_reqid()
    producer.async_wait_reqid()
    assert producer.notify_thread is not None
    other = MoRIIOWrapper(role="producer")
    assert producer.notify_address is not None
    other.notify_port = producer.notify_address[1]
    with pytest.raises(HandshakeError, match="port_in_use|in use"):
        other.async_wait_reqid()
    other.shutdown()


def test_every_address_is_listened_on_only_when_told(producer: MoRIIOWrapper) -> None:
    producer.notify_port = 0
    producer.async_wait_reqid()
    assert producer.notify_address is not None and producer.notify_address[0] == "127.0.0.1"
    everywhere = MoRIIOWrapper(role="producer", bind_host="*")
    everywhere.notify_port = 0
    everywhere.async_wait_reqid()
    assert everywhere.notify_address is not None and everywhere.notify_address[0] == "*"
    everywhere.shutdown()


def test_without_zeromq_the_error_names_what_to_install() -> None:
    wrapper = MoRIIOWrapper(role="producer", zmq_library="/nowhere/libzmq.so.5")
    wrapper.notify_port = 0
    with pytest.raises(HandshakeError, match="libzmq5.*pyzmq"):
        wrapper.async_wait_reqid()
    wrapper.shutdown()


def test_the_verdict_over_several_statuses(producer: MoRIIOWrapper) -> None:
    done, failed, running = Status("done"), Status("failed"), Status("running")
    assert producer.poll_transfer_batch([]) is TransferBatchState.DONE
    assert producer.poll_transfer_batch([done, done]) is TransferBatchState.DONE
    assert producer.poll_transfer_batch([done, running]) is TransferBatchState.PENDING
    assert producer.poll_transfer_batch([running, failed]) is TransferBatchState.FAILED


def test_a_failure_is_told_before_what_still_runs(producer: MoRIIOWrapper) -> None:
    producer.waiting_for_transfer_complete([])
    producer.waiting_for_transfer_complete([Status("done")])
    with pytest.raises(TransferError, match=r"(?s)2/2.*the cable \(code=13\)"):
        producer.waiting_for_transfer_complete([Status("running"), Status("failed")])
    hasty = MoRIIOWrapper(transfer_timeout=0.01)
    with pytest.raises(TransferError, match="timed out after 0.01 s"):
        hasty.waiting_for_transfer_complete([Status("running")])


def test_the_host_is_given_its_own_types(
    monkeypatch: pytest.MonkeyPatch, producer: MoRIIOWrapper
) -> None:
    class TheirError(Exception):
        pass

    their_state = SimpleNamespace(DONE=object(), FAILED=object(), PENDING=object())
    host = SimpleNamespace(
        TransferBatchState=their_state,
        TransferError=TheirError,
        get_role=lambda: SimpleNamespace(value="consumer"),
    )
    name = "vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_common"
    monkeypatch.setitem(sys.modules, name, host)
    assert producer.poll_transfer_batch([Status("done")]) is their_state.DONE
    with pytest.raises(TheirError):
        producer.waiting_for_transfer_complete([Status("failed")])
    wrapper = MoRIIOWrapper()
    wrapper._handle_message(REMOTE_BLOCKS)
    assert wrapper.control.rejects()["wrong_role"] == 1
    wrapper.shutdown()


def test_shutdown_joins_every_thread() -> None:
    before = threading.active_count()
    wrapper = MoRIIOWrapper(role="producer")
    wrapper.shutdown()  # Of one that never began.
    wrapper.notify_port = 0
    wrapper = MoRIIOWrapper(role="producer")
    wrapper.notify_port = 0
    wrapper.async_wait_reqid()
    wrapper.shutdown()
    wrapper.shutdown()
    assert threading.active_count() == before


def test_one_session_serves_all_layers_of_one_pair_of_memories() -> None:
    pair = Pair()
    try:
        metas = [
            [pair.producer.get_unpack_memory_metadata(packed) for packed in packs]
            for packs in (
                [pair.producer.register_local_tensor(pair.worker.caches[LAYERS[0]])],
                [pair.consumer.register_local_tensor(pair.remote[0])],
            )
        ]
        first = pair.producer.build_session(metas[0][0], metas[1][0])
        assert pair.producer.build_session(metas[0][0], metas[1][0]) is first
    finally:
        pair.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_lets_go_of_nothing_and_does_not_hang() -> None:
    pair = Pair()
    try:
        pair.listen()
        assert pair.writer.schedule_write(pair.task("tx", LAYERS[0]))
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            code = 1
            try:
                with pytest.raises(MoRIIOError, match="forked"):
                    pair.producer.send_notify("tx", "127.0.0.1", 1, "release")
                assert not pair.writer.schedule_write(pair.task("other", LAYERS[0]))
                pair.writer.shutdown()
                pair.producer.shutdown()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        pair.producer.done_remote_allocate_req_dict["tx"] = RemoteAllocInfo(block_ids=[3, 4])
        pair.writer.seal_pending_transfers()
        assert eventually(lambda: "tx" in pair.consumer.done_write_cache_req_ids)
    finally:
        pair.close()
