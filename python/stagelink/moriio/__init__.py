"""``MoRIIOWrapper`` and ``MoRIIOWriter`` with the names and arguments of vLLM 0.32.

A worker of vLLM's MoRIIO connector uses them in place of its own: notifications, the table of
transfers and the write thread are C++ then. What differs is listed in docs/connectors/moriio.md.
"""

from .data import (
    ROLE,
    HandshakeError,
    LayerTransferPlan,
    MoRIIOError,
    MoRIIOTransferAck,
    RemoteAllocInfo,
    TransferBatchState,
    TransferError,
    WriteTask,
    get_port_offset,
)
from .wrapper import MoRIIOWrapper
from .writer import MoRIIOWriter

__all__ = [
    "ROLE",
    "HandshakeError",
    "LayerTransferPlan",
    "MoRIIOError",
    "MoRIIOTransferAck",
    "MoRIIOWrapper",
    "MoRIIOWriter",
    "RemoteAllocInfo",
    "TransferBatchState",
    "TransferError",
    "WriteTask",
    "get_port_offset",
]
