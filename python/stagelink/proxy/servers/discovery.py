"""Servers that announce themselves: a ROUTER socket to which vLLM's connectors send heartbeats."""

import asyncio
import ipaddress
from collections.abc import Sequence

import zmq
import zmq.asyncio

from ...pull.log_limit import quiet_logger
from ..addresses import join_host_port, split_host_port
from ..metrics import Metrics
from ..options import Network
from .messages import MAX_HEARTBEAT_BYTES, Heartbeat, decode_heartbeat, parse_zmq_address
from .table import Role, Server, ServerPool

log = quiet_logger("stagelink.proxy")

# Heartbeats that wait to be read, from one sender; more are dropped, others come in 3 s.
_WAITING = 64
_EXPIRY_CHECK_S = 1.0


class Discovery:
    """Fills a table of servers from heartbeats. Nothing that is received ends it."""

    def __init__(self, pool: ServerPool, allow: Sequence[Network], metrics: Metrics) -> None:
        self._pool = pool
        self._allow = allow
        self._metrics = metrics
        self._context: zmq.asyncio.Context | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, host: str, port: int) -> int:
        """Binds and begins to listen; returns the port. Raises zmq.ZMQError if it cannot."""
        self._context = zmq.asyncio.Context()
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_HEARTBEAT_BYTES)
        socket.setsockopt(zmq.RCVHWM, _WAITING)
        socket.setsockopt(zmq.IPV6, ":" in host)
        try:
            socket.bind(f"tcp://{join_host_port(host, port)}")
        except zmq.ZMQError:
            socket.close()
            self._context.term()
            raise
        bound: str = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._tasks = [
            asyncio.create_task(self._listen(socket)),
            asyncio.create_task(self._expire()),
        ]
        return int(bound.rpartition(":")[2])

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)

    async def _listen(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            try:
                frames = await socket.recv_multipart()
                self._take(frames)
            except Exception:  # A bug; the next heartbeat is another one.
                log.exception("a heartbeat could not be handled")
                self._metrics.heartbeats.labels("failed").inc()
                await asyncio.sleep(0.1)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_CHECK_S)
            for server in self._pool.expire():
                log.warning("%s server %s: no heartbeat, forgotten", server.role.value, server.url)

    def _take(self, frames: list[bytes]) -> None:
        who = "a sender without an address"
        try:
            if len(frames) != 2:
                raise ValueError(f"a message of {len(frames) - 1} frames, not 1")
            heartbeat = decode_heartbeat(frames[1])
            who = heartbeat.http_address[:64] or who
            outcome = self._heard(heartbeat)
        except ValueError as error:
            outcome = "refused"
            if self._pool.refuse(who, str(error)):
                log.warning("heartbeat of %s refused: %s", who, error)
        self._metrics.heartbeats.labels(outcome).inc()

    def _heard(self, heartbeat: Heartbeat) -> str:
        """`accepted` or `hello`. ValueError says why it is refused."""
        if heartbeat.type == "HELLO":  # Of former times: a sign of life, nothing more.
            if heartbeat.http_address:
                host, port = split_host_port(heartbeat.http_address)
                self._pool.renew(f"http://{join_host_port(host, port)}")
            return "hello"
        host, port = split_host_port(heartbeat.http_address)
        self._check_allowed(host)
        address = parse_zmq_address(heartbeat.zmq_address)
        self._check_allowed(address.host)
        mode = heartbeat.transfer_mode.lower()
        if mode not in ("read", "write"):
            raise ValueError(f"transfer_mode {heartbeat.transfer_mode[:16]!r}: READ or WRITE")
        server = Server(
            role=Role.PREFILL if heartbeat.type == "P" else Role.DECODE,
            url=f"http://{join_host_port(host, port)}",
            zmq_address=address,
            tp_size=heartbeat.tp_size,
            dp_size=heartbeat.dp_size,
            mode=mode,
            fixed=False,
            heard_at=self._pool.now(),
        )
        if self._pool.add(server):
            log.info(
                "%s server %s: %s mode, tp %d, dp %d, connector at %s",
                server.role.value, server.url, mode, server.tp_size, server.dp_size, address,
            )  # fmt: skip
        return "accepted"

    def _check_allowed(self, host: str) -> None:
        if not self._allow:
            return
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            raise ValueError(f"{host!r} is a name; --allow takes addresses only") from None
        if not any(address in network for network in self._allow):
            raise ValueError(f"{host} is in no network of --allow")
