"""What the control plane of vLLM's connector writes: heartbeats and request ids. The bytes are
read and written by the C++ library."""

from dataclasses import dataclass

from stagelink import Error, _core

MAX_HEARTBEAT_BYTES = 16 << 10  # The library's bound, for the socket.


@dataclass(frozen=True)
class ZmqAddress:
    """Where the connector of a server listens; ports of its first rank."""

    host: str
    handshake_port: int
    notify_port: int

    def __str__(self) -> str:
        return f"host:{self.host},handshake:{self.handshake_port},notify:{self.notify_port}"

    def values(self) -> tuple[str, int, int]:
        return self.host, self.handshake_port, self.notify_port


def parse_zmq_address(text: str) -> ZmqAddress:
    """Raises ValueError."""
    try:
        return ZmqAddress(*_core.moriio_parse_zmq_address(text))
    except Error as error:
        raise ValueError(str(error)) from None


def request_id(prefill: ZmqAddress, decode: ZmqAddress, unique: str) -> str:
    return _core.moriio_format_request_id(prefill.values(), decode.values(), unique)


@dataclass(frozen=True)
class Heartbeat:
    type: str
    http_address: str
    zmq_address: str
    dp_size: int
    tp_size: int
    transfer_mode: str


def decode_heartbeat(frame: bytes) -> Heartbeat:
    """Any order of keys, unknown keys ignored. Raises ValueError with a text for a person."""
    try:
        fields = _core.moriio_decode_heartbeat(frame)
    except Error as error:
        raise ValueError(str(error)) from None
    return Heartbeat(*(fields[name] for name in Heartbeat.__dataclass_fields__))
