"""The connector that pulls payloads from their sender, with vLLM-Omni's contract.

:class:`YuanrongTransferEngineConnector` is what a pipeline uses; docs/connectors/pull.md describes
it. :class:`ManagedBuffer` is what its ``get`` gives for raw payloads.
"""

from .ascend import EngineMissing
from .buffer import ManagedBuffer
from .connector import SenderUnknown, YuanrongTransferEngineConnector
from .contract import ConnectorClosed

__all__ = [
    "ConnectorClosed",
    "EngineMissing",
    "ManagedBuffer",
    "SenderUnknown",
    "YuanrongTransferEngineConnector",
]
