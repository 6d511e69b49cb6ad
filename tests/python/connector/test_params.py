"""What a proxy or a peer may say of a request, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from stagelink.vllm.params import Address, ParamsError, parse

GOOD: dict[str, Any] = {
    "do_remote_decode": False,
    "do_remote_prefill": True,
    "transfer_id": "tx-1",
    "remote_engine_id": "10.0.0.1:6301",
    "remote_block_ids": [[4, 5, 6]],
    "remote_host": "10.0.0.1",
    "remote_handshake_port": "6301",
    "remote_notify_port": 61005,
    "remote_tp_size": 2,
    "remote_dp_size": 4,
    "remote_dp_size_local": 2,
    "remote_dp_rank": 3,
}


def test_a_complete_leg_is_read() -> None:
    params = parse(GOOD, "req-1")
    assert (params.transfer_id, params.decode, params.prefill) == ("tx-1", True, False)
    assert params.address == Address("10.0.0.1", 6301, 61005)
    assert params.blocks == ((4, 5, 6),)
    assert (params.tp_size, params.dp_size, params.dp_size_local, params.dp_rank) == (2, 4, 2, 3)


def test_a_plain_list_of_blocks_is_the_only_group() -> None:
    assert parse(GOOD | {"remote_block_ids": [1, 2]}, "r").blocks == ((1, 2),)


def test_the_tp_size_may_come_under_either_name_and_is_never_guessed() -> None:
    renamed = {key: value for key, value in GOOD.items() if key != "remote_tp_size"}
    assert parse(renamed, "r").tp_size == 0
    assert parse(renamed | {"tp_size": "8"}, "r").tp_size == 8


def test_without_a_transfer_id_both_sides_derive_the_same_one() -> None:
    params = parse({"do_remote_decode": True}, "req-7")
    assert params.transfer_id == "sidecar-req-7"


def test_the_address_in_a_router_s_request_id_wins() -> None:
    zmq = "host:10.9.9.9,handshake:{},notify:{}"
    name = f"___prefill_addr_{zmq.format(1, 2)}___decode_addr_{zmq.format(3, 4)}_" + "a" * 32
    assert parse(GOOD, name).address == Address("10.9.9.9", 1, 2)
    leg = GOOD | {"do_remote_decode": True, "do_remote_prefill": False}
    assert parse(leg, f"cmpl-{name}-0-abc").address == Address("10.9.9.9", 3, 4)


def test_an_ipv6_host_needs_no_brackets() -> None:
    zmq = "host:fd00::1,handshake:1,notify:2"
    name = f"___prefill_addr_{zmq}___decode_addr_{zmq}_" + "0" * 32
    assert parse(GOOD, name).address == Address("fd00::1", 1, 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("do_remote_prefill", "yes"),
        ("transfer_id", 7),
        ("transfer_id", "x" * 1025),
        ("remote_block_ids", "1,2"),
        ("remote_block_ids", [[1, -1]]),
        ("remote_block_ids", [[True]]),
        ("remote_block_ids", [[1 << 31]]),
        ("remote_block_ids", [[1]] * 65),
        ("remote_handshake_port", None),
        ("remote_handshake_port", 65536),
        ("remote_notify_port", "61005x"),
        ("remote_tp_size", "eight"),
        ("remote_tp_size", 1025),
        ("remote_dp_rank", -1),
        ("remote_dp_size", 0),
        ("remote_hosts", ["a", ""]),
        ("remote_first_blocks", [-1]),
        ("remote_block_sizes", [True]),
        ("remote_lease_until", "soon"),
    ],
)
def test_a_bad_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(ParamsError, match=f"^{field}: "):
        parse(GOOD | {field: value}, "req-1")


@pytest.mark.parametrize("text", ["host:,handshake:1,notify:2", "host:a,handshake:x,notify:2"])
def test_a_bad_address_in_the_request_id_is_refused(text: str) -> None:
    name = f"___prefill_addr_{text}___decode_addr_{text}_" + "0" * 32
    with pytest.raises(ParamsError, match="request id"):
        parse(GOOD, name)
