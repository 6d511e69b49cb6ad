"""Connectors of a test, each with an arena of its own."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

from stagelink.connectors import YuanrongConnector

ARENAS = Path("/dev/shm")
_numbers = itertools.count()


def namespace() -> str:
    """A name that no other test has."""
    return f"test-{os.getpid()}-{next(_numbers)}"


def connector(name: str, **extra: Any) -> YuanrongConnector:
    """A connector in that arena."""
    return YuanrongConnector({"namespace": name, "capacity": "32MiB", "max_objects": 512, **extra})


def arenas() -> set[str]:
    """The arenas that there are."""
    return {path.name for path in ARENAS.iterdir() if "test-" in path.name}


def gets(one: YuanrongConnector) -> dict[str, int]:
    """Why gets gave what they gave."""
    assert one._core is not None
    return {reason: gets for reason, _, _, gets in one._core.outcomes() if gets}


def objects(one: YuanrongConnector) -> int:
    """How many objects the arena holds, for whatever reason."""
    for line in one.metrics_text().splitlines():
        if line.startswith("stagelink_store_objects{"):
            return int(float(line.split()[-1]))
    raise AssertionError("no gauge of objects")
