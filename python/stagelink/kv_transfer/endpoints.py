"""Where the ranks of a sending stage are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgument
from ..pull import arguments

__all__ = ["SenderEndpoints", "find_sender_info"]

_RANK_STRIDE = 16  # Between the ports of two ranks on one host, as vLLM-Omni has it.


@dataclass(frozen=True)
class SenderEndpoints:
    """The endpoint of rank 0, from which those of its host follow, or one for each rank."""

    host: str = ""
    zmq_port: int | None = None
    ranks: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, info: Mapping[str, Any], from_tp: int) -> SenderEndpoints:
        """Read ``{"host", "zmq_port"}``, or ``{"ranks": [{"host", "zmq_port"}, ...]}``.

        The list names each rank once, in order; they may be on several hosts.
        """
        ranks = info.get("ranks")
        if ranks is not None:
            places = tuple(_place(one) for one in arguments.items("ranks", ranks))
            if len(places) != from_tp:
                raise InvalidArgument(
                    f"kv_sender_info names {len(places)} ranks, the sender has {from_tp}"
                )
            return cls(places[0][0], places[0][1], places)
        host = arguments.utf8("host", info.get("host"))
        port = info.get("zmq_port")
        if port is None:
            return cls(host, None)
        last = 65535 - (from_tp - 1) * _RANK_STRIDE  # That of the last rank must be one, too.
        return cls(host, arguments.integer("zmq_port", _number(port), 1, max(1, last)))

    def metadata(self, rank: int) -> dict[str, Any] | None:
        """Return what a connector's ``get`` needs to reach a rank; None: it must know by itself."""
        if self.ranks:
            host, port = self.ranks[rank]
            return {"source_host": host, "source_port": port}
        if not self.host or self.zmq_port is None:
            return None
        return {"source_host": self.host, "source_port": self.zmq_port + rank * _RANK_STRIDE}

    def name(self, rank: int) -> str:
        """Return "rank 2 at 10.0.0.7:50183", for messages."""
        place = self.metadata(rank)
        if place is None:
            return f"rank {rank}"
        return f"rank {rank} at {place['source_host']}:{place['source_port']}"


def find_sender_info(info: object, sender_stage: str) -> Mapping[str, Any]:
    """Return the entry of a stage: the information itself, or one of a map by stage."""
    if not isinstance(info, Mapping):
        raise InvalidArgument(f"Invalid sender_info format: {info!r}")
    if "host" in info or "ranks" in info:
        return info
    for key, entry in info.items():
        if str(key) == sender_stage and _is_entry(entry):
            return entry  # type: ignore[no-any-return]
    entries = [entry for entry in info.values() if _is_entry(entry)]
    if len(entries) == 1:
        return entries[0]  # type: ignore[no-any-return]
    raise InvalidArgument(
        f"Invalid sender_info format: it names {len(entries)} senders, none of them stage "
        f"{sender_stage}: {info!r}"
    )


def _is_entry(entry: object) -> bool:
    return isinstance(entry, Mapping) and ("host" in entry or "ranks" in entry)


def _place(one: Any) -> tuple[str, int]:
    if isinstance(one, Mapping):
        one = one.get("host"), one.get("zmq_port")
    if not isinstance(one, Sequence) or isinstance(one, str) or len(one) != 2:
        raise InvalidArgument(f"a rank's place is {{host, zmq_port}}, found {one!r}")
    return arguments.utf8("host", one[0]), arguments.port("zmq_port", _number(one[1]))


def _number(value: Any) -> Any:
    """JSON's numbers may have come as text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value
