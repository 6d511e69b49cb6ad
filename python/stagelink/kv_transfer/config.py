"""What a KV transfer manager is told."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ..errors import InvalidArgument
from ..omni_config import OmniTransferConfig
from ..pull import arguments

__all__ = ["KvTransferConfig"]

# Keys of `omni_kv_config` that have other names here, or mean nothing to the manager.
_RENAMED = {"omni_from_stage": "from_stage", "omni_to_stage": "to_stage"}
_LARGEST = 2**31 - 1
_INTEGERS = {
    "from_tp": (1, 65536),
    "to_tp": (1, 65536),
    "kv_heads": (0, _LARGEST),
    "tp_rank": (-1, 65535),
    "replica_id": (0, _LARGEST),
    "send_threads": (1, 1024),
    "send_queue": (1, _LARGEST),
    "max_prefetch": (1, _LARGEST),
}
_FLAGS = ("need_send_cache", "need_recv_cache", "enable_kv_async_prefetch", "mla", "async_send")
_LAYOUTS = ("auto", "kv_first", "interleaved", "rows")
_NOT_OURS = frozenset({"kv_transfer_criteria", "kv_prefetch_min_free_mem_ratio", "rank_mapping"})


@dataclass
class KvTransferConfig:
    """One rank of a stage that sends or receives KV caches.

    ``from_dict`` reads the keys of vLLM-Omni's ``omni_kv_config``; those behind ``tp_rank`` are
    ours.
    """

    connector_config: dict[str, Any] | None = None
    """``type``, the connector's name, and what its constructor is given."""
    from_stage: str | None = None
    to_stage: str | None = None
    stage_id: str | int | None = None
    engine_input_source: Sequence[str | int] = ()
    need_send_cache: bool = False
    need_recv_cache: bool = False
    recv_timeout: float = 30.0
    """Seconds that a receive waits for all its payloads."""
    from_tp: int = 1
    to_tp: int = 1
    enable_kv_async_prefetch: bool = False
    tp_rank: int = -1
    """Which rank of its stage this is; -1: as vLLM or ``LOCAL_RANK`` say."""
    kv_heads: int = 0
    """KV heads of the whole model; 0: not known, and at least as many as ranks."""
    mla: bool = False
    """One latent row for a token instead of keys and values by heads: it moves whole."""
    kv_layout: str = "auto"
    """How a layer's tensor is read where two ways fit: ``kv_first``, ``interleaved``, ``rows``."""
    window_size: int = -1
    """Payloads that are put and not yet consumed; -1: any number."""
    max_inflight: int = -1
    """Puts that run at a time; -1: as many as there are ``send_threads``."""
    async_send: bool = True
    """Put on threads of the manager's; else the call that hands requests over waits."""
    send_threads: int = 2
    send_queue: int = 256
    """Requests that wait to be put. More of them fail as ``busy``."""
    send_timeout: float = 30.0
    """Seconds that a request may take from being handed over to its last put."""
    max_prefetch: int = 8
    """Prefetched requests that nobody has consumed."""
    replica_id: int = field(default_factory=lambda: _replica_id())

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name, (lowest, highest) in _INTEGERS.items():
            setattr(self, name, arguments.integer(name, getattr(self, name), lowest, highest))
        for name in ("window_size", "max_inflight"):
            value = arguments.integer(name, getattr(self, name), -1, _LARGEST)
            if value == 0:
                arguments.refuse(name, value, "-1 (no limit), or 1 and more")
            setattr(self, name, value)
        for name in _FLAGS:
            arguments.flag(name, getattr(self, name))
        for name in ("recv_timeout", "send_timeout"):
            arguments.seconds(name, getattr(self, name), positive=True)
        if self.kv_layout not in _LAYOUTS:
            arguments.refuse("kv_layout", self.kv_layout, "one of " + ", ".join(_LAYOUTS))
        if self.connector_config is not None:
            arguments.mapping("connector_config", self.connector_config)
        for name in ("from_stage", "to_stage", "stage_id"):
            if getattr(self, name) is not None:
                arguments.utf8(name, arguments.stage(name, getattr(self, name)))
        for source in arguments.items("engine_input_source", self.engine_input_source):
            arguments.stage("engine_input_source", source)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> KvTransferConfig:
        """Read the keys of ``omni_kv_config``. Raises ``InvalidArgument`` for unknown ones."""
        given: dict[str, Any] = {}
        known = {one.name for one in fields(cls)}
        for key, value in arguments.mapping("omni_kv_config", values).items():
            name = _RENAMED.get(key, key)
            if name in known:
                given[name] = value
            elif key not in _NOT_OURS:
                near = difflib.get_close_matches(key, [*known, *_RENAMED, *_NOT_OURS], 1)
                hint = f"; did you mean `{near[0]}`?" if near else ""
                raise InvalidArgument(f"omni_kv_config: unknown key `{key}`{hint}", "unknown_key")
        mapping = values.get("rank_mapping") or {}
        if not isinstance(mapping, Mapping) or not set(mapping) <= {"from_tp", "to_tp"}:
            raise InvalidArgument(f"rank_mapping holds from_tp and to_tp, found {mapping!r}")
        if mapping and len(mapping) < 2:
            raise InvalidArgument(f"rank_mapping needs both from_tp and to_tp, found {mapping!r}")
        for name in ("from_tp", "to_tp"):
            if name in mapping:
                text = mapping[name]
                digits = isinstance(text, str) and text.isdecimal()
                given[name] = int(text) if digits else text
        for name in ("from_stage", "to_stage"):
            if given.get(name) is not None:
                given[name] = arguments.stage(name, given[name])
        if given.get("engine_input_source") is None:
            given.pop("engine_input_source", None)
        return cls(**given)

    @classmethod
    def of_pipeline(
        cls, pipeline: OmniTransferConfig, stage_id: str | int, tp_rank: int = -1, **more: Any
    ) -> KvTransferConfig:
        """Read what a pipeline's file says of one stage; ``more`` are other fields.

        A stage that sends its cache on one edge and receives on another needs two managers: this is
        the sending one, or with ``need_recv_cache=True`` the other.
        """
        stage = str(stage_id)
        receives = more.pop("need_recv_cache", False)
        ends = (1,) if receives else (0, 1)
        edges = [edge for end in ends for edge in pipeline.kv_ranks if edge[end] == stage]
        if not edges:
            raise InvalidArgument(f"stage {stage} neither sends nor receives a KV cache")
        edge = edges[0]
        spec, bounds, ranks = (
            pipeline.connectors[edge],
            pipeline.bounds[edge],
            pipeline.kv_ranks[edge],
        )
        given: dict[str, Any] = {
            "connector_config": {"type": spec.name, **spec.extra},
            "from_stage": edge[0],
            "to_stage": edge[1],
            "stage_id": int(stage),
            "engine_input_source": [edge[0]],
            "need_send_cache": edge[0] == stage,
            "need_recv_cache": edge[1] == stage,
            "from_tp": ranks.from_tp,
            "to_tp": ranks.to_tp,
            "kv_heads": ranks.kv_heads,
            "mla": ranks.mla,
            "tp_rank": tp_rank,
            "window_size": bounds.window_size,
            "max_inflight": bounds.max_inflight,
        }
        return cls(**{**given, **more})

    def send_stages(self) -> tuple[str, str]:
        """Return both ends of the edge that this stage sends on."""
        if self.from_stage is None or self.to_stage is None:
            raise InvalidArgument(
                "Transfer stages (omni_from_stage, omni_to_stage) not configured: a stage that "
                "sends its cache needs both"
            )
        return str(self.from_stage), str(self.to_stage)

    def receive_stages(self) -> tuple[str, str]:
        """Return both ends of the edge that this stage receives on."""
        source: str | int | None = self.from_stage
        if self.engine_input_source:
            source = self.engine_input_source[0]
        elif isinstance(self.stage_id, int):
            source = self.stage_id - 1
        target = self.stage_id if self.stage_id is not None else self.to_stage
        if source is None or target is None:
            raise InvalidArgument(
                "Receive stages not configured: a stage that receives its cache needs stage_id and "
                "engine_input_source, or omni_from_stage"
            )
        return str(source), str(target)

    def stated_rank(self) -> int:
        """Return the rank that this worker was told it is; -1: nobody has said."""
        if self.tp_rank != -1:
            return self.tp_rank
        state = sys.modules.get("vllm.distributed.parallel_state")
        if state is not None:
            try:
                return int(state.get_tensor_model_parallel_rank())
            except (AssertionError, AttributeError, RuntimeError):
                pass  # vLLM is there and has no group.
        text = os.environ.get("LOCAL_RANK", "")
        return int(text) if text.isdecimal() else -1


def _replica_id() -> int:
    text = os.environ.get("VLLM_OMNI_REPLICA_ID", "")
    return int(text) if text.isdecimal() else 0
