"""What ``mori.io`` exports, on stagelink's engine.

Differences from mori are listed in docs/connectors/mori_io.md. ``IOMemory`` and
``TransportBackendConfig`` are ours.
"""

from stagelink._core import (
    BackendType,
    EngineDesc,
    FabricBackendConfig,
    IOEngine,
    IOEngineConfig,
    IOEngineSession,
    IOMemory,
    MemoryDesc,
    MemoryLocationType,
    PollCqMode,
    RdmaBackendConfig,
    StatusCode,
    TransferStatus,
    TransportBackendConfig,
    XgmiBackendConfig,
    set_log_level,
)

__all__ = [
    "BackendType",
    "EngineDesc",
    "FabricBackendConfig",
    "IOEngine",
    "IOEngineConfig",
    "IOEngineSession",
    "IOMemory",
    "MemoryDesc",
    "MemoryLocationType",
    "PollCqMode",
    "RdmaBackendConfig",
    "StatusCode",
    "TransferStatus",
    "TransportBackendConfig",
    "XgmiBackendConfig",
    "set_log_level",
]
