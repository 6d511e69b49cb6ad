"""Connectors for vLLM: ``kv_connector_module_path: stagelink.vllm``, and the same for ``ec_``.

Only what is asked for is imported, so that the parts that need no vLLM can be used, and tested,
without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connector import MoRIIOConnector
    from .encoder_cache.connector import ECMooncakeConnector, StagelinkECConnector

__all__ = ["ECMooncakeConnector", "MoRIIOConnector", "StagelinkECConnector"]


def __getattr__(name: str) -> Any:
    if name == "MoRIIOConnector":
        from .connector import MoRIIOConnector

        return MoRIIOConnector
    if name in ("ECMooncakeConnector", "StagelinkECConnector"):
        from .encoder_cache import connector

        return getattr(connector, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
