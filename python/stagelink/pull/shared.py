"""One core of several connectors: one engine and one pool."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, TypeVar

from .. import _core
from ..errors import InvalidArgument, InvalidState
from . import arguments
from .ascend import AscendPlane

__all__ = ["OPTIONS_OF_EDGE", "SharedCore", "join_core", "open_core", "shared_with"]

# Of a receiver: where its senders are, and what only senders listen at. Sharers may differ in them.
OPTIONS_OF_EDGE = frozenset(
    {"from_stage", "to_stage", "sender_host", "sender_zmq_port", "zmq_port"}
)

_T = TypeVar("_T")


class SharedCore:
    """Closes the core when the last connector that uses it is closed.

    All methods may be called from any thread.
    """

    def __init__(
        self, core: _core.PullConnector, plane: AscendPlane | None, options: Mapping[str, Any]
    ) -> None:
        """Begin with one user."""
        self.core: _core.PullConnector | None = core
        self.plane = plane
        self.options = options
        self.was_shared = False
        """Another connector has joined: each has to name the sender that it means."""
        self._lock = threading.Lock()
        self._users = 1

    def join(self) -> None:
        """Use it too. Raises where it is closed."""
        with self._lock:
            self.opened()
            self._users += 1
            self.was_shared = True

    def opened(self) -> _core.PullConnector:
        """Return the core, or raise where it is closed."""
        core = self.core
        if core is None:
            raise InvalidState("the connector whose pool is to be shared is closed", "closed")
        return core

    def update_sender(self, host: str, port: int) -> None:
        """Tell the core, unless its users have senders of their own."""
        core = self.core
        if core is not None and not self.was_shared:
            core.update_sender(host, port)

    def leave(self, timeout: float) -> None:
        """Use it no more. Raises ``Error`` where the close for the last one does."""
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
            core, self.core = self.core, None  # It ends with the last call that is still in it.
        try:
            if core is not None:
                core.close(timeout)
        finally:
            if self.plane is not None:
                self.plane.close()


def open_core(options: Mapping[str, Any], extra: str) -> SharedCore:
    """Return one that is not shared yet. Raises as the core does."""
    plane = AscendPlane(options) if options["protocol"] == "ascend" else None
    try:
        return SharedCore(_core.PullConnector(extra, plane), plane, options)
    except BaseException:
        if plane is not None:
            plane.close()
        raise


def join_core(shared: SharedCore, options: Mapping[str, Any]) -> SharedCore:
    """Return it, joined by one with these options, which must be those that it was opened with."""
    if shared.options["can_put"]:
        raise InvalidArgument("share: only the pool of a connector with `role: receiver` is shared")
    for option, value in options.items():
        if option not in OPTIONS_OF_EDGE and value != shared.options[option]:
            raise InvalidArgument(_difference(option, value, shared.options[option]))
    shared.join()
    return shared


def shared_with(share: object, kind: type[_T]) -> _T:
    """Return the connector to share with, if it is one."""
    if not isinstance(share, kind):
        arguments.refuse("share", share, f"a {kind.__name__} with `role: receiver`")
    return share


def _difference(option: str, value: object, other: object) -> str:
    if option == "can_put":
        return "role: must be `receiver`, as that of the connector of `share` is"
    name = "memory_pool_device" if option == "pool_device" else option
    return (
        f"{name} = {arguments.brief(value)}: expected {arguments.brief(other)}, as the connector "
        "of `share` has; only where the sender is may differ"
    )
