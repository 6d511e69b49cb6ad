"""The connector as vLLM-Omni's factory builds it."""

from __future__ import annotations

from vllm_omni.distributed.omni_connectors.connectors.base import OmniConnectorBase

from stagelink import connectors

__all__ = ["YuanrongConnector"]


class YuanrongConnector(connectors.YuanrongConnector, OmniConnectorBase):
    """:class:`stagelink.connectors.YuanrongConnector` for ``isinstance`` checks of the host."""
