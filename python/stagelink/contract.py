"""What all connectors between stages have in common."""

from __future__ import annotations

from .errors import InvalidState

__all__ = ["ConnectorClosed"]


class ConnectorClosed(InvalidState, RuntimeError):
    """The connector was closed before the call."""
