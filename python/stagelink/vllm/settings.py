"""``kv_connector_extra_config`` and what else of vLLM's configuration the connector goes by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._core import moriio_options
from ..pull.log_limit import quiet_logger
from .groups import Group

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = quiet_logger("vllm.stagelink.moriio")


@dataclass(frozen=True)
class Settings:
    """Names, defaults and ranges are those of docs/connectors/moriio.md; times in seconds."""

    host_ip: str
    handshake_port: int
    notify_port: int
    http_port: int
    proxy_ip: str
    proxy_ping_port: int
    secret_file: str
    read_mode: bool
    async_load: bool
    early_push: bool
    backend: str
    shared_cache: bool
    transfer_timeout: float
    defer_timeout: float
    recv_abort_timeout: float
    handshake_timeout: float
    lease_margin: float

    @property
    def engine_id(self) -> str:
        return f"{self.host_ip}:{self.handshake_port}"


def read(extra: Mapping[str, Any], default_host: str) -> Settings:
    """Raises InvalidArgument, naming the key."""
    values, notes = moriio_options(dict(extra))
    for note in notes:
        logger.warning("%s", note)
    values["host_ip"] = values["host_ip"] or default_host
    return Settings(**{name: values[name] for name in Settings.__dataclass_fields__})


@dataclass(frozen=True)
class EnginePlace:
    """Where this process stands in its engine."""

    tp_rank: int
    tp_size: int
    dp_rank: int
    dp_size: int
    dp_size_local: int

    @property
    def dp_local(self) -> int:
        return self.dp_rank % self.dp_size_local if self.dp_size_local else self.dp_rank


def place_of(vllm_config: VllmConfig, tp_rank: int) -> EnginePlace:
    parallel = vllm_config.parallel_config
    if getattr(parallel, "pipeline_parallel_size", 1) > 1:
        raise NotImplementedError("MoRIIOConnector does not work with pipeline parallelism")
    return EnginePlace(
        tp_rank=tp_rank,
        tp_size=parallel.tensor_parallel_size,
        dp_rank=parallel.data_parallel_rank,
        dp_size=parallel.data_parallel_size,
        dp_size_local=parallel.data_parallel_size_local,
    )


def groups_of(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> tuple[Group, ...]:
    """The groups that take part in transfers. Raises NotImplementedError for a kind of cache whose
    blocks cannot be moved each for itself."""
    from vllm.v1.kv_cache_interface import (
        AttentionSpec,
        ChunkedLocalAttentionSpec,
        SlidingWindowSpec,
        UniformTypeKVCacheSpecs,
    )

    groups = []
    for group in kv_cache_config.transfer_groups:
        spec = group.kv_cache_spec
        if isinstance(spec, UniformTypeKVCacheSpecs):
            spec = spec.first_spec
        if not isinstance(spec, AttentionSpec) or isinstance(spec, ChunkedLocalAttentionSpec):
            raise NotImplementedError(
                f"MoRIIOConnector does not move caches of {type(spec).__name__};"
                " turn KV transfer off for these layers"
            )
        window = spec.sliding_window if isinstance(spec, SlidingWindowSpec) else 0
        size = spec.block_size
        if spec.dcp_sharded:
            size *= vllm_config.parallel_config.decode_context_parallel_size
        groups.append(Group(size, window))
    return tuple(groups)
