"""The wrapper's table of transfers, as the lists and the dictionary that vLLM's worker touches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, MutableSequence
from typing import Any, TypeVar, overload

from .. import _core
from .data import RemoteAllocInfo

Item = TypeVar("Item")


class Inbox(MutableSequence[Item]):
    """A list that what has arrived is appended to whenever somebody looks."""

    def __init__(self, arrived: Callable[[], Iterable[Item]]) -> None:
        self._arrived = arrived
        self._items: list[Item] = []

    def drain(self) -> list[Item]:
        items, self._items = self._look(), []
        return items

    def _look(self) -> list[Item]:
        self._items.extend(self._arrived())
        return self._items

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._look()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._look()[index] = value

    def __delitem__(self, index: Any) -> None:
        del self._look()[index]

    def __len__(self) -> int:
        return len(self._look())

    def insert(self, index: int, value: Item) -> None:
        self._look().insert(index, value)

    def __eq__(self, other: object) -> bool:
        return self._look() == (list(other) if isinstance(other, MutableSequence) else other)

    def __repr__(self) -> str:
        return repr(self._look())


class Allocations(MutableMapping[str, RemoteAllocInfo]):
    """What consumers have allocated, by transfer id. One that has been looked at stays the same
    object until its blocks are named anew."""

    def __init__(self, control: Callable[[], _core.MoriioControl]) -> None:
        self._control = control
        self._seen: dict[str, RemoteAllocInfo] = {}

    def __getitem__(self, transfer_id: str) -> RemoteAllocInfo:
        found = self._control().allocation(transfer_id)
        if found is None:
            self._seen.pop(transfer_id, None)
            raise KeyError(transfer_id)
        _, block_ids, decode_rank = found
        info = self._seen.get(transfer_id)
        if info is None or list(info.block_ids) != block_ids:
            info = RemoteAllocInfo(block_ids=block_ids, decode_dp_rank=decode_rank)
            self._forget_old()
            self._seen[transfer_id] = info
        return info

    def __setitem__(self, transfer_id: str, info: RemoteAllocInfo) -> None:
        self._seen[transfer_id] = info
        self._control().set_allocation(
            transfer_id,
            info.completion_request_id or "",
            [int(block) for block in info.block_ids or ()],
            info.decode_dp_rank,
        )

    def __delitem__(self, transfer_id: str) -> None:
        self._seen.pop(transfer_id, None)
        if not self._control().drop_allocation(transfer_id):
            raise KeyError(transfer_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._control().allocated())

    def __len__(self) -> int:
        return len(self._control().allocated())

    def _forget_old(self) -> None:
        if len(self._seen) >= 1024:
            known = set(self._control().allocated())
            self._seen = {name: info for name, info in self._seen.items() if name in known}
