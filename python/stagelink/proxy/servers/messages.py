"""What the control plane of vLLM's connector writes: heartbeats and request ids."""

import re
from dataclasses import dataclass

import msgpack

from ..addresses import parse_port

MAX_HEARTBEAT_BYTES = 16 << 10

_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,255}")


@dataclass(frozen=True)
class ZmqAddress:
    """Where the connector of a server listens; ports of its first rank."""

    host: str
    handshake_port: int
    notify_port: int

    def __str__(self) -> str:
        return f"host:{self.host},handshake:{self.handshake_port},notify:{self.notify_port}"


def parse_zmq_address(text: str) -> ZmqAddress:
    fields: dict[str, str] = {}
    for item in text.split(","):
        key, _, value = item.partition(":")
        if key in fields:
            raise ValueError(f"zmq_address {text!r}: {key} is there twice")
        fields[key] = value
    for key in ("host", "handshake", "notify"):
        if key not in fields:
            raise ValueError(f"zmq_address {text!r}: {key} is missing")
    if not _HOST.fullmatch(fields["host"]):
        raise ValueError(f"zmq_address {text!r}: {fields['host']!r} is not a host")
    return ZmqAddress(fields["host"], parse_port(fields["handshake"]), parse_port(fields["notify"]))


def request_id(prefill: ZmqAddress, decode: ZmqAddress, unique: str) -> str:
    return f"___prefill_addr_{prefill}___decode_addr_{decode}_{unique}"


@dataclass(frozen=True)
class Heartbeat:
    type: str
    http_address: str
    zmq_address: str = ""
    dp_size: int = 1
    tp_size: int = 1
    transfer_mode: str = ""


def decode_heartbeat(frame: bytes) -> Heartbeat:
    """Any order of keys, unknown keys ignored. Raises ValueError with a text for a person."""
    if len(frame) > MAX_HEARTBEAT_BYTES:
        raise ValueError(f"{len(frame)} bytes, the bound is {MAX_HEARTBEAT_BYTES}")
    try:
        fields = msgpack.unpackb(frame)
    except (ValueError, TypeError, RecursionError):
        raise ValueError("not a MessagePack map") from None
    if not isinstance(fields, dict):
        raise ValueError("not a MessagePack map")
    kind = fields.get("type")
    if kind not in ("P", "D", "HELLO"):
        raise ValueError("type is neither P, D nor HELLO")
    if kind == "HELLO":
        address = fields.get("http_address")
        return Heartbeat(kind, address if isinstance(address, str) else "")
    for key in ("http_address", "zmq_address", "transfer_mode"):
        if not isinstance(fields.get(key), str):
            raise ValueError(f"{key} is missing or not text")
    for key in ("dp_size", "tp_size"):
        value = fields.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
            raise ValueError(f"{key} is not a number from 1 to 1024")
    return Heartbeat(
        kind,
        fields["http_address"],
        fields["zmq_address"],
        fields.get("dp_size", 1),
        fields.get("tp_size", 1),
        fields["transfer_mode"],
    )
