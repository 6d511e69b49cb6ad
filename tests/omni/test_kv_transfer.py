"""KV payloads, the map of ranks and the manager against vLLM-Omni's own code."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stagelink import _core
from stagelink.kv_transfer import KvTransferManager

OMNI = "vllm_omni.distributed.omni_connectors"
# Packages whose modules are imported, and whose __init__, which needs everything, is not run.
PARTS = (
    "vllm_omni",
    "vllm_omni.entrypoints",
    "vllm_omni.platforms",
    "vllm_omni.platforms.npu",
    "vllm_omni.distributed",
    OMNI,
    OMNI + ".utils",
    "vllm_omni.config",
    "vllm_omni.diffusion",
    "vllm_omni.diffusion.sched",
)


@pytest.fixture
def omni_kv() -> Iterator[Any]:
    """The module of vLLM-Omni's manager; afterwards nothing of it is left."""
    found = importlib.util.find_spec("vllm_omni")
    if found is None or found.origin is None:
        pytest.skip("vllm-omni is not installed here; tests/omni/run.sh says how")
    root = Path(found.origin).parent
    before = {name: module for name, module in sys.modules.items() if name.startswith("vllm_omni")}
    for name in before:
        del sys.modules[name]
    for name in PARTS:
        module: Any = types.ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    sys.modules["vllm_omni.platforms"].current_omni_platform = None  # type: ignore[attr-defined]
    request: Any = types.ModuleType("vllm_omni.diffusion.request")
    request.OmniDiffusionRequest = types.SimpleNamespace(is_dummy_run_request_id=lambda _: False)
    interface: Any = types.ModuleType("vllm_omni.diffusion.sched.interface")
    interface.KVPrefetchJob = dict
    sys.modules[request.__name__], sys.modules[interface.__name__] = request, interface
    yield importlib.import_module(OMNI + ".kv_transfer_manager")
    for name in [name for name in sys.modules if name.startswith("vllm_omni")]:
        del sys.modules[name]
    sys.modules.update(before)


def _layers(dtype: torch.dtype, heads: int = 4) -> list[Any]:
    """A cache in each of the forms that backends have, of 9 blocks of 8 tokens."""
    bits = torch.randint(0, 255, (5, 2, 9, 8, heads, 6 * dtype.itemsize), dtype=torch.uint8)
    all_kv = bits.view(dtype)
    packed = torch.cat([all_kv[2, 0], all_kv[2, 1]], dim=-1).transpose(1, 2).contiguous()
    flipped = [all_kv[3, at].transpose(1, 2).contiguous().transpose(1, 2) for at in (0, 1)]
    return [
        all_kv[0].contiguous(),
        all_kv[1].transpose(0, 1).contiguous(),
        packed,
        (flipped[0], flipped[1]),
        all_kv[4].contiguous().transpose(3, 4).contiguous().transpose(3, 4),  # Elements apart.
    ]


def _theirs(omni: Any, layers: list[Any], blocks: list[int], tokens: int) -> Any:
    manager = omni.OmniKVTransferManager(omni.OmniKVCacheConfig())
    return manager._extract_kv_cache("r-\u00e9", blocks, tokens, layers, 8, "auto", {"a": [1.5]})


def _same(ours: Any, theirs: Any) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    bits = [t.contiguous().view(torch.uint8) for t in (ours, theirs)]
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(*bits)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int8]
)
def test_unaligned_payloads_are_byte_for_byte_vllm_omnis(omni_kv: Any, dtype: Any) -> None:
    layers = _layers(dtype)
    for blocks, tokens in (([3, 4, 1, 8], 29), ([0], 8), ([5, 2], 1)):
        theirs = _theirs(omni_kv, layers, blocks, tokens)
        plan = _core.kv_plan(
            _core.kv_layers(layers, 8),
            theirs.request_id,
            blocks,
            tokens,
            json.dumps(theirs.metadata, separators=(",", ":")),
            align=1,
        )
        assert plan.to_bytes() == theirs.to_bytes()


