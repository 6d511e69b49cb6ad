"""The block planner and MoRIIO's messages as Python sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stagelink import _core
from stagelink.errors import Corrupt, Incompatible, InvalidArgument, NotFound


def geometry(shape: list[int], **known: Any) -> _core.BlockGeometry:
    strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    return _core.BlockGeometry.find(shape, strides, 2, **known)


KNOWN = {"block_size": 4, "num_kv_heads": 2, "head_size": 3}


def test_a_plan_is_three_arrays() -> None:
    ours = geometry([2, 8, 4, 2, 3], **KNOWN)
    layout = _core.RunTemplate.of(ours, ours.with_num_blocks(16))
    local, remote, sizes = (np.asarray(a) for a in _core.plan_blocks(layout, [1, 3], [4, 5]))
    assert local.dtype == np.uint64
    assert local.tolist() == [48, 144, 432, 528]
    assert remote.tolist() == [192, 240, 960, 1008]
    assert sizes.tolist() == [48] * 4


def test_ids_may_be_arrays_and_block_0_stays() -> None:
    ours = geometry([8, 2, 4, 2, 3], **KNOWN)
    layout = _core.RunTemplate.of(ours, ours)
    ids = np.array([0, 1, 2], dtype=np.int64)
    local, _, sizes = _core.plan_blocks(layout, ids, ids, local_base=1000)
    assert np.asarray(local).tolist() == [1096]
    assert np.asarray(sizes).tolist() == [192]


def test_what_does_not_fit_raises_by_name() -> None:
    ours = geometry([8, 2, 4, 2, 3], **KNOWN)
    layout = _core.RunTemplate.of(ours, ours)
    with pytest.raises(InvalidArgument, match=r"remote block id 8 is outside \[0, 8\)"):
        _core.plan_blocks(layout, [1], [8])
    with pytest.raises(InvalidArgument, match="-1"):
        _core.plan_blocks(layout, [-1], [1])
    with pytest.raises(Incompatible, match="layout mismatch"):
        geometry([2, 2, 4, 2, 3], **KNOWN)
    with pytest.raises(InvalidArgument, match="unknown argument `heads`"):
        geometry([8, 2, 4, 2, 3], block_size=4, heads=2)


def test_heads_of_other_tp_sizes() -> None:
    assert _core.head_routes_to(8, 4, 2, 1) == [(2, (0, 0, 2)), (3, (2, 0, 2))]
    assert _core.head_routes_from(8, 4, 2, 3) == [(1, (0, 2, 2))]


def test_a_state_has_its_own_template() -> None:
    layout = _core.RunTemplate.of_states(
        (4, 100, [(0, 30), (50, 20)]), (8, 200, [(0, 30), (30, 20)])
    )
    local, remote, sizes = _core.plan_blocks(layout, [1], [2])
    assert np.asarray(local).tolist() == [100, 150]
    assert np.asarray(remote).tolist() == [400, 430]
    assert np.asarray(sizes).tolist() == [30, 20]


def test_messages_are_dicts() -> None:
    message = {"type": "release", "transfer_id": "tx-1", "consumer_tp_size": 8}
    assert _core.moriio_decode_notify(_core.moriio_encode_notify(message)) == message
    assert _core.moriio_decode_notify(b"cmpl-1") == {"type": "legacy", "transfer_id": "cmpl-1"}
    with pytest.raises(InvalidArgument, match="`transfer_id` is missing"):
        _core.moriio_encode_notify({"type": "write_done"})
    with pytest.raises(Corrupt, match="`type` is missing"):
        _core.moriio_decode_notify(b"\x80")
    metadata = {
        "engine_id": "e",
        "agent_metadata": b"\1\2",
        "kv_caches_base_addr": [4096],
        "num_blocks": 16,
        "block_len": 4096,
        "attn_backend_name": "X",
        "version": 1,
        "compat": {"dtype": "bfloat16"},
    }
    frame = _core.moriio_encode_agent_metadata(metadata)
    assert _core.moriio_decode_agent_metadata(frame) == metadata
    layers = {"model.layers.0": [b"\xaa"], "model.layers.1": [b"\xbb", b"\xcc"]}
    assert _core.moriio_decode_layer_map(_core.moriio_encode_layer_map(layers)) == layers


def test_addresses_stand_in_request_ids() -> None:
    prefill, decode = ("10.0.0.1", 6301, 61005), ("::1", 6401, 61105)
    request_id = _core.moriio_format_request_id(prefill, decode, "0123456789abcdef" * 2)
    assert _core.moriio_parse_request_id(f"cmpl-{request_id}-0") == (prefill, decode)
    assert _core.moriio_parse_zmq_address("host:h,handshake:1,notify:2") == ("h", 1, 2)
    with pytest.raises(NotFound):
        _core.moriio_parse_request_id("cmpl-1")


def test_options_come_with_their_defaults_and_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MORIIO_NUM_WORKERS", "3")
    values, notes = _core.moriio_options({"transfer_timeout": 5, "read_mode": None})
    assert values["transfer_timeout"] == 5.0
    assert values["read_mode"] is False
    assert values["num_workers"] == 3
    assert len(notes) == 1 and "num_workers" in notes[0]
    with pytest.raises(InvalidArgument, match="did you mean `read_mode`"):
        _core.moriio_options({"read_mod": True})
    with pytest.raises(InvalidArgument, match=r"http_port: `\[1\]`"):
        _core.moriio_options({"http_port": [1]})


def test_compatibility_is_told_by_field() -> None:
    assert _core.compat_differences({"dtype": "a"}, {"dtype": "b"}) == ["dtype: ours a, theirs b"]
    assert len(_core.compat_hash({"dtype": "a"})) == 16
