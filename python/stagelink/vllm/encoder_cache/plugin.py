"""Gives our encoder-cache connector to vLLM, which finds :func:`register` by its entry point.

For encoder caches the names of vLLM's own registry win over ``ec_connector_module_path``.
``StagelinkECConnector`` is added to it. ``STAGELINK_EC_CONNECTORS`` names those that become ours,
with commas between: ``ECMooncakeConnector`` replaces vLLM's. ``none``: none, and nothing is added.

Importing this module imports nothing of vLLM, and :func:`register` does not either: what it has to
change is changed when vLLM imports its factory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...vllm_omni.hook import when_imported

__all__ = ["chosen_names", "register"]

FACTORY_MODULE = "vllm.distributed.ec_transfer.ec_connector.factory"
ADDED = "StagelinkECConnector"


def chosen_names(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the names that become ours."""
    text = (os.environ if environment is None else environment).get("STAGELINK_EC_CONNECTORS", "")
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    return () if names == ("none",) else tuple(dict.fromkeys((ADDED, *names)))


def register() -> None:
    """Change vLLM's factory, now or as soon as it is imported. Idempotent."""
    if chosen_names():
        when_imported(FACTORY_MODULE, _change_factory)


def _change_factory(module: Any) -> None:
    for name in chosen_names():
        module.ECConnectorFactory._registry[name] = _connector_class


def _connector_class() -> Any:
    from .connector import ECMooncakeConnector

    return ECMooncakeConnector