def test_aligned_payloads_are_read_by_vllm_omni_as_its_own(omni_kv: Any) -> None:
    layers = [*_layers(torch.bfloat16), None]
    blocks, tokens = [3, 4, 1, 8], 29
    theirs = _theirs(omni_kv, layers[:-1], blocks, tokens)
    text = json.dumps(theirs.metadata, separators=(",", ":"))
    plan = _core.kv_plan(_core.kv_layers(layers, 8), "r-\u00e9", blocks, tokens, text)
    assert plan.data_offset % 64 == 0
    raw = bytearray(plan.to_bytes())
    read = omni_kv.KVCacheTransferData.from_bytes(raw)
    assert read["request_id"] == "r-\u00e9" and read["block_ids"] == blocks
    assert read["metadata"] == theirs.metadata
    for name in ("key_cache", "value_cache"):
        assert read["layer_blocks"][name][-1] is None
        for at, tensor in enumerate(theirs.layer_blocks[name]):
            assert _same(read["layer_blocks"][name][at], tensor), f"{name} {at}"
    device = omni_kv.KVCacheTransferData.from_bytes_device(torch.frombuffer(raw, dtype=torch.uint8))
    assert _same(device["layer_blocks"]["key_cache"][2], theirs.layer_blocks["key_cache"][2])


def test_a_share_of_the_heads_is_what_vllm_omni_slices(omni_kv: Any) -> None:
    layers, blocks, tokens = _layers(torch.float16), [3, 4, 1, 8], 29
    theirs = _theirs(omni_kv, layers, blocks, tokens)
    utils = importlib.import_module(OMNI + ".utils.kv_utils")
    made = _core.kv_layers(layers, 8)
    for offset in range(2):
        wanted = utils.slice_layer_blocks(theirs.layer_blocks, offset, 2)
        plan = _core.kv_plan(made, "r", blocks, tokens, "{}", (offset, 1, 2))
        read = omni_kv.KVCacheTransferData.from_bytes(bytearray(plan.to_bytes()))["layer_blocks"]
        for name in wanted:
            assert all(_same(a, b) for a, b in zip(read[name], wanted[name], strict=True))


def test_vllm_omnis_payloads_are_joined_as_it_joins_them(omni_kv: Any) -> None:
    utils = importlib.import_module(OMNI + ".utils.kv_utils")
    shards = [_theirs(omni_kv, _layers(torch.bfloat16), [3, 4, 1, 8], 29) for _ in range(2)]
    payloads = [shard.to_bytes() for shard in shards]
    wanted = utils.merge_received_rank_shards(
        [omni_kv.KVCacheTransferData.from_bytes(bytearray(raw)) for raw in payloads]
    )
    merge = _core.kv_merge(payloads, _core.KvRankMap(2, 1).gets(0), "r-\u00e9", 0)
    memory = torch.zeros(merge.nbytes, dtype=torch.uint8)
    for at, raw in enumerate(payloads):
        merge.place(at, raw, memory)
    for is_value, layer, dtype, shape, offset, nbytes in merge.tensors:
        ours = memory[offset : offset + nbytes].view(getattr(torch, dtype)).reshape(shape)
        name = "value_cache" if is_value else "key_cache"
        assert _same(ours, wanted["layer_blocks"][name][layer]), f"{name} {layer}"
    assert merge.block_ids[0] == wanted["block_ids"]
    assert json.loads(merge.metadata[0]) == wanted["metadata"]


WRONG = {
    "header_len": lambda raw: raw[:2] + b"\xff\xff" + raw[4:],
    "tensor span": lambda raw: raw[:-1],
    "Unsupported dtype": lambda raw: raw.replace(b'"d":"float16"', b'"d":"no_such"'),
    "Invalid KV tensor name": lambda raw: raw.replace(
        b'"n":"key_cache_0","i":0', b'"n":"keys"'.ljust(len(b'"n":"key_cache_0","i":0'))
    ),
    "missing 4-byte header": lambda raw: raw[:3],
}


@pytest.mark.parametrize("text", list(WRONG))
def test_what_is_wrong_is_refused_in_the_same_words(omni_kv: Any, text: str) -> None:
    raw = WRONG[text](_theirs(omni_kv, _layers(torch.float16), [3], 8).to_bytes())
    with pytest.raises(ValueError) as theirs:  # noqa: PT011
        omni_kv.KVCacheTransferData.from_bytes(bytearray(raw))
    routes = _core.KvRankMap(1, 1).gets(0)
    with pytest.raises(Exception, match=text) as ours:
        _core.kv_merge([raw], routes, "r-\u00e9", 0)
    assert text in str(theirs.value) and str(theirs.value) in str(ours.value)


