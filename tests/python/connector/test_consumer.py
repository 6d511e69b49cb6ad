"""Decode's requests: when they load, what they load, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest

from stagelink.vllm.consumer import ConsumerOptions, ConsumerTable
from stagelink.vllm.groups import Group, Pairs, Span
from stagelink.vllm.params import parse


class Table(ConsumerTable):
    """One group of blocks of 4 tokens; what is refused is kept."""

    def __init__(self, write_mode: bool = False, groups: tuple[Group, ...] = (Group(4),)) -> None:
        self.refused: list[str] = []
        self.now = 1000.0
        options = ConsumerOptions(groups, write_mode, clock=lambda: self.now)
        super().__init__(options, lambda reason, _: self.refused.append(reason))


def leg(**changes: Any) -> dict[str, Any]:
    return {
        "do_remote_prefill": True,
        "transfer_id": "tx",
        "remote_host": "h",
        "remote_handshake_port": 1,
        "remote_notify_port": 2,
        "remote_block_ids": [[11, 12, 13]],
        "remote_num_tokens": 10,
    } | changes


def add(table: ConsumerTable, name: str = "a", **changes: Any) -> None:
    table.add(name, parse(leg(**changes), name))


@pytest.fixture
def table() -> Table:
    return Table()


def test_a_request_loads_its_whole_prompt(table: Table) -> None:
    add(table)
    assert table.usable_tokens("a", 10, 0) == 10
    table.allocated("a", 10, ([1, 2, 3],))
    (order,) = table.take().reads
    assert order.pairs == (Pairs((1, 2, 3), (11, 12, 13)),)


def test_a_request_without_params_loads_nothing(table: Table) -> None:
    assert table.usable_tokens("plain", 10, 0) == 0
    table.allocated("plain", 0, ([1, 2, 3],))
    assert not table.take()


def test_only_what_is_not_cached_travels(table: Table) -> None:
    add(table)
    assert table.usable_tokens("a", 10, 8) == 2
    table.allocated("a", 2, ([1, 2, 3],))
    (order,) = table.take().reads
    assert order.pairs == (Pairs((3,), (13,)),)


@pytest.mark.parametrize("blocks", [None, [], [[]]])
def test_a_prefill_that_left_no_blocks_is_not_waited_for(table: Table, blocks: Any) -> None:
    add(table, remote_block_ids=blocks)
    assert table.usable_tokens("a", 10, 0) == 0
    table.allocated("a", 0, ([1, 2, 3],))
    orders = table.take()
    assert not orders.reads
    assert len(orders.releases) == 1


def test_a_preempted_request_computes_for_itself(table: Table) -> None:
    add(table)
    table.usable_tokens("a", 10, 0)
    table.allocated("a", 10, ([1, 2, 3],))
    table.received("a")
    table.allocated("a", 0, ([1, 2, 3],))
    assert table.usable_tokens("a", 10, 0) == 0
    table.take()
    table.allocated("a", 0, ([4, 5, 6],))
    assert not table.take()


def test_a_prompt_that_is_cached_here_releases_the_peer(table: Table) -> None:
    add(table)
    assert table.usable_tokens("a", 10, 10) == 0
    table.allocated("a", 0, ([1, 2, 3],))
    assert [order.transfer_id for order in table.take().releases] == ["tx"]


def test_a_lease_that_has_run_out_is_not_read(table: Table) -> None:
    add(table, remote_lease_until=1005.0)
    assert table.usable_tokens("a", 10, 0) == 0
    assert table.refused == ["lease"]


def test_a_read_must_end_before_the_lease_does(table: Table) -> None:
    add(table, remote_lease_until=1060.0)
    assert table.usable_tokens("a", 10, 0) == 10
    table.allocated("a", 10, ([1, 2, 3],))
    assert table.take().reads[0].until == 1055.0


@pytest.mark.parametrize(
    "changes",
    [
        {"remote_block_ids": [[1], [2]]},
        {"remote_first_blocks": [1]},
        {"remote_first_blocks": [0, 0]},
    ],
)
def test_blocks_that_do_not_cover_the_prompt_are_refused(table: Table, changes: Any) -> None:
    add(table, **changes)
    assert table.usable_tokens("a", 10, 0) == 0
    assert table.refused == ["params"]


def test_blocks_of_another_size_are_refused_by_name(table: Table) -> None:
    add(table, remote_block_sizes=[16])
    assert table.usable_tokens("a", 10, 0) == 0
    assert table.refused == ["incompatible"]


def test_a_request_aborted_before_it_was_allocated_releases_the_peer(table: Table) -> None:
    add(table)
    table.finished("a")
    assert len(table.take().releases) == 1
    assert len(table) == 0


def test_a_request_aborted_while_it_loads_is_stopped_and_reported_once(table: Table) -> None:
    add(table)
    table.usable_tokens("a", 10, 0)
    table.allocated("a", 10, ([1, 2, 3],))
    table.take()
    table.finished("a")
    assert table.take().aborts == ["a"]
    table.received("a")
    assert len(table) == 0


def test_samples_of_one_prompt_load_it_once(table: Table) -> None:
    add(table, "a")
    add(table, "b")
    assert table.usable_tokens("b", 10, 0) is None
    assert table.usable_tokens("a", 10, 0) == 10
    table.allocated("a", 10, ([1, 2, 3],))
    assert table.usable_tokens("b", 10, 0) is None
    table.received("a")
    assert table.usable_tokens("b", 10, 0) == 0
    orders = table.take()
    assert len(orders.reads) == 1
    assert not orders.releases


def test_the_next_sample_loads_if_the_first_one_is_aborted(table: Table) -> None:
    add(table, "a")
    add(table, "b")
    table.finished("a")
    assert not table.take()
    assert table.usable_tokens("b", 10, 0) == 10


def test_a_transfer_id_can_be_used_again_after_its_end(table: Table) -> None:
    for _ in range(50):
        add(table)
        assert table.usable_tokens("a", 10, 0) == 10
        table.allocated("a", 10, ([1, 2, 3],))
        table.received("a")
        table.finished("a")
    assert len(table) == 0


def test_in_write_mode_the_peer_is_told_where_its_blocks_go() -> None:
    table = Table(write_mode=True)
    add(table, remote_block_ids=[])
    assert table.usable_tokens("a", 10, 4) == 6
    table.allocated("a", 6, ([1, 2, 3],))
    (order,) = table.take().receives
    assert order.spans == (Span(1, (2, 3)),)


def test_a_prompt_of_one_token_is_loaded_in_write_mode() -> None:
    table = Table(write_mode=True)
    add(table, remote_block_ids=[], remote_num_tokens=None)
    assert table.usable_tokens("a", 1, 0) == 1


def test_with_sliding_windows_the_last_token_is_computed_here() -> None:
    table = Table(groups=(Group(4), Group(4, window=4)))
    add(
        table,
        remote_block_ids=[[1, 2, 3], [8, 9]],
        remote_first_blocks=[0, 1],
        remote_num_tokens=12,
    )
    assert table.usable_tokens("a", 12, 0) == 11
    table.allocated("a", 11, ([1, 2, 3], [0, 0, 6]))
    (order,) = table.take().reads
    assert order.pairs == (Pairs((1, 2, 3), (1, 2, 3)), Pairs((6,), (9,)))


def test_without_an_address_the_prompt_is_computed(table: Table) -> None:
    add(table, remote_host=None)
    assert table.usable_tokens("a", 10, 0) == 0
    assert table.refused == ["params"]
