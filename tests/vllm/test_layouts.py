"""The block planner, the messages and the ports against vLLM 0.32's own functions.

They import on a CPU. Tensors are on the device `meta`: only shapes and strides are looked at. Block
0 is in no list, as ours never moves it, and no tensor has two blocks, as ours asks for the layout
then.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from stagelink import _core

if TYPE_CHECKING:
    import torch

LAYER = "model.layers.0.self_attn.attn"
ROUNDS = 150


@pytest.fixture(params=range(ROUNDS))
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Its seed is the test's parameter."""
    return random.Random(request.param)


def strided(shape: list[int], gap: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose first axis steps over `gap` further elements."""
    import torch

    strides = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        strides[i - 1] = strides[i] * shape[i]
    strides[0] += gap
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def some_cache(rng: random.Random) -> tuple[torch.Tensor, Any, dict[str, Any]]:
    """A cache, its spec, and what ours is told of it."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

    dtype = rng.choice([torch.bfloat16, torch.float32, torch.uint8])
    blocks = rng.randint(3, 40)
    block_size = rng.choice([4, 8, 16, 32])
    heads, head_size = rng.choice([1, 2, 3, 5, 7]), rng.choice([3, 8, 64])
    kind = rng.choice(["first", "turns", "rows", "mla"])
    if kind == "mla":
        spec: Any = MLAAttentionSpec(
            block_size=block_size, num_kv_heads=1, head_size=head_size, dtype=dtype
        )
    else:
        spec = FullAttentionSpec(
            block_size=block_size, num_kv_heads=heads, head_size=head_size, dtype=dtype
        )
    known = {
        "block_size": block_size,
        "num_kv_heads": spec.num_heads,
        "head_size": head_size,
        "num_states": spec.num_states,
        "content_bytes": spec.state_content_size_bytes,
        "mla": kind == "mla",
    }
    if kind in ("rows", "mla"):
        content = spec.state_content_size_bytes // dtype.itemsize
        gap = rng.choice([0, 0, 5 * content])
        return strided([blocks, spec.num_heads, spec.num_states, content], gap, dtype), spec, known
    kernel = rng.choice([1, 1, 2]) if block_size > 4 else 1
    inner = [block_size // kernel, heads] if rng.random() < 0.5 else [heads, block_size // kernel]
    outer = [2, blocks * kernel] if kind == "first" else [blocks * kernel, 2]
    return strided([*outer, *inner, head_size], 0, dtype), spec, known


def geometry_of(cache: torch.Tensor, known: dict[str, Any]) -> _core.BlockGeometry:
    shape, strides = list(cache.shape), list(cache.stride())
    return _core.BlockGeometry.find(shape, strides, cache.element_size(), **known)


def as_lists(arrays: Any) -> tuple[list[int], ...]:
    return tuple(memoryview(array).tolist() for array in arrays)


def merged(plan: tuple[list[int], list[int], list[int]]) -> tuple[list[int], ...]:
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_layout

    return tuple(moriio_layout.merge_contiguous_offsets(*plan))


def test_plans_are_those_of_vllm(rng: random.Random) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_layout

    cache, spec, known = some_cache(rng)
    ours = geometry_of(cache, known)
    theirs = moriio_layout.get_layer_transfer_geometry(LAYER, cache, {LAYER: spec})
    assert ours.num_blocks == theirs.num_blocks
    assert ours.block_len == theirs.block_len

    remote_blocks = ours.num_blocks + rng.randint(-1, 30)
    count = rng.randint(0, min(ours.num_blocks, remote_blocks) - 1)
    local = rng.sample(range(1, ours.num_blocks), min(count, ours.num_blocks - 1))
    remote = rng.sample(range(1, remote_blocks), count)
    if rng.random() < 0.5:
        local.sort()
        remote.sort()
    local = local[: rng.randint(0, len(local))] if rng.random() < 0.2 else local
    layout = _core.RunTemplate.of(ours, ours.with_num_blocks(remote_blocks))
    plan = as_lists(_core.plan_blocks(layout, local, remote))
    expected = moriio_layout.compute_block_transfer_offsets(
        LAYER, cache, {LAYER: spec}, local, remote, remote_blocks
    )
    assert plan == expected


def test_registrations_cover_what_vllm_registers(rng: random.Random) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_layout

    cache, spec, known = some_cache(rng)
    ours = geometry_of(cache, known)
    regions = moriio_layout.iter_layer_registration_regions(LAYER, cache, {LAYER: spec})
    end = max(
        region.storage_offset() * region.element_size() + length for region, length in regions
    )
    assert ours.extent == end


@pytest.mark.parametrize(
    ("local", "remote", "remote_blocks"), [([1, 8], [1, 2], 8), ([1], [8], 8), ([1, 2], [1], 8)]
)
def test_what_vllm_refuses_is_refused(
    local: list[int], remote: list[int], remote_blocks: int
) -> None:
    import torch
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_layout
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    cache = strided([2, 8, 4, 2, 3], 0, torch.bfloat16)
    spec = FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=3, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"outside|longer"):
        moriio_layout.compute_block_transfer_offsets(
            LAYER, cache, {LAYER: spec}, local, remote, remote_blocks
        )
    ours = geometry_of(cache, {"block_size": 4, "num_kv_heads": 2, "head_size": 3})
    layout = _core.RunTemplate.of(ours, ours.with_num_blocks(remote_blocks))
    with pytest.raises(ValueError, match=r"outside|local blocks for"):
        _core.plan_blocks(layout, local, remote)


def test_states_of_a_page_are_those_of_vllm(rng: random.Random) -> None:
    """Theirs come part by part and unmerged; the bytes are the same."""
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_layout

    slots, stride = rng.randint(3, 20), rng.choice([4096, 6000])
    sizes = [rng.randint(1, 500) for _ in range(rng.choice([1, 3]))]
    parts = [(sum(sizes[:i]), size) for i, size in enumerate(sizes)]
    ssm_bytes = rng.randint(1, 2000)
    template = moriio_layout.MambaOffsetTemplate(
        slots, stride, stride, ssm_bytes, tuple((at, at, size) for at, size in parts)
    )
    count = rng.randint(0, slots - 1)
    local = rng.sample(range(1, slots), count)
    remote = rng.sample(range(1, slots), count)
    plan = moriio_layout.apply_mamba_offset_template(template, local, remote)
    split = count * len(parts)
    conv_layout = _core.RunTemplate.of_states((slots, stride, parts), (slots, stride, parts))
    ssm = (slots, stride, [(0, ssm_bytes)])
    ssm_layout = _core.RunTemplate.of_states(ssm, ssm)
    conv_plan = tuple(column[:split] for column in plan)
    ssm_plan = tuple(column[split:] for column in plan)
    assert as_lists(_core.plan_blocks(conv_layout, local, remote)) == merged(conv_plan)
    assert as_lists(_core.plan_blocks(ssm_layout, local, remote)) == merged(ssm_plan)


def test_ports_and_ranks_are_those_of_vllm() -> None:
    """Where one of the two parallel sizes is 1; elsewhere binders and dialers of 0.32 disagree."""
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_common as common
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_connector as connector

    for tp_size in (1, 2, 8):
        for tp in range(tp_size):
            assert _core.moriio_rank_port(6301, 0, tp, tp_size) == 6301 + common.get_port_offset(
                0, tp
            )
    for dp in range(8):
        assert _core.moriio_rank_port(6301, dp, 0, 1) == 6301 + common.get_port_offset(dp, 0)
    for local in (1, 2, 3, 4, 6, 8):
        for remote in (1, 2, 3, 4, 6, 8):
            if local % remote and remote % local:
                with pytest.raises(ValueError, match="divide"):
                    _core.moriio_remote_tp_rank(0, local, remote)
                continue
            for rank in range(local):
                assert _core.moriio_remote_tp_rank(
                    rank, local, remote
                ) == connector.get_moriio_remote_tp_rank(rank, local, remote)
            assert _core.moriio_expected_ack_count(
                local, remote
            ) == connector.get_moriio_expected_ack_count(local, remote)


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "fe80::1", "prefill-0.svc"])
def test_request_ids_are_read_by_both(host: str) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_common as common

    prefill, decode = (host, 6301, 61005), (host, 6401, 61105)
    unique = "0123456789abcdef" * 2
    plain = _core.moriio_format_request_id(prefill, decode, unique)
    for request_id in (plain, f"cmpl-{plain}-0-9f8e7d6c"):
        assert _core.moriio_parse_request_id(request_id) == (prefill, decode)
        for is_producer, address in ((True, decode), (False, prefill)):
            text = common.get_peer_zmq_from_request_id(request_id, is_producer)
            assert text is not None
            assert common.parse_moriio_zmq_address(text) == address
            assert _core.moriio_parse_zmq_address(text) == address


