"""What connectors have in common, whatever moves their bytes."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from .. import serializer
from ..errors import InvalidArgument, InvalidState
from . import arguments

__all__ = ["Closing", "ConnectorClosed", "OmniConnector"]

_Self = TypeVar("_Self", bound="Closing")


class ConnectorClosed(InvalidState, RuntimeError):
    """The connector was closed before the call."""


class Closing(ABC):
    """A context manager that closes at its end."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back. Idempotent."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class OmniConnector(Closing):
    """The part of vLLM-Omni's contract that asks nothing of whatever moves the bytes.

    It ends by itself with the object.
    """

    supports_raw_data: ClassVar[bool] = False
    _SEPARATOR: ClassVar[str] = ":"  # Between an id and its edge.

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        if not at_exit():  # The core has closed itself by then.
            self.close()

    def abandon_get(self, get_key: str) -> None:
        """Do nothing: a get that has returned has left nothing behind."""

    @staticmethod
    def serialize_obj(obj: Any) -> bytes:
        """Return an object as bytes, as vLLM-Omni's serializer writes it."""
        return serializer.encode(obj)

    @staticmethod
    def deserialize_obj(data: Any) -> Any:
        """Return the object of such bytes."""
        return serializer.decode(data, copy=True)

    @classmethod
    def _make_key(cls, key: str, from_stage: str, to_stage: str, separator: str = "") -> str:
        return f"{key}{separator or cls._SEPARATOR}{from_stage}_{to_stage}"

    @staticmethod
    def _edge(from_stage: object, to_stage: object) -> tuple[str, str]:
        return arguments.stage("from_stage", from_stage), arguments.stage("to_stage", to_stage)

    @classmethod
    def _edge_or_none(cls, from_stage: object, to_stage: object) -> tuple[str, str] | None:
        """The edge of a cleanup, which names both of its stages or neither."""
        if (from_stage is None) != (to_stage is None):
            raise InvalidArgument(
                "cleanup() requires both from_stage and to_stage, or neither. "
                f"Got from_stage={from_stage!r}, to_stage={to_stage!r}"
            )
        return None if from_stage is None else cls._edge(from_stage, to_stage)
