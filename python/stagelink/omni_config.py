"""Which stage of a vLLM-Omni pipeline hands its results to which, and by what.

The classes and functions have the names and forms of vLLM-Omni 0.30; files of both schemas are read
(``connectors``, ``edges`` and ``stages``; of former times ``runtime`` and ``stage_args``). What is
wrong with a file is an error that names the file, the line and what was meant: nothing is left out
in silence. ``stagelink config check FILE`` prints the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from . import _core
from .errors import NotFound

__all__ = [
    "ConnectorPort",
    "ConnectorSpec",
    "EdgeBounds",
    "KvRanks",
    "OmniTransferConfig",
    "compute_connector_zmq_port",
    "get_connectors_config_for_stage",
    "get_stage_connector_spec",
    "load_omni_transfer_config",
    "resolve_connector_spec",
    "resolve_omni_kv_config_for_stage",
]

ConnectorPurpose = Literal["request_forwarding", "kv_transfer", "orchestrator"]
EdgeKey = tuple[str, str]


@dataclass
class ConnectorSpec:
    """The name of a connector and what its constructor is given."""

    name: str
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EdgeBounds:
    """How much may be under way on an edge; -1: any amount."""

    window_size: int = -1
    """Objects that are put and not yet consumed."""
    max_inflight: int = -1
    """Puts that run at a time."""


@dataclass(frozen=True)
class KvRanks:
    """How the KV cache of an edge goes from the ranks of one stage to those of the next."""

    from_tp: int
    to_tp: int
    kv_heads: int = 0
    """Of the whole model; 0: not known."""
    mla: bool = False


@dataclass(frozen=True)
class ConnectorPort:
    """A port that a sender listens on."""

    port: int
    edge: str
    purpose: ConnectorPurpose
    from_stage: int
    replica: int
    rank: int


@dataclass
class OmniTransferConfig:
    """The connector of each edge, by the ids of its stages."""

    connectors: dict[EdgeKey, ConnectorSpec] = field(default_factory=dict)
    default_connector: ConnectorSpec | None = None
    bounds: dict[EdgeKey, EdgeBounds] = field(default_factory=dict)
    ports: list[ConnectorPort] = field(default_factory=list)
    kv_ranks: dict[EdgeKey, KvRanks] = field(default_factory=dict)
    """Of the edges whose sender has ``need_send_cache``."""
    enabled: bool = True
    """``runtime.enabled``; without it there are no edges and nothing is built."""

    def get_connector_for_edge(self, from_stage: str, to_stage: str) -> ConnectorSpec | None:
        """The connector of an edge, else the default one."""
        return self.connectors.get((from_stage, to_stage), self.default_connector)

    def has_connector_for_edge(self, from_stage: str, to_stage: str) -> bool:
        """Whether there is one."""
        return self.get_connector_for_edge(from_stage, to_stage) is not None


def load_omni_transfer_config(
    config_path: str | os.PathLike[str] | None = None,
    config_dict: Mapping[str, Any] | None = None,
    *,
    platform: str = "",
) -> OmniTransferConfig | None:
    """Read a pipeline's edges from a file (``.yaml``, ``.yml``, ``.json``) or a dictionary.

    A file may inherit by ``base_config``; the overrides of ``platform`` are applied. Without both
    arguments there is none. Raises ``FileNotFoundError``, or ``InvalidArgument`` (a ``ValueError``)
    with file, line and what is expected.
    """
    if config_path is not None:
        try:
            text = _core.omni_load_config(str(config_path), platform)
        except NotFound as error:
            raise FileNotFoundError(f"Config file not found: {error}") from error
    elif config_dict is not None:
        text = _core.omni_read_config(json.dumps(config_dict, indent=1), "config_dict", platform)
    else:
        return None
    return _from_json(json.loads(text))


def get_connectors_config_for_stage(
    transfer_config: OmniTransferConfig | None, stage_id: str | int
) -> dict[str, Any]:
    """Connectors of a stage: ``{"from_stage_0": {"spec": {"name": ..., "extra": ...}}}``.

    Each has the role of the stage on its edge; outgoing edges are there for stage 0 only.
    """
    if transfer_config is None:
        return {}
    return cast(dict[str, Any], _stage(transfer_config, stage_id)["connectors"])


def get_stage_connector_spec(
    transfer_config: OmniTransferConfig | None, stage_id: str | int, async_chunk: bool = False
) -> dict[str, Any]:
    """Return the one connector of a stage's payloads, ``{}`` if it has none.

    That of its first incoming edge, else of its first outgoing one. ``async_chunk`` is there for
    vLLM-Omni's callers and changes nothing.
    """
    if transfer_config is None:
        return {}
    return cast(dict[str, Any], _stage(transfer_config, stage_id)["connector"])


def resolve_omni_kv_config_for_stage(
    transfer_cfg: OmniTransferConfig | None, stage_id: str | int
) -> tuple[dict[str, Any] | None, str | None, str | None]:
    """Return the connector of a stage's KV cache with its ``type`` and role, and its two stages."""
    if transfer_cfg is None or not transfer_cfg.connectors:
        return None, None, None
    config, from_stage, to_stage = _stage(transfer_cfg, stage_id)["kv"]
    return config, from_stage, to_stage


