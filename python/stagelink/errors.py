"""The exceptions of stagelink: one class for each of the 16 error codes.

``code`` names what happened, ``scope`` what it broke, ``reason`` the finer cause. Recover by scope:

=========  ===========================================
call       fix the arguments
transfer   submit it again
region     register or fetch the region again
peer       drop the peer's sessions and connect again
engine     create a new engine
=========  ===========================================

A class also derives from Python's own name for the same thing where there is one.
"""

from typing import ClassVar, Literal

Scope = Literal["call", "transfer", "region", "peer", "engine"]


class Error(Exception):
    """Base of all failures that the engine reports."""

    code: ClassVar[str]
    scope: ClassVar[Scope]
    reason: str

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.code

    def __str__(self) -> str:
        """The message, and the reason where it says more than the class."""
        if self.reason == self.code:
            return self.message
        return f"{self.message} [{self.reason}]"


class InvalidArgument(Error, ValueError):
    """A value that the call cannot use; the message names it."""

    code = "invalid_argument"
    scope = "call"


class Permission(Error, PermissionError):
    """Not allowed: a read-only region, or another user."""

    code = "permission"
    scope = "call"


class NotFound(Error, LookupError):
    """What the call names does not exist."""

    code = "not_found"
    scope = "call"


class AlreadyExists(Error):
    """What the call would create exists already, such as a bound port."""

    code = "already_exists"
    scope = "call"


class Limit(Error):
    """A bound of the engine or the operating system; the message gives both values."""

    code = "limit"
    scope = "call"


class TimedOut(Error, TimeoutError):
    """The deadline passed first."""

    code = "timed_out"
    scope = "transfer"


class Cancelled(Error):
    """The transfer was cancelled."""

    code = "cancelled"
    scope = "transfer"


class Busy(Error):
    """In use or full at the moment; the same call may succeed later."""

    code = "busy"
    scope = "transfer"


class NoSpace(Error):
    """Not enough memory of the kind that was asked for."""

    code = "no_space"
    scope = "transfer"


class Corrupt(Error):
    """Bytes that are not what they claim to be."""

    code = "corrupt"
    scope = "transfer"


class NotRegistered(Error):
    """An address or region that its owner has not registered."""

    code = "not_registered"
    scope = "region"


class Superseded(Error):
    """The region was deregistered since its descriptor was made."""

    code = "superseded"
    scope = "region"


class Unreachable(Error, ConnectionError):
    """The peer does not answer; it may come back."""

    code = "unreachable"
    scope = "peer"


class PeerLost(Error, ConnectionError):
    """The peer's process has ended; connect to its successor."""

    code = "peer_lost"
    scope = "peer"


class Incompatible(Error):
    """The other side speaks another version, or the descriptor is of another engine."""

    code = "incompatible"
    scope = "peer"


class InvalidState(Error):
    """The object was closed, or belongs to the parent of a forked process."""

    code = "invalid_state"
    scope = "engine"
