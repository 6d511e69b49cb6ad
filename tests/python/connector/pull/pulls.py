"""Pulling connectors of a test."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stagelink.connectors import YuanrongTransferEngineConnector

POOL = 8 << 20
EDGE = ("0", "1")


def connector(role: str, **extra: Any) -> YuanrongTransferEngineConnector:
    """A connector on loopback, at whatever ports are free."""
    config = {"host": "127.0.0.1", "memory_pool_size": POOL, "role": role, **extra}
    return YuanrongTransferEngineConnector(config)


def sender(**extra: Any) -> YuanrongTransferEngineConnector:
    return connector("sender", **extra)


def receiver(
    of: YuanrongTransferEngineConnector | dict[str, Any] | None = None, **extra: Any
) -> YuanrongTransferEngineConnector:
    """One that knows the sender, which may be in another process."""
    made = connector("receiver", **extra)
    if of is not None:
        place = of if isinstance(of, dict) else of.get_connection_info()
        made.update_sender_info(place["host"], place["zmq_port"])
    return made


def soon(condition: Callable[[], bool], seconds: float = 20) -> bool:
    """Whether it becomes true: for what happens behind the caller's back."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def raw(got: tuple[Any, int] | None) -> bytes | None:
    """The bytes of what a get gave, released; None if it gave nothing."""
    if got is None:
        return None
    buffer, size = got
    with buffer:
        data: bytes = buffer.to_bytes()
    assert len(data) == size
    return data


# For a child: a sender or receiver `one` there, as above.
CHILD = """
import sys
sys.path.insert(0, folder)
import pulls
one = pulls.connector(role, **extra)
one.get_connection_info()
"""
