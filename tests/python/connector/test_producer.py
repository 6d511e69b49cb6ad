"""Prefill's requests: what is offered or written, and how long the blocks stay."""

from __future__ import annotations

from typing import Any

from stagelink.vllm.groups import Group, Span
from stagelink.vllm.params import parse
from stagelink.vllm.producer import ProducerOptions, ProducerTable


class Table(ProducerTable):
    def __init__(self, write_mode: bool = False, early_push: bool = False) -> None:
        self.refused: list[str] = []
        options = ProducerOptions(
            (Group(4),), write_mode, early_push, address={"remote_host": "p"}, clock=lambda: 100.0
        )
        super().__init__(options, lambda reason, _: self.refused.append(reason))

    def start(self, name: str = "a", prompt: int = 10, **changes: Any) -> None:
        leg = {
            "do_remote_decode": True,
            "transfer_id": "tx",
            "remote_host": "d",
            "remote_handshake_port": 1,
            "remote_notify_port": 2,
        }
        self.add(name, parse(leg | changes, name), prompt)


def test_a_finished_prompt_is_offered_with_its_blocks() -> None:
    table = Table()
    table.start()
    held, answer = table.finished("a", True, ([1, 2, 3, 4],), 10)
    assert held
    assert answer is not None
    assert answer["remote_block_ids"] == [[1, 2, 3]]
    assert answer["remote_first_blocks"] == [0]
    assert answer["remote_num_tokens"] == 10
    assert answer["remote_lease_until"] == 160.0
    assert (answer["do_remote_prefill"], answer["remote_host"]) == (True, "p")
    assert [order.request_id for order in table.take().offers] == ["a"]
    table.ended("a")
    assert len(table) == 0


def test_an_aborted_prompt_is_not_offered() -> None:
    table = Table()
    table.start()
    assert table.finished("a", False, ([1, 2, 3],), 10) == (False, None)
    assert not table.take()
    assert len(table) == 0


def test_a_request_that_nobody_waits_for_keeps_nothing() -> None:
    assert Table().finished("plain", True, ([1],), 3) == (False, None)


def test_of_samples_of_one_prompt_one_keeps_its_blocks() -> None:
    table = Table()
    table.start("a")
    table.start("b")
    assert table.finished("b", True, ([1, 2, 3],), 10) == (False, None)
    held, _ = table.finished("a", True, ([1, 2, 3],), 10)
    assert held


def test_blocks_are_written_with_the_last_chunk() -> None:
    table = Table(write_mode=True)
    table.start()
    assert table.wants_blocks("a")
    table.scheduled("a", 6, lambda: ([1, 2],))
    assert not table.take()
    table.scheduled("a", 10, lambda: ([1, 2, 3],))
    (order,) = table.take().writes
    assert (order.spans, order.last) == ((Span(0, (1, 2, 3)),), True)
    assert not table.wants_blocks("a")


def test_early_push_writes_whole_blocks_of_each_chunk() -> None:
    table = Table(write_mode=True, early_push=True)
    table.start()
    table.scheduled("a", 3, lambda: ([1],))
    assert not table.take()
    table.scheduled("a", 6, lambda: ([1, 2],))
    (first,) = table.take().writes
    assert (first.spans, first.last) == ((Span(0, (1,)),), False)
    table.scheduled("a", 10, lambda: ([1, 2, 3],))
    (last,) = table.take().writes
    assert (last.spans, last.last) == ((Span(1, (2, 3)),), True)


def test_a_preemption_ends_a_transfer_that_was_under_way() -> None:
    table = Table(write_mode=True, early_push=True)
    table.start()
    table.scheduled("a", 8, lambda: ([1, 2],))
    table.take()
    table.preempted("a")
    assert table.take().preempted == ["a"]
    assert not table.wants_blocks("a")
    held, answer = table.finished("a", True, ([7, 8, 9],), 10)
    assert (held, answer) == (True, None)
    assert table.take().finishes[0].aborted


def test_a_preemption_before_the_first_write_changes_nothing() -> None:
    table = Table(write_mode=True)
    table.start()
    table.scheduled("a", 6, lambda: ([1, 2],))
    table.preempted("a")
    assert not table.take()
    table.scheduled("a", 10, lambda: ([7, 8, 9],))
    (order,) = table.take().writes
    assert order.spans == (Span(0, (7, 8, 9)),)


def test_a_finished_prompt_keeps_its_blocks_until_the_writes_have_ended() -> None:
    table = Table(write_mode=True)
    table.start()
    table.scheduled("a", 10, lambda: ([1, 2, 3],))
    table.take()
    held, answer = table.finished("a", True, ([1, 2, 3],), 10)
    assert held
    assert answer is not None
    (order,) = table.take().finishes
    assert not order.aborted
    table.ended("a")
    assert len(table) == 0


def test_an_abort_in_write_mode_tells_the_peer_and_waits_for_the_writes() -> None:
    table = Table(write_mode=True, early_push=True)
    table.start()
    table.scheduled("a", 8, lambda: ([1, 2],))
    table.take()
    assert table.finished("a", False, ([1, 2],), 8) == (True, None)
    (order,) = table.take().finishes
    assert order.aborted


def test_in_write_mode_the_peer_must_be_known() -> None:
    table = Table(write_mode=True)
    table.start(remote_host=None)
    assert table.refused == ["params"]
    assert not table.wants_blocks("a")
