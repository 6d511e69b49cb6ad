"""What two engines must have in common so that one's cache can be used by the other."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


def describe(
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    caches: Mapping[str, torch.Tensor],
    tp_size: int,
) -> dict[str, str]:
    """By field name; a mismatch is told by that name. Sizes of one rank are left out: they differ
    where TP does, and the plan of each layer checks them."""
    model = vllm_config.model_config
    first = next(iter(caches.values()))
    dtype = str(first.dtype).removeprefix("torch.")
    sizes = sorted({group.kv_cache_spec.block_size for group in kv_cache_config.transfer_groups})
    on_cpu = first.device.type == "cpu"
    return {
        "model": model.model if not is_path(model.model) else architecture(vllm_config),
        "revision": str(model.revision or "default"),
        "quantization": str(model.quantization or "none"),
        "dtype": dtype,
        "cache_format": cache_format(str(vllm_config.cache_config.cache_dtype), dtype),
        "block_size": ",".join(map(str, sizes)),
        "layout": str(kv_cache_config.kv_cache_layout or "default"),
        "attn_backend": attention_backends(vllm_config, list(caches)),
        "isa": cpu_isa() if on_cpu else first.device.type,
        "kv_heads": str(model.get_total_num_kv_heads()),
        "head_dim": str(model.get_head_size()),
        "layers": str(len(caches)),
        "tp_size": str(tp_size),
        "speculative": speculation(vllm_config),
    }


def cache_format(said: str, dtype: str) -> str:
    """What the elements mean: quantized caches of any kind are tensors of bytes."""
    if dtype not in ("uint8", "int8"):
        return dtype
    return "fp8_e4m3" if said == "fp8" else said


def speculation(vllm_config: VllmConfig) -> str:
    """How tokens are guessed: caches hold the layers of a draft model too."""
    config = vllm_config.speculative_config
    if config is None:
        return "no"
    draft = str(getattr(config, "model", None) or "")
    name = "" if is_path(draft) else draft
    return f"{config.method}/{config.num_speculative_tokens}/{name}"


def is_path(model: str) -> bool:
    """A folder's name says nothing: the same model lies elsewhere on another host."""
    return model.startswith(("/", "./", "../", "~"))


def architecture(vllm_config: VllmConfig) -> str:
    """What a model in a folder is: its architecture and the sizes of its configuration."""
    config = vllm_config.model_config.hf_text_config
    names = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    return "/".join(f"{getattr(config, name, '')}" for name in names)


def attention_backends(vllm_config: VllmConfig, layers: list[str]) -> str:
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends

    found = get_current_attn_backends(vllm_config, layers)
    return ",".join(sorted(backend.get_name() for backend in found))


def cpu_isa() -> str:
    """The instruction set for which CPU caches are packed: that of the kernels vLLM has loaded."""
    import torch

    return f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}"
