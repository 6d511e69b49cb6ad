"""What the wrapper and the writer take and give: the data types of vLLM 0.32, without torch.

vLLM compares its own enumeration by identity and catches its own exceptions. Where its module has
been imported already, those are given and raised; nothing here imports it.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

_HOST = "vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_common"


def host_type(name: str, own: Any) -> Any:
    """The host's type of that name if the host is there, else `own`."""
    return getattr(sys.modules.get(_HOST), name, own)


def host_role() -> str | None:
    """The role that the host has set for this process, if it is there and has set one."""
    get_role = getattr(sys.modules.get(_HOST), "get_role", None)
    name = get_role().value if get_role is not None else None
    return name if name in ("producer", "consumer") else None


class ROLE(Enum):
    PRODUCER = "producer"
    CONSUMER = "consumer"
    NOTINIT = "notinit"


class TransferBatchState(Enum):
    """Of several statuses: one failure is a failure of all, one that runs keeps all running."""

    DONE = "done"
    FAILED = "failed"
    PENDING = "pending"


class MoRIIOError(Exception):
    """Any failure of the connector."""


class HandshakeError(MoRIIOError):
    """A peer could not be listened to or asked."""


class TransferError(MoRIIOError):
    """Bytes did not arrive."""


class MoRIIOTransferAck(NamedTuple):
    transfer_id: str
    consumer_tp_size: int = 1


@dataclass
class WriteTask:
    """One layer of one transfer; `event` has synchronize(), or is None."""

    request_id: str
    transfer_id: str
    dst_engine_id: str
    local_block_ids: list[int]
    remote_block_ids_hint: list[int] | None
    layer_name: str
    event: Any
    remote_notify_port: int
    remote_ip: str
    multi_pod_hosts: list[str] = field(default_factory=list)
    remote_dp_size_local: int = 0
    enqueue_time: float = field(default_factory=time.perf_counter)
    retried: int = 0


@dataclass
class LayerTransferPlan:
    request_id: str
    transfer_id: str
    layer_name: str
    sess_idx: int
    transfer_local_offsets: list[int]
    transfer_remote_offsets: list[int]
    transfer_sizes: list[int]
    use_batch: bool = True


@dataclass
class RemoteAllocInfo:
    """Where the blocks of a transfer go. The writer keeps its own account of the rest."""

    block_ids: list[int]
    writes_done: int = 0
    writes_expected: int | None = None
    decode_dp_rank: int = 0
    completion_request_id: str | None = None
    completion_notify_port: int | None = None
    completion_remote_ip: str | None = None
    completion_notified: bool = False
    transfer_statuses: list[Any] = field(default_factory=list)
    transfer_offsets: dict[Any, tuple[list[int], list[int], list[int]]] = field(
        default_factory=dict
    )


def get_port_offset(dp_rank: int, tp_rank: int, tp_size: int = 1) -> int:
    return dp_rank * tp_size + tp_rank
