"""Gives Stagelink's connectors to vLLM-Omni, which finds :func:`register` by its entry point.

``STAGELINK_OMNI_CONNECTORS`` names the connectors of ``OmniConnectorFactory`` that become ours,
with commas between; those that are there are replaced, others are added. Without it they are
``YuanrongConnector`` and ``StagelinkStoreConnector``; ``none``: no one. A pipeline's file chooses
among them by ``name``.

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
DEFAULT_NAMES = ("YuanrongConnector", "StagelinkStoreConnector")


def chosen_names(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the names that become ours."""
    text = (os.environ if environment is None else environment).get("STAGELINK_OMNI_CONNECTORS")
    if text is None or not text.strip():
        return DEFAULT_NAMES
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    return () if names == ("none",) else names


def register() -> None:
    """Give our connectors to vLLM-Omni's factory, now or as soon as it is imported. Idempotent."""
    if chosen_names():
        when_imported(FACTORY_MODULE, _change_factory)


def _change_factory(module: Any) -> None:
    registry = module.OmniConnectorFactory._registry
    for name in chosen_names():
        registry[name] = _create


def _create(config: Mapping[str, Any]) -> Any:
    from .connector import YuanrongConnector

    return YuanrongConnector(config)
