"""`python -m stagelink.proxy` as a process: what people and scripts see of it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import stagelink as sl
from stagelink.proxy.command_line import parse_options
from stagelink.proxy.options import ServerOption
from stagelink.proxy.run import warnings

SERVERS = ("--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2", "--mode", "read")
PROXY = (sys.executable, "-m", "stagelink.proxy")


def proxy(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*PROXY, *arguments], capture_output=True, text=True, timeout=60)


@contextmanager
def running(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen([*PROXY, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)
        assert process.stderr is not None
        process.stderr.close()


def line_with(process: "subprocess.Popen[str]", text: str) -> str:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return line
    raise AssertionError(f"no {text!r} in {lines}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_help_has_examples_and_every_default() -> None:
    done = proxy("--help")
    assert done.returncode == 0
    for text in ("examples:", "--heartbeat", "curl", "exit codes:", "127.0.0.1:10001"):
        assert text in done.stdout


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "no servers"),
        (("--prefill", "http://127.0.0.1:1"), "no servers"),
        (SERVERS[:4], "--mode read or write is needed"),
        ((*SERVERS, "--decode", "http://127.0.0.1:2"), "is there twice"),
        (("--prefill", "127.0.0.1:8000"), "is not a URL such as"),
        (("--prefill", "http://127.0.0.1:8000,notfy=1"), "known are host="),
        (("--prefill", "http://127.0.0.1:8000,notify=70000"), "is not a port"),
        (("--prefill", "http://u@127.0.0.1:8000"), "neither user, query nor fragment"),
        ((*SERVERS, "--retries", "11"), "from 0 to 10"),
        ((*SERVERS, "--grace", "0"), "between 1ms and 24h"),
        ((*SERVERS, "--grace", "25h"), "between 1ms and 24h"),
        ((*SERVERS, "--max-body", "5GiB"), "between 1 and 4GiB"),
        (("--heartbeat", "--allow", "10.0.0.1/8"), "host bits set"),
        ((*SERVERS, "--nonsense"), "unrecognized arguments"),
    ],
)
def test_wrong_options_end_with_2_and_a_reason(
    arguments: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert what in said
    assert "--help" in said


def test_options_are_what_the_command_line_says() -> None:
    options = parse_options(
        ["--prefill", "https://p.example/base/,handshake=1,notify=2,tp=3,dp=4,host=10.0.0.1",
         "--decode", "http://[::1]:8001", "--mode", "write", "--listen", "[::]:80",
         "--stream-timeout", "1.5m", "--connect-timeout", "250ms", "--max-body", "1MiB",
         "--heartbeat", "--allow", "fd00::/8"],
    )  # fmt: skip
    assert options.prefill == (ServerOption("https://p.example:443/base", "10.0.0.1", 1, 2, 3, 4),)
    assert options.decode == (ServerOption("http://[::1]:8001", "::1"),)
    assert (options.listen, options.heartbeat) == (("::", 80), ("127.0.0.1", 36367))
    assert (options.stream_timeout_s, options.connect_timeout_s) == (90.0, 0.25)
    assert (options.max_body_bytes, str(options.allow[0])) == (1 << 20, "fd00::/8")
    assert warnings(options) != []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal_and_ends_with_0(number: signal.Signals) -> None:
    with running(*SERVERS, "--listen", str(port := free_port())) as process:
        line_with(process, f"clients: http://127.0.0.1:{port}")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=30) as answer:
            page = json.load(answer)
        assert [server["state"] for server in page["servers"]] == ["up", "up"]
        process.send_signal(number)
        assert process.wait(30) == 0


def test_a_port_that_is_taken_ends_with_1() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = proxy(*SERVERS, "--listen", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "cannot listen" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_open_address_without_a_key_is_warned_of_once() -> None:
    with running(*SERVERS, "--listen", f"0.0.0.0:{free_port()}", "--json") as process:
        warning = json.loads(line_with(process, "API key"))
        assert warning["level"] == "warning"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", warning["time"])
        line_with(process, "clients: ")


def test_wrong_options_of_the_process_end_it_with_2() -> None:
    done = proxy("--prefill", "nowhere")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    code = (
        "import sys; sys.modules['aiohttp'] = None; sys.argv = ['proxy']\n"
        "from stagelink.proxy.__main__ import main\nsys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "aiohttp" in done.stderr
    assert "pip install 'stagelink[proxy]'" in done.stderr


COMMAND = Path(sl.__file__).parents[2] / "stagelink"
NO_COMMAND = pytest.mark.skipif(
    not COMMAND.is_file(), reason=f"the command is not next to the package ({COMMAND})"
)


def command(python: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [COMMAND, "proxy", *arguments], capture_output=True, text=True, timeout=60,
        env=os.environ | {"STAGELINK_PYTHON": python},
    )  # fmt: skip


@NO_COMMAND
def test_the_command_passes_everything_on_to_python() -> None:
    shown = command(sys.executable, "--help")
    assert (shown.returncode, shown.stdout) == (0, proxy("--help").stdout)
    wrong = command(sys.executable, "--prefill", "nowhere")
    assert (wrong.returncode, "is not a URL" in wrong.stderr) == (2, True)


@NO_COMMAND
@pytest.mark.parametrize("python", ["/nowhere/python3", "false"])
def test_the_command_says_that_no_python_has_the_package(python: str) -> None:
    done = command(python, "--help")
    assert done.returncode == 1
    assert f"not in: {python}" in done.stderr
    assert "pip install '.[proxy]'" in done.stderr
