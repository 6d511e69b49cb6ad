"""The command line: argparse over a table of options."""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import NoReturn

from .addresses import DEFAULT_HANDSHAKE_PORT, DEFAULT_NOTIFY_PORT, join_host_port
from .options import (
    Options,
    parse_count,
    parse_duration,
    parse_listen,
    parse_network,
    parse_server,
    parse_size,
)

API_KEY_VARIABLE = "STAGELINK_PROXY_API_KEY"
DEFAULT_HEARTBEAT = "127.0.0.1:36367"
SERVER_METAVAR = "URL[,KEY=VALUE...]"

EXAMPLES = f"""\
a server is a URL and, after commas, what its heartbeat would tell:
  handshake=PORT, notify=PORT, host=HOST: where its connector listens; tp=N, dp=N: its ranks

examples:
  Servers that announce themselves (in their kv_connector_extra_config: proxy_ip 127.0.0.1 and
  proxy_ping_port 36367):
    stagelink proxy --heartbeat
  Two servers by address, connectors in read mode:
    stagelink proxy --mode read --prefill http://127.0.0.1:8000 --decode http://127.0.0.1:8001
  Write mode needs the connectors' ports where they are not {DEFAULT_HANDSHAKE_PORT} and \
{DEFAULT_NOTIFY_PORT}:
    stagelink proxy --mode write --prefill http://127.0.0.1:8000,handshake=6301,notify=61005 \\
      --decode http://127.0.0.1:8001,handshake=6401,notify=61105
  Then, as with any OpenAI server:
    curl http://127.0.0.1:10001/v1/completions -H 'Content-Type: application/json' \\
      -d '{{"model": "MODEL", "prompt": "Once upon a time", "max_tokens": 16, "stream": true}}'
    curl http://127.0.0.1:10001/status

times are seconds or text with a unit (500ms, 5s, 2m); sizes are bytes or text (512KiB, 32MiB)
exit codes: 0 stopped by a signal, 1 could not run, 2 wrong options
"""

# Heading, then flag, field of Options, parser, metavar, text. `{}` in a text is the default.
Row = tuple[str, str, Callable[[str], object], str, str]
TABLE: dict[str, list[Row]] = {
    "addresses": [
        ("--listen", "listen", parse_listen, "HOST:PORT",
         "where clients connect; a port alone is on 127.0.0.1 (default: {})"),
    ],
    "bounds on time": [
        ("--connect-timeout", "connect_timeout_s", parse_duration, "TIME",
         "connecting to a server ({} s)"),
        ("--prefill-timeout", "prefill_timeout_s", parse_duration, "TIME",
         "a prefill server's whole answer ({} s)"),
        ("--stream-timeout", "stream_timeout_s", parse_duration, "TIME",
         "silence of a decode server within a stream, first token included ({} s)"),
        ("--request-timeout", "request_timeout_s", parse_duration, "TIME",
         "one request with all retries ({} s)"),
        ("--client-timeout", "client_timeout_s", parse_duration, "TIME",
         "a client that neither sends its body nor takes its answer ({} s)"),
        ("--heartbeat-timeout", "heartbeat_timeout_s", parse_duration, "TIME",
         "after this silence an announced server is forgotten ({} s)"),
        ("--grace", "grace_s", parse_duration, "TIME",
         "requests that run when the proxy is stopped ({} s)"),
    ],
    "other bounds": [
        ("--retries", "retries", parse_count(0, 10), "N",
         "further attempts while no byte has gone to the client ({})"),
        ("--max-requests", "max_requests", parse_count(1, 65536), "N",
         "requests at one time; more are answered 503 ({})"),
        ("--max-siblings", "max_siblings", parse_count(1, 1024), "N",
         "choices of one request: prompts times n ({})"),
        ("--max-servers", "max_servers", parse_count(1, 4096), "N",
         "servers in the table ({})"),
        ("--max-body", "max_body_bytes", parse_size, "SIZE", "a request's body ({} B)"),
        ("--max-response", "max_response_bytes", parse_size, "SIZE",
         "an answer that is not a stream ({} B)"),
    ],
}  # fmt: skip


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\nRun with --help for the options.\n")


def _typed(parse: Callable[[str], object]) -> Callable[[str], object]:
    """argparse shows the text of an ArgumentTypeError and of no other."""

    def checked(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return join_host_port(*value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="stagelink proxy",
        description="Sends each OpenAI request to a prefill server and to a decode server.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    servers = parser.add_argument_group("servers")
    for role in ("prefill", "decode"):
        servers.add_argument(
            f"--{role}", action="append", default=[], type=_typed(parse_server),
            metavar=SERVER_METAVAR, help=f"a {role} server; repeat for more",
        )  # fmt: skip
    servers.add_argument(
        "--mode", choices=("auto", "read", "write"), default="auto",
        help="what read_mode of the connectors says; auto: what the first heartbeat says (auto)",
    )  # fmt: skip
    servers.add_argument(
        "--heartbeat", nargs="?", const=DEFAULT_HEARTBEAT, metavar="HOST:PORT",
        type=_typed(parse_listen),
        help=f"listen for servers that announce themselves ({DEFAULT_HEARTBEAT})",
    )  # fmt: skip
    servers.add_argument(
        "--allow", action="append", default=[], type=_typed(parse_network), metavar="NETWORK",
        help="announced servers must be in one of these, such as 10.0.0.0/8; repeat for more",
    )  # fmt: skip
    for heading, rows in TABLE.items():
        group = parser.add_argument_group(heading)
        for flag, dest, parse, metavar, text in rows:
            default = getattr(Options, dest)
            group.add_argument(
                flag, dest=dest, type=_typed(parse), metavar=metavar, default=default,
                help=text.format(_shown(default)),
            )  # fmt: skip
    others = parser.add_argument_group("others")
    others.add_argument(
        "--api-key", metavar="KEY",
        help=f"clients must send it as a bearer token; better in ${API_KEY_VARIABLE}",
    )  # fmt: skip
    others.add_argument("--json", dest="json_logs", action="store_true", help="log lines as JSON")
    others.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info",
        help="debug has a line for each request (info)",
    )  # fmt: skip
    return parser


def parse_options(arguments: Sequence[str]) -> Options:
    """Exits with 2 and a text if they are wrong."""
    parser = make_parser()
    found = parser.parse_args(arguments)
    found.api_key = found.api_key or os.environ.get(API_KEY_VARIABLE) or None
    values = {field.name: getattr(found, field.name) for field in fields(Options)}
    values.update({name: tuple(values[name]) for name in ("prefill", "decode", "allow")})
    options = Options(**values)
    if options.heartbeat is None:
        if not options.prefill or not options.decode:
            parser.error(
                "no servers: name a --prefill and a --decode, or let them announce themselves "
                "with --heartbeat"
            )
        if options.mode == "auto":
            parser.error(
                "--mode read or write is needed without --heartbeat: what read_mode of the "
                "servers' connectors says (vLLM's default is write)"
            )
    for role in (options.prefill, options.decode):
        urls = [server.url for server in role]
        twice = next((url for url in urls if urls.count(url) > 1), None)
        if twice:
            parser.error(f"{twice} is there twice")
    return options
