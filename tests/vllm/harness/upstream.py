"""vLLM 0.32's own MoRIIOConnector, unmodified, on `stagelink.compat.mori`.

What it takes from a ROCm machine is replaced in the forked engine, and nowhere else:

* `mori.io`: the stand-in of `stagelink.compat.mori`.
* `torch.cuda.Event` and `torch.cuda.current_stream`: on CPU a layer is computed when its hook runs,
  so an event is over when it is recorded.
* The alignment of the KV cache: on ROCm vLLM pads and aligns it to pages, which the connector's
  registration relies on (`_build_shared_kv_mr`). Here `get_mem_pool_context` answers the allocation
  with page-aligned memory; of `IOEngine.allocate`, so that shm can be tested too.
* `MoRIIOHeartbeat` is not started, as no proxy is configured.
"""

from __future__ import annotations

import os


class RecordedEvent:
    """A torch.cuda.Event of a machine without a stream: over at once."""

    def record(self, stream: object = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


def prepare(transports: str) -> None:
    """Runs in the child, before the engine is made. `transports`: what the engine may use."""
    os.environ["STAGELINK_TRANSPORTS"] = transports
    import torch
    from stagelink.compat import mori

    mori.enable()
    torch.cuda.Event = RecordedEvent
    torch.cuda.current_stream = lambda device=None: None
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_connector

    from stagelink.vllm.caches.memory import CacheAllocation

    def context(self: moriio_connector.MoRIIOConnector) -> CacheAllocation:
        engine = self.connector_worker.moriio_engine
        self.cache_allocation = CacheAllocation(lambda nbytes: memoryview(engine.allocate(nbytes)))
        return self.cache_allocation

    moriio_connector.MoRIIOConnector.get_mem_pool_context = context


def prepare_shm() -> None:
    prepare("shm")


def prepare_tcp() -> None:
    prepare("tcp")
