"""Arguments of the engines, prompts, and what the proxy would send with each leg."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .engine import Job

BLOCK = 32


def free_ports(count: int) -> list[int]:
    """Distinct ports that nobody listens on; they are bound all at once to be distinct."""
    sockets = []
    try:
        for _ in range(count):
            found = socket.socket()
            found.bind(("127.0.0.1", 0))
            sockets.append(found)
        return [found.getsockname()[1] for found in sockets]
    finally:
        for found in sockets:
            found.close()


def prompt(seed: int, length: int) -> list[int]:
    """A prompt of random bytes; one seed, one prompt, and a longer one goes on where it ends."""
    numbers = random.Random(seed)
    return [numbers.randrange(256) for _ in range(length)]


@dataclass
class Setup:
    """One engine: its model and, but for the monolithic one, its connector."""

    model: Path
    role: str | None = None
    connector: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ports = free_ports(3)

    @property
    def extra_config(self) -> dict[str, Any]:
        http, handshake, notify = self.ports
        return {
            "host_ip": "127.0.0.1",
            "http_port": http,
            "handshake_port": handshake,
            "notify_port": notify,
            **self.extra,
        }

    def arguments(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "model": str(self.model),
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "max_model_len": 1024,
            "max_num_seqs": 64,
            "block_size": BLOCK,
            "kv_cache_memory_bytes": 32 << 20,
            "dtype": "bfloat16",
            "seed": 0,
            **self.engine,
        }
        if self.role is not None:
            from vllm.config import KVTransferConfig

            found["kv_transfer_config"] = KVTransferConfig(
                kv_connector="MoRIIOConnector",
                kv_role=self.role,
                kv_connector_extra_config=self.extra_config,
                **self.connector,
            )
        return found

    def address(self) -> dict[str, Any]:
        """Where a peer finds this engine, as keys of kv_transfer_params."""
        _, handshake, notify = self.ports
        return {
            "remote_engine_id": f"127.0.0.1:{handshake}",
            "remote_host": "127.0.0.1",
            "remote_handshake_port": handshake,
            "remote_notify_port": notify,
            "remote_dp_size": 1,
            "remote_tp_size": 1,
            "remote_dp_rank": 0,
        }


def prefill_job(name: str, tokens: list[int], peer: Setup | None = None, **sampling: Any) -> Job:
    """The prefill leg: one token. `peer` is the decode engine, which write mode must know."""
    params: dict[str, Any] = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": f"tx-{name}",
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_dp_size": 1,
        "remote_tp_size": 1,
    }
    if peer is not None:
        params |= {**peer.address(), "remote_block_ids": []}
    return Job(name, tokens, 1, params, sampling)


def decode_job(
    name: str, tokens: list[int], count: int, params: dict[str, Any], **sampling: Any
) -> Job:
    """The decode leg with what the prefill leg answered, or with the prefill engine's address."""
    return Job(name, tokens, count, params, sampling)


def write_params(name: str, peer: Setup) -> dict[str, Any]:
    """The decode leg of write mode, which starts together with the prefill leg."""
    return {
        **peer.address(),
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "transfer_id": f"tx-{name}",
        "remote_block_ids": [],
    }
