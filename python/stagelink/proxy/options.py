"""The options of the proxy, and how their values are written."""

import ipaddress
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from .addresses import parse_base_url, parse_port, split_host_port

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class ServerOption:
    """One --prefill or --decode."""

    url: str
    host: str
    handshake_port: int | None = None
    notify_port: int | None = None
    tp_size: int | None = None
    dp_size: int = 1


@dataclass(frozen=True)
class Options:
    prefill: tuple[ServerOption, ...] = ()
    decode: tuple[ServerOption, ...] = ()
    mode: str = "auto"
    listen: tuple[str, int] = ("127.0.0.1", 10001)
    heartbeat: tuple[str, int] | None = None
    allow: tuple[Network, ...] = ()
    api_key: str | None = field(default=None, repr=False)
    retries: int = 2
    connect_timeout_s: float = 5.0
    prefill_timeout_s: float = 120.0
    stream_timeout_s: float = 120.0
    request_timeout_s: float = 600.0
    client_timeout_s: float = 60.0
    heartbeat_timeout_s: float = 10.0
    grace_s: float = 10.0
    max_requests: int = 1024
    max_siblings: int = 64
    max_servers: int = 256
    max_body_bytes: int = 32 << 20
    max_response_bytes: int = 64 << 20
    json_logs: bool = False
    log_level: str = "info"


_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_SIZE = re.compile(r"(\d+)(KiB|MiB|GiB)?")
_BYTES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, None: 1}


def parse_duration(text: str) -> float:
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else math.inf
    if not 0 < seconds <= 86400:
        raise ValueError(f"{text!r} is not a time between 1ms and 24h")
    return seconds


def parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) * _BYTES[match[2]] if match else 0
    if not 0 < size <= 1 << 32:
        raise ValueError(f"{text!r} is not a size between 1 and 4GiB")
    return size


def parse_count(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not least <= int(text[:9]) <= most:
            raise ValueError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return parse


def parse_server(text: str) -> ServerOption:
    """``URL[,handshake=PORT][,notify=PORT][,tp=N][,dp=N][,host=HOST]``"""
    address, *rest = text.split(",")
    url, host = parse_base_url(address)
    values: dict[str, str] = {}
    for item in rest:
        key, separator, value = item.partition("=")
        if not separator or key not in ("host", "handshake", "notify", "tp", "dp"):
            raise ValueError(f"{item!r}: known are host=, handshake=, notify=, tp= and dp=")
        if key in values:
            raise ValueError(f"{key}= is there twice")
        values[key] = value
    if "host" in values:
        host, _ = split_host_port(f"{values['host']}:1")
    size = parse_count(1, 1024)
    return ServerOption(
        url,
        host,
        parse_port(values["handshake"]) if "handshake" in values else None,
        parse_port(values["notify"]) if "notify" in values else None,
        size(values["tp"]) if "tp" in values else None,
        size(values.get("dp", "1")),
    )


def parse_listen(text: str) -> tuple[str, int]:
    """``HOST:PORT``, or a port on loopback."""
    return split_host_port(text if ":" in text else f"127.0.0.1:{text}")


def parse_network(text: str) -> Network:
    return ipaddress.ip_network(text)
