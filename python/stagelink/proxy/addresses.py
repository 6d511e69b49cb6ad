"""Addresses as the command line, heartbeats and request ids write them. IPv6 hosts have brackets
in URLs and none in the addresses of vLLM's connector."""

import ipaddress
import re
from urllib.parse import urlsplit

DEFAULT_HANDSHAKE_PORT = 6301
DEFAULT_NOTIFY_PORT = 61005

_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,255}")


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str) -> tuple[str, int]:
    """``10.0.0.1:80``, ``[::1]:80`` and, as vLLM 0.32 writes it, ``::1:80``."""
    host, separator, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host:
            raise ValueError(f"{text!r}: brackets are for IPv6 addresses")
    if not separator or not host:
        raise ValueError(f"{text!r} is not HOST:PORT")
    if not _HOST.fullmatch(host):
        raise ValueError(f"{text!r}: {host!r} is not a host")
    if ":" in host:
        ipaddress.IPv6Address(host)
    return host, parse_port(port)


def parse_port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text[:6]) <= 65535:
        raise ValueError(f"{text!r} is not a port")
    return int(text)


def parse_base_url(text: str) -> tuple[str, str]:
    """A server's URL without a trailing slash, and its host without brackets."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is not a URL such as http://10.0.0.1:8000")
    if parts.query or parts.fragment or parts.username:
        raise ValueError(f"{text!r}: a server's URL has neither user, query nor fragment")
    if not _HOST.fullmatch(parts.hostname):
        raise ValueError(f"{text!r}: {parts.hostname!r} is not a host")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    location = join_host_port(parts.hostname, port)
    return f"{parts.scheme}://{location}{parts.path.rstrip('/')}", parts.hostname


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