def test_keys_and_ranks_are_vllm_omnis_wherever_heads_have_no_copies(omni_kv: Any) -> None:
    utils = importlib.import_module(OMNI + ".utils.kv_utils")
    for from_tp, to_tp in ((1, 1), (4, 4), (4, 2), (2, 4), (1, 4), (4, 1), (8, 2), (2, 8)):
        ours = _core.KvRankMap(from_tp, to_tp)
        for rank in range(from_tp):
            topo = utils.KVTPTopology(from_tp, to_tp, rank)
            routes = ours.sends(rank)
            assert [to for to, _, _ in routes] == utils.get_kv_target_ranks(topo)
            keys = [ours.key("req", "0", "1", rank, to) for to, _, _ in routes]
            assert keys == utils.build_rank_aware_send_keys("req", "0", "1", topo)
        for rank in range(to_tp):
            topo = utils.KVTPTopology(from_tp, to_tp, rank)
            wanted = utils.build_rank_aware_recv_keys("req", "0", "1", topo)
            found = [(ours.key("req", "0", "1", one, rank), one) for one, _, _ in ours.gets(rank)]
            assert [key for key, _ in found] == [key for key, _ in wanted]
    for sizes in ((4, 3), (3, 2)):
        with pytest.raises(ValueError, match="must be divisible"):
            utils.validate_kv_tp_topology(utils.KVTPTopology(*sizes, 0))
        with pytest.raises(ValueError, match="must be divisible"):
            _core.KvRankMap(*sizes)


class Shelf:
    """A connector of one process: what is put is there once."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str, str], Any] = {}

    def put(self, from_stage: str, to_stage: str, put_key: str, data: Any) -> Any:
        self.stored[from_stage, to_stage, put_key] = data
        return True, len(data), None

    def get(self, from_stage: str, to_stage: str, get_key: str, metadata: Any = None) -> Any:
        data = self.stored.pop((from_stage, to_stage, get_key), None)
        return None if data is None else (data, len(data))

    def health(self) -> dict[str, Any]:
        return {"status": "healthy"}

    def close(self) -> None:
        pass


def _config(role: str, rank: int, sizes: tuple[int, int]) -> dict[str, Any]:
    return {
        "need_send_cache": role == "sender",
        "need_recv_cache": role == "receiver",
        "omni_from_stage": "0",
        "omni_to_stage": "1",
        "stage_id": 0 if role == "sender" else 1,
        "engine_input_source": [0],
        "rank_mapping": {"from_tp": sizes[0], "to_tp": sizes[1]},
        "recv_timeout": 10.0,
        "tp_rank": rank,
        "async_send": False,
    }


def _their_manager(omni: Any, shelf: Shelf, role: str, rank: int, sizes: tuple[int, int]) -> Any:
    config = {
        k: v for k, v in _config(role, rank, sizes).items() if k not in ("tp_rank", "async_send")
    }
    manager = omni.OmniKVTransferManager._create(config)
    utils = importlib.import_module(OMNI + ".utils.kv_utils")
    manager._connector = shelf
    manager._tp_topo = utils.KVTPTopology(*sizes, rank)
    return manager


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (4, 2), (2, 4), (1, 4), (4, 1)])
@pytest.mark.parametrize("sender_is_ours", [True, False])
def test_the_two_managers_understand_each_other(
    omni_kv: Any, sizes: tuple[int, int], sender_is_ours: bool
) -> None:
    shelf = Shelf()
    whole = [layer for layer in _layers(torch.bfloat16, heads=8)[:1]]
    blocks, tokens = [3, 4, 1, 8], 29
    for rank in range(sizes[0]):
        each = 8 // sizes[0]
        layers = [layer[..., rank * each : (rank + 1) * each, :].contiguous() for layer in whole]
        request = {"r": {"block_ids": blocks, "seq_len": tokens}}
        if sender_is_ours:
            with KvTransferManager(_config("sender", rank, sizes), connector=shelf) as manager:
                done = manager.handle_finished_requests_kv_transfer(request, layers, 8, "bfloat16")
        else:
            manager = _their_manager(omni_kv, shelf, "sender", rank, sizes)
            manager.config.connector_config = {"type": "x"}
            done = manager.handle_finished_requests_kv_transfer(request, layers, 8, "bfloat16")
        assert done == ["r"]
    wanted = whole[0][:, blocks].flatten(1, 2)[:, :tokens]
    for rank in range(sizes[1]):
        if sender_is_ours:
            data, _ = _their_manager(
                omni_kv, shelf, "receiver", rank, sizes
            ).receive_kv_cache_for_request("r")
        else:
            with KvTransferManager(_config("receiver", rank, sizes), connector=shelf) as manager:
                data, _ = manager.receive_kv_cache_for_request("r")
        each = 8 // sizes[1]
        for at, name in enumerate(("key_cache", "value_cache")):
            part = wanted[at][:, rank * each : (rank + 1) * each]
            assert _same(data["layer_blocks"][name][0], part), f"rank {rank} {name}"
    assert not shelf.stored