def resolve_connector_spec(
    spec: ConnectorSpec,
    *,
    stage_id: int,
    role: str | None,
    purpose: ConnectorPurpose = "request_forwarding",
    local_rank: int = 0,
    replica_id: int = 0,
) -> ConnectorSpec:
    """Return a copy for one worker: its stage, its role and, for transfer engines, its ports."""
    given = json.dumps({"name": spec.name, "extra": spec.extra})
    text = _core.omni_resolve_connector(
        given, stage_id, role or "", purpose, local_rank, replica_id
    )
    resolved = json.loads(text)
    if role is not None:
        resolved["extra"]["role"] = role
    return ConnectorSpec(resolved["name"], resolved["extra"])


def compute_connector_zmq_port(
    base_port: int,
    *,
    purpose: ConnectorPurpose,
    from_stage: int,
    local_rank: int = 0,
    replica_id: int = 0,
) -> int:
    """Return the port of a sender: base, purpose, replica, rank and stage added up."""
    return _core.omni_connector_port(base_port, purpose, from_stage, local_rank, replica_id)


def _from_json(found: dict[str, Any]) -> OmniTransferConfig:
    config = OmniTransferConfig(enabled=found["enabled"])
    for edge in found["edges"]:
        key = (edge["from"], edge["to"])
        config.connectors[key] = ConnectorSpec(edge["name"], edge["extra"])
        config.bounds[key] = EdgeBounds(edge["window_size"], edge["max_inflight"])
    config.ports = [ConnectorPort(**port) for port in found["ports"]]
    for one in found["kv"]:
        from_stage, _, to_stage = one["edge"].partition("->")
        ranks = KvRanks(one["from_tp"], one["to_tp"], one["kv_heads"], one["mla"])
        config.kv_ranks[from_stage, to_stage] = ranks
    return config


def _stage(config: OmniTransferConfig, stage_id: str | int) -> dict[str, Any]:
    edges = []
    for (from_stage, to_stage), spec in config.connectors.items():
        bounds = config.bounds.get((from_stage, to_stage), EdgeBounds())
        edges.append(
            {
                "from": str(from_stage),
                "to": str(to_stage),
                "name": spec.name,
                "extra": spec.extra or {},
                "window_size": bounds.window_size,
                "max_inflight": bounds.max_inflight,
            }
        )
    text = json.dumps({"edges": edges}, default=_plain)
    return cast(dict[str, Any], json.loads(_core.omni_stage(text, str(stage_id))))


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a connector's extra holds {type(value).__name__}, which no file can hold")
