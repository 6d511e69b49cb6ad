"""The connectors as vLLM-Omni's factory builds them."""

from __future__ import annotations

from vllm_omni.distributed.omni_connectors.connectors.base import OmniConnectorBase
from vllm_omni.distributed.omni_connectors.utils.logging import get_connector_logger

from stagelink import connectors
from stagelink.pull.log_limit import QuietLogger

__all__ = ["YuanrongConnector", "YuanrongTransferEngineConnector"]


class YuanrongConnector(connectors.YuanrongConnector, OmniConnectorBase):
    """:class:`stagelink.connectors.YuanrongConnector` for ``isinstance`` checks of the host."""


class YuanrongTransferEngineConnector(
    connectors.YuanrongTransferEngineConnector, OmniConnectorBase
):
    """:class:`stagelink.connectors.YuanrongTransferEngineConnector`, in the host's log."""

    _logger = QuietLogger(get_connector_logger("vllm_omni.stagelink.pull"), {})
