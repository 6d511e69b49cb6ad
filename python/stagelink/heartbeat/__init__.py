"""Heartbeats of a prefill or decode server to the proxy: :class:`HeartbeatSender`.

It needs the package ``pyzmq``, of the extra ``proxy``. See docs/proxy.md for why a process sends
them.
"""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from stagelink import Error, _core

log = logging.getLogger("stagelink.heartbeat")

INTERVAL_S = 3.0
_BACK_OFF_S = 0.5
_BACK_OFF_MAX_S = 30.0
_STOP_S = 2.0
_CHILD = Path(__file__).with_name("child.py")


def _host_port(host: str, port: int) -> str:
    if not host or any(c.isspace() or c in "[]/,@" for c in host):
        raise ValueError(f"{host!r} is not a host name or an address without brackets")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port <= 65535:
        raise ValueError(f"{port!r} is not a port")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def encode_heartbeat(
    *,
    role: str,
    host_ip: str,
    http_port: int,
    handshake_port: int,
    notify_port: int,
    dp_size: int = 1,
    tp_size: int = 1,
    transfer_mode: str = "WRITE",
) -> bytes:
    """The message of vLLM 0.32, byte for byte; an IPv6 address has brackets in `http_address`.

    `role` is "P" or "D", `transfer_mode` "READ" or "WRITE".
    """
    if role not in ("P", "D"):
        raise ValueError(f"role {role!r}: P or D")
    for port in (handshake_port, notify_port):
        _host_port(host_ip, port)
    try:
        return _core.moriio_encode_heartbeat(
            {
                "type": role,
                "http_address": _host_port(host_ip, http_port),
                "zmq_address": f"host:{host_ip},handshake:{handshake_port},notify:{notify_port}",
                "dp_size": dp_size,
                "tp_size": tp_size,
                "transfer_mode": transfer_mode,
            }
        )
    except Error as error:
        raise ValueError(str(error)) from None


class HeartbeatSender:
    """Sends `message` to the proxy every `interval_s` seconds, from a child process.

    Neither the constructor nor anything later waits for the proxy. A child that dies is started
    again, after 0.5 s to 30 s; that is logged once each time. A child ends with its parent, however
    that ends. Thread-safety: all methods may be called from any thread.
    """

    def __init__(
        self,
        proxy_ip: str,
        proxy_ping_port: int,
        message: bytes,
        interval_s: float = INTERVAL_S,
    ) -> None:
        if not 0.001 <= interval_s <= 3600:
            raise ValueError(f"interval_s={interval_s!r}: 0.001 to 3600")
        self.endpoint = f"tcp://{_host_port(proxy_ip, proxy_ping_port)}"
        self._task = {
            "endpoint": self.endpoint,
            "message": message.hex(),
            "interval_s": interval_s,
            "parent": os.getpid(),
        }
        self._stop = threading.Event()
        self._lock = threading.Lock()  # Of the members below.
        self._child: subprocess.Popen[str] | None = None
        self._state = "starting"
        self._restarts = 0
        self._thread = threading.Thread(
            target=self._supervise, name="stagelink-heartbeat", daemon=True
        )
        self._thread.start()

    @property
    def state(self) -> str:
        """`starting`, `sending`, `unreachable` (the proxy is), `restarting` or `stopped`."""
        with self._lock:
            return self._state

    @property
    def restarts(self) -> int:
        """How often the child had to be started again."""
        with self._lock:
            return self._restarts

    @property
    def pid(self) -> int | None:
        """The child's process id, None while there is none."""
        with self._lock:
            return None if self._child is None else self._child.pid

    def close(self) -> None:
        """Ends the child within 2 s, by force if needed. The second call does nothing."""
        self._stop.set()
        with self._lock:
            child = self._child
        if child is not None:
            _close_input(child)
        self._thread.join(_STOP_S)
        if self._thread.is_alive() and child is not None:
            child.kill()
            self._thread.join(_STOP_S)
        self._set("stopped")

    def __enter__(self) -> "HeartbeatSender":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _set(self, state: str) -> None:
        with self._lock:
            self._state = state

    def _supervise(self) -> None:
        """One child after another until close()."""
        wait_s = _BACK_OFF_S
        while not self._stop.is_set():
            started = time.monotonic()
            why = self._run_child()
            if self._stop.is_set():
                return
            if time.monotonic() - started > 2 * _BACK_OFF_MAX_S:
                wait_s = _BACK_OFF_S
            log.warning(
                "heartbeat to %s: its process %s; the next one starts in %g s",
                self.endpoint, why, wait_s,
            )  # fmt: skip
            with self._lock:
                self._state = "restarting"
                self._restarts += 1
            self._stop.wait(wait_s)
            wait_s = min(wait_s * 2, _BACK_OFF_MAX_S)

    def _run_child(self) -> str:
        """Starts a child and follows what it says until it ends. Returns how it ended."""
        try:
            child = subprocess.Popen(
                [sys.executable, str(_CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True,
            )  # fmt: skip
        except OSError as error:
            return f"could not be started ({error.strerror})"
        with self._lock:
            self._child = child
        try:
            assert child.stdin is not None and child.stdout is not None
            try:
                child.stdin.write(json.dumps(self._task) + "\n")
                child.stdin.flush()
            except (OSError, ValueError):
                pass  # It is gone, or close() was faster; its end says so.
            if self._stop.is_set():
                _close_input(child)
            for line in child.stdout:
                self._heard(line.strip())
            return f"ended with {child.wait()}"
        finally:
            with self._lock:
                self._child = None
            _close_input(child)
            child.wait()
            if child.stdout is not None:
                child.stdout.close()

    def _heard(self, state: str) -> None:
        if state == "unreachable":
            log.warning("heartbeat: no proxy at %s; trying on", self.endpoint)
        elif state == "sending":
            log.info("heartbeat: sending to the proxy at %s", self.endpoint)
        else:
            return
        self._set(state)


def _close_input(child: "subprocess.Popen[str]") -> None:
    if child.stdin is not None:
        try:
            child.stdin.close()
        except (OSError, ValueError):
            pass
