"""The registry as code of a producer starts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._core import EncoderCacheRegistry
from ...pull.log_limit import quiet_logger

__all__ = ["ECMooncakeRegistryServer"]

logger = quiet_logger("vllm.stagelink.encoder_cache")


class ECMooncakeRegistryServer:
    """``GET /ec/info/{mm_hash}`` at ``host:port``, from ``start()`` to ``shutdown()``."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._server: EncoderCacheRegistry | None = None

    def start(self) -> None:
        """Listens when it returns. Raises where the address is taken or none of ours."""
        if self._server is not None:
            return
        self._server = EncoderCacheRegistry(self.host, self.port)
        self.port = int(self._server.address.rsplit(":", 1)[1])
        logger.info("EC Mooncake registry listening on http://%s:%d", self.host, self.port)

    def shutdown(self) -> None:
        """Ends it; idempotent."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        logger.info("EC Mooncake registry stopped.")

    def publish(self, mm_hash: str, payload: Mapping[str, Any]) -> None:
        """Publish ``{nbytes, shape, dtype, producer_zmq}``; raises where these do not agree."""
        assert self._server is not None, "not started"
        place = (
            int(payload["nbytes"]),
            tuple(int(size) for size in payload["shape"]),
            str(payload["dtype"]),
            str(payload["producer_zmq"]),
            int(payload.get("generation", 0)),
        )
        self._server.publish(mm_hash, place)

    def unpublish(self, mm_hash: str) -> None:
        """Take it back; one that is not there is none the less gone."""
        if self._server is not None:
            self._server.unpublish(mm_hash)
