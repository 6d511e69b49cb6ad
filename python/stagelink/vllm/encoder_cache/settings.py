"""``ec_connector_extra_config`` and what else of vLLM's configuration the connector goes by."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..fingerprint import architecture, is_path

if TYPE_CHECKING:
    from vllm.config import VllmConfig


@dataclass(frozen=True)
class CacheSettings:
    """What the two halves have in common."""

    extra: dict[str, Any]
    registry_url: str | None
    buffer_device: str
    tp_size: int
    sync_after_transfer: bool
    is_push: bool = False
    consumer_port: int = 0

    def producer_json(self) -> str:
        """A producer that is told of a registry publishes there; else it has its own. In push mode
        `zmq_port` is the consumer's."""
        return json.dumps({**self.extra, "zmq_port": 0} if self.is_push else self.extra)

    def fetcher_json(self) -> str:
        port = self.consumer_port if self.is_push else 0
        return json.dumps({**self.extra, "zmq_port": port, "rpc_port": 0})

    def worker_json(self) -> str:
        """Workers read into tensors: their pool holds next to nothing."""
        own = {"zmq_port": 0, "rpc_port": 0, "buffer_size": "1MiB"}
        return json.dumps({**self.extra, **own})


def read_settings(vllm_config: VllmConfig) -> CacheSettings:
    from vllm.utils.network_utils import get_ip

    ec_config = vllm_config.ec_transfer_config
    assert ec_config is not None
    parallel = vllm_config.parallel_config
    extra = dict(ec_config.ec_connector_extra_config)
    extra.setdefault("host", get_ip())
    extra.setdefault("identity", identity_of(vllm_config))
    extra["buffer_size"] = int(ec_config.ec_buffer_size)
    if extra.get("registry_http_port", 9018):
        port = int(extra.get("registry_http_port", 9018))
        extra["registry_http_port"] = port + parallel.data_parallel_index
    url = extra.get("remote_registry_url")
    is_push = extra.get("ec_mode") == "push"
    consumer_port = int(extra.get("zmq_port") or ec_config.ec_port)
    buffer = ec_config.ec_buffer_device
    sync = os.environ.get("VLLM_MOONCAKE_SYNC_AFTER_TRANSFER", "0").lower()
    return CacheSettings(
        extra=extra,
        registry_url=str(url) if url else None,
        buffer_device=buffer.lower() if isinstance(buffer, str) and buffer else "cuda",
        tp_size=parallel.tensor_parallel_size,
        sync_after_transfer=sync in ("1", "true"),
        is_push=is_push,
        consumer_port=consumer_port + parallel.data_parallel_index,
    )


def identity_of(vllm_config: VllmConfig) -> str:
    """What producer and consumer must have in common for one's embeddings to be the other's."""
    import vllm

    model = vllm_config.model_config
    name = architecture(vllm_config) if is_path(model.model) else model.model
    dtype = str(model.dtype).removeprefix("torch.")
    return (
        f"model {name}, revision {model.revision or 'default'}, "
        f"quantization {model.quantization or 'none'}, dtype {dtype}, "
        f"width {model.get_hidden_size()}, vLLM {vllm.__version__}"
    )
