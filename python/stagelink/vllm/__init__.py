"""Connectors for vLLM: ``kv_connector_module_path: stagelink.vllm``.

Only what is asked for is imported, so that the parts that need no vLLM can be used, and tested,
without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connector import MoRIIOConnector

__all__ = ["MoRIIOConnector"]


def __getattr__(name: str) -> Any:
    if name == "MoRIIOConnector":
        from .connector import MoRIIOConnector

        return MoRIIOConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
