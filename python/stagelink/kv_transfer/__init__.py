"""KV caches from the ranks of one stage to those of the next.

A worker of either stage makes one manager::

    manager = KvTransferManager({
        "need_send_cache": True,
        "omni_from_stage": 0,
        "omni_to_stage": 1,
        "rank_mapping": {"from_tp": 4, "to_tp": 2},
        "tp_rank": 3,
        "connector_config": {"type": "YuanrongTransferEngineConnector", "zmq_port": 50051},
    })

docs/connectors/kv-transfer.md describes it.
"""

from .config import KvTransferConfig
from .counters import KvCounters
from .endpoints import SenderEndpoints
from .manager import KvTransferManager

__all__ = ["KvCounters", "KvTransferConfig", "KvTransferManager", "SenderEndpoints"]
