"""Memory of a connector's pool, as vLLM-Omni's callers use it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .. import _core
from ..errors import InvalidArgument, InvalidState
from . import arguments

if TYPE_CHECKING:
    from .ascend import AscendPlane

__all__ = ["ManagedBuffer"]

_Self = TypeVar("_Self", bound="ManagedBuffer")


class ManagedBuffer(_core.PullBuffer):
    """A piece of the pool: raw bytes that were pulled, or memory to be filled and put.

    Release it when the bytes have been used; the pool is as large as it is. What looks at the
    bytes by then, a tensor or an array, keeps them until it is gone, so that no one ever sees them
    change. On a pool of the host it has the buffer protocol.
    """

    def __init__(self, buffer: _core.PullBuffer, plane: AscendPlane | None = None) -> None:
        super().__init__(buffer)
        self.size = buffer.nbytes
        self._plane = plane

    @property
    def tensor(self) -> Any:
        """The bytes as a tensor of uint8 with one dimension, without a copy."""
        if self._plane is not None:
            return self._plane.view(self.address, self.size)
        import torch

        return torch.frombuffer(self, dtype=torch.uint8)

    def as_tensor(self, dtype: Any, shape: Sequence[int]) -> Any:
        """Return the bytes as a tensor of that type and shape, without a copy."""
        import torch

        if not isinstance(dtype, torch.dtype):
            arguments.refuse("dtype", dtype, "a type of torch")
        shape = arguments.integers("shape", shape)  # None may be left open as -1.
        item = torch.empty(0, dtype=dtype).element_size()
        wanted = item
        for extent in shape:
            wanted *= extent
        if wanted != self.size:
            raise InvalidArgument(
                f"{dtype} of shape {tuple(shape)} takes {wanted} bytes, the buffer has {self.size}"
            )
        if self.address % item != 0:
            raise InvalidState(
                f"the buffer's address is not aligned to the {item} bytes of {dtype}"
            )
        return self.tensor.view(dtype).reshape(tuple(shape))

    def to_bytes(self) -> bytes:
        """Return a copy of the bytes."""
        if self._plane is not None:
            return self._plane.to_bytes(self.address, self.size)
        return bytes(memoryview(self))

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
