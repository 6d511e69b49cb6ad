"""One proxy from its options to its end."""

import asyncio
import signal
from collections.abc import Sequence

import zmq
from aiohttp import web

from ..pull.log_limit import quiet_logger
from . import logs
from .addresses import (
    DEFAULT_HANDSHAKE_PORT,
    DEFAULT_NOTIFY_PORT,
    is_loopback,
    join_host_port,
)
from .app import App
from .command_line import API_KEY_VARIABLE, parse_options
from .metrics import Metrics
from .options import Options, ServerOption
from .servers.discovery import Discovery
from .servers.messages import ZmqAddress
from .servers.table import Role, Server, ServerPool

log = quiet_logger("stagelink.proxy")


def _server(role: Role, option: ServerOption) -> Server:
    address = ZmqAddress(
        option.host,
        option.handshake_port or DEFAULT_HANDSHAKE_PORT,
        option.notify_port or DEFAULT_NOTIFY_PORT,
    )
    said = option.handshake_port is not None or option.notify_port is not None
    return Server(
        role, option.url, address if said else None, option.tp_size, option.dp_size, None,
        fixed=True, default_address=address,
    )  # fmt: skip


def make_pool(options: Options) -> ServerPool:
    pool = ServerPool(options.mode, options.max_servers, options.heartbeat_timeout_s)
    for role, servers in ((Role.PREFILL, options.prefill), (Role.DECODE, options.decode)):
        for server in servers:
            pool.add(_server(role, server))
    return pool


class Proxy:
    """The running parts. `start` binds; `stop` lets requests end for `grace_s`, then ends them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pool = make_pool(options)
        self._metrics = Metrics(self._pool)
        self._discovery = Discovery(self._pool, options.allow, self._metrics)
        self._runner: web.AppRunner | None = None
        self.port = 0
        self.heartbeat_port: int | None = None

    async def start(self) -> None:
        """Raises OSError or zmq.ZMQError if an address cannot be bound."""
        app = App(self._options, self._pool, self._metrics).make()
        # handler_cancellation: a client that goes away ends the legs of its request.
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=self._options.grace_s
        )
        await self._runner.setup()
        host, port = self._options.listen
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        if self._options.heartbeat is not None:
            self.heartbeat_port = self._discovery.start(*self._options.heartbeat)

    async def stop(self) -> None:
        await self._discovery.stop()
        if self._runner is not None:
            await self._runner.cleanup()


def warnings(options: Options) -> list[str]:
    found = []
    if not is_loopback(options.listen[0]) and options.api_key is None:
        found.append(
            f"{join_host_port(*options.listen)} can be reached from other hosts and there is no "
            f"API key (${API_KEY_VARIABLE}): whoever reaches it can use the servers"
        )
    if options.heartbeat and not is_loopback(options.heartbeat[0]) and not options.allow:
        found.append(
            f"heartbeats on {join_host_port(*options.heartbeat)} are believed from anywhere: "
            "requests go where they say; name your networks with --allow"
        )
    return found


async def _run(options: Options) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    proxy = Proxy(options)
    try:
        await proxy.start()
    except (OSError, zmq.ZMQError) as error:
        log.error("cannot listen: %s", error)
        await proxy.stop()
        return 1
    for text in warnings(options):
        log.warning("%s", text)
    log.info("clients: http://%s", join_host_port(options.listen[0], proxy.port))
    if proxy.heartbeat_port is not None and options.heartbeat is not None:
        host = options.heartbeat[0]
        log.info("heartbeats: %s", join_host_port(host, proxy.heartbeat_port))
    await stopped.wait()
    log.info("stopping")
    await proxy.stop()
    return 0


def main(arguments: Sequence[str]) -> int:
    options = parse_options(arguments)
    logs.set_up(options.log_level, options.json_logs)
    return asyncio.run(_run(options))