def test_handshake_payloads_are_read_by_both() -> None:
    import msgspec
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_common import (
        MoRIIOAgentMetadata,
    )

    fields = {
        "engine_id": "10.0.0.1:6301",
        "agent_metadata": b"\1\2",
        "kv_caches_base_addr": [2**47, 7],
        "num_blocks": 16,
        "block_len": 4096,
        "attn_backend_name": "X",
    }
    theirs = msgspec.msgpack.encode(MoRIIOAgentMetadata(**fields))
    assert _core.moriio_encode_agent_metadata(fields) == theirs
    assert _core.moriio_decode_agent_metadata(theirs) == fields
    extra = {**fields, "version": 1, "compat": {"dtype": "bfloat16"}, "tp_size": 2}
    decoder = msgspec.msgpack.Decoder(MoRIIOAgentMetadata)
    assert decoder.decode(_core.moriio_encode_agent_metadata(extra)) == MoRIIOAgentMetadata(
        **fields
    )


def test_notifications_are_taken_by_vllm() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_common as common
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_engine as engine

    extras = {"version": 1, "token": "t", "first_block": 3, "tp_size": 2, "tp_rank": 1}
    before = common.get_role()
    try:
        common.set_role(common.ROLE.PRODUCER)
        producer = engine.MoRIIOWrapper()
        blocks = {
            "type": "remote_blocks",
            "req_id": "r",
            "transfer_id": "tx-1",
            "block_notify_list": [4, 5],
            "decode_rank": 3,
        }
        producer._handle_message(_core.moriio_encode_notify({**blocks, **extras}))
        info = producer.done_remote_allocate_req_dict["tx-1"]
        assert info.block_ids == [4, 5]
        assert info.decode_dp_rank == 3
        release = {"type": "release", "transfer_id": "tx-1", "consumer_tp_size": 8}
        producer._handle_message(_core.moriio_encode_notify({**release, **extras}))
        assert list(producer.pop_finished_req_ids()) == [common.MoRIIOTransferAck("tx-1", 8)]

        common.set_role(common.ROLE.CONSUMER)
        consumer = engine.MoRIIOWrapper()
        done = {"type": "write_done", "transfer_id": "tx-1"}
        consumer._handle_message(_core.moriio_encode_notify({**done, **extras}))
        assert list(consumer.pop_finished_write_req_ids()) == ["tx-1"]
    finally:
        common.set_role(before)
