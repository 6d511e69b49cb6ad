"""``kv_transfer_params``: what the proxy and the other engine say of one request.

Everything here came over the network. A field that is missing, of the wrong kind or out of range is
refused by name before a byte moves; numbers may come as digits in a string, as 0.32 sends ports.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_BLOCKS = 512 * 1024
MAX_GROUPS = 64
MAX_ID = 1024

Blocks = tuple[tuple[int, ...], ...]


class ParamsError(ValueError):
    """Names the field and its value."""


@dataclass(frozen=True)
class Address:
    """Where a peer's ranks listen: the base ports of its handshakes and notifications."""

    host: str
    handshake_port: int
    notify_port: int


@dataclass(frozen=True)
class TransferParams:
    """One leg of one request, checked."""

    transfer_id: str
    prefill: bool  # do_remote_decode: this engine computes for another one.
    decode: bool  # do_remote_prefill: this engine goes on with what another one computed.
    address: Address | None = None
    hosts: tuple[str, ...] = ()  # One for each pod; empty: the host of `address`.
    engine_id: str | None = None
    tp_size: int = 0  # Of the peer; 0: not known, as ours.
    dp_size: int = 1
    dp_size_local: int = 0
    dp_rank: int = 0
    blocks: Blocks | None = None
    first_blocks: tuple[int, ...] | None = None  # Index in the request of blocks[g][0].
    block_sizes: tuple[int, ...] | None = None  # Tokens of a block of each group.
    num_tokens: int | None = None  # How many tokens the blocks hold.
    lease_until: float | None = None  # Unix time to which the peer keeps its blocks.
    incarnation: str | None = None  # Of the process that the blocks belong to.
    token: str | None = None


def parse(raw: Mapping[str, Any], request_id: str) -> TransferParams:
    """Raises ParamsError."""
    prefill, decode = _flag(raw, "do_remote_decode"), _flag(raw, "do_remote_prefill")
    dp_size = _number(raw, "remote_dp_size", 1, 1, 65536)
    dp_local = _number(raw, "remote_dp_size_local", 0, 0, 65536) or dp_size
    address = _address(raw, request_id, prefill)
    return TransferParams(
        transfer_id=_text(raw, "transfer_id") or f"sidecar-{request_id}",
        prefill=prefill,
        decode=decode,
        address=address,
        hosts=_hosts(raw),
        engine_id=_text(raw, "remote_engine_id"),
        tp_size=_number(raw, "remote_tp_size", 0, 0, 1024) or _number(raw, "tp_size", 0, 0, 1024),
        dp_size=dp_size,
        dp_size_local=dp_local,
        dp_rank=_number(raw, "remote_dp_rank", 0, 0, 65535),
        blocks=_blocks(raw.get("remote_block_ids")),
        first_blocks=_numbers(raw, "remote_first_blocks"),
        block_sizes=_numbers(raw, "remote_block_sizes"),
        num_tokens=_number(raw, "remote_num_tokens", -1, -1, 1 << 40) if _given(raw) else None,
        lease_until=_time(raw.get("remote_lease_until")),
        incarnation=_text(raw, "remote_incarnation"),
        token=_text(raw, "transfer_token"),
    )


def _given(raw: Mapping[str, Any]) -> bool:
    return raw.get("remote_num_tokens") is not None


def _flag(raw: Mapping[str, Any], name: str) -> bool:
    value = raw.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise ParamsError(f"{name}: true or false, not {value!r}")


def _text(raw: Mapping[str, Any], name: str) -> str | None:
    value = raw.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > MAX_ID:
        raise ParamsError(f"{name}: text of at most {MAX_ID} characters, not {str(value)[:80]!r}")
    return value


def _number(raw: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = raw.get(name)
    if value is None:
        return default
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ParamsError(f"{name}: an integer from {low} to {high}, not {str(value)[:80]!r}")
    return value


def _time(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ParamsError(f"remote_lease_until: seconds since 1970, not {str(value)[:80]!r}")
    return float(value)


def _hosts(raw: Mapping[str, Any]) -> tuple[str, ...]:
    value = raw.get("remote_hosts")
    if value is None:
        return ()
    hosts = value if isinstance(value, list | tuple) else [value]
    if len(hosts) > 4096 or not all(isinstance(host, str) and host for host in hosts):
        raise ParamsError(f"remote_hosts: a list of host names, not {str(value)[:80]!r}")
    return tuple(hosts)


def _blocks(value: Any) -> Blocks | None:
    """A list for each group; a plain list is the only group."""
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise ParamsError(f"remote_block_ids: lists of block ids, not {str(value)[:80]!r}")
    groups = value if value and isinstance(value[0], list | tuple) else [value]
    if len(groups) > MAX_GROUPS or sum(len(group) for group in groups) > MAX_BLOCKS:
        raise ParamsError(f"remote_block_ids: over {MAX_GROUPS} groups or {MAX_BLOCKS} blocks")
    for group in groups:
        for block in group:
            if type(block) is not int or not 0 <= block < 1 << 31:
                raise ParamsError(f"remote_block_ids: block ids, not {str(block)[:80]!r}")
    return tuple(tuple(group) for group in groups)


def _numbers(raw: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    """A small number for each group."""
    value = raw.get(name)
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) > MAX_GROUPS:
        raise ParamsError(f"{name}: a number for each group, not {str(value)[:80]!r}")
    for number in value:
        if type(number) is not int or not 0 <= number < MAX_BLOCKS:
            raise ParamsError(f"{name}: numbers below {MAX_BLOCKS}, not {str(number)[:80]!r}")
    return tuple(value)


_PREFILL = re.compile(r"___prefill_addr_(.+?)___decode_addr_")
_DECODE = re.compile(r"___decode_addr_(.+)_[0-9a-f]{32}(?:-.*)?$")


def _address(raw: Mapping[str, Any], request_id: str, prefill: bool) -> Address | None:
    """From the request id as routers write it, else from the fields; None if neither is there."""
    found = (_DECODE if prefill else _PREFILL).search(request_id)
    if found:
        return _router_address(found.group(1))
    host = _text(raw, "remote_host")
    if host is None:
        return None
    return Address(
        host,
        _port(raw, "remote_handshake_port"),
        _port(raw, "remote_notify_port"),
    )


def _port(raw: Mapping[str, Any], name: str) -> int:
    port = _number(raw, name, 0, 0, 65535)
    if port == 0:
        raise ParamsError(f"{name}: needed with remote_host")
    return port


def _router_address(text: str) -> Address:
    parts = dict(part.partition(":")[::2] for part in text.split(","))
    try:
        ports = [int(parts[name]) for name in ("handshake", "notify")]
        host = parts["host"]
    except (KeyError, ValueError) as error:
        raise ParamsError(f"address in the request id: {text[:120]!r} ({error})") from error
    if not host or not all(0 < port < 65536 for port in ports):
        raise ParamsError(f"address in the request id: {text[:120]!r}")
    return Address(host, ports[0], ports[1])
