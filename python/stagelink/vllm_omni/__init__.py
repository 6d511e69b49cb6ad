"""Gives Stagelink's connectors to vLLM-Omni, which finds :func:`register` by its entry point.

``STAGELINK_OMNI_CONNECTORS`` names the connectors of ``OmniConnectorFactory`` that become ours,
with commas between; those that are there are replaced, others are added. Without it they are
``YuanrongConnector`` and ``StagelinkStoreConnector``, which pass through a store, and
``YuanrongTransferEngineConnector`` and ``StagelinkPullConnector``, which pull; ``none``: no one.
A pipeline's file chooses among them by ``name``.

Importing this package imports nothing of vLLM-Omni, and :func:`register` does not either: what it
has to change is changed when the host imports its factory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .hook import when_imported

__all__ = ["DEFAULT_NAMES", "chosen_names", "register"]

FACTORY_MODULE = "vllm_omni.distributed.omni_connectors.factory"
# The host gives roles and ports to the connectors in a set that these import by value: whoever
# comes after the first of them gets ours; the others are there in case they came before it.
NAMES_MODULES = (
    "vllm_omni.distributed.omni_connectors.utils.config",
    "vllm_omni.distributed.omni_connectors.utils.initialization",
    "vllm_omni.distributed.omni_connectors.kv_transfer_manager",
    "vllm_omni.engine.stage_init_utils",
    "vllm_omni.engine.stage_engine_core_client",
)
PULLING_NAMES = ("YuanrongTransferEngineConnector", "StagelinkPullConnector")
DEFAULT_NAMES = ("YuanrongConnector", "StagelinkStoreConnector", *PULLING_NAMES)
# Names of the host's connectors that pull or push; under any other name ours is the store's.
_TRANSFER_ENGINES = frozenset(
    {*PULLING_NAMES, "MooncakeTransferEngineConnector", "MoriTransferEngineConnector",
     "NixlConnector"}
)  # fmt: skip


def chosen_names(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the names that become ours."""
    text = (os.environ if environment is None else environment).get("STAGELINK_OMNI_CONNECTORS")
    if text is None or not text.strip():
        return DEFAULT_NAMES
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    return () if names == ("none",) else names


def register() -> None:
    """Give our connectors to vLLM-Omni's factory, now or as soon as it is imported. Idempotent."""
    names = chosen_names()
    if names:
        when_imported(FACTORY_MODULE, _change_factory)
    if any(name in _TRANSFER_ENGINES for name in names):
        for module in NAMES_MODULES:
            when_imported(module, _add_names)


def _change_factory(module: Any) -> None:
    registry = module.OmniConnectorFactory._registry
    for name in chosen_names():
        registry[name] = _create_pulling if name in _TRANSFER_ENGINES else _create_store


def _add_names(module: Any) -> None:
    ours = _TRANSFER_ENGINES.intersection(chosen_names())
    module.TRANSFER_ENGINE_CONNECTOR_NAMES = module.TRANSFER_ENGINE_CONNECTOR_NAMES | ours


def _create_store(config: Mapping[str, Any]) -> Any:
    from .connector import YuanrongConnector

    return YuanrongConnector(config)


def _create_pulling(config: Mapping[str, Any]) -> Any:
    from .connector import YuanrongTransferEngineConnector

    return YuanrongTransferEngineConnector(config)
