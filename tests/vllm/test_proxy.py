"""Two of vLLM's own HTTP servers with our connector behind the proxy: one address, one answer."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Engines
from harness.engine import EngineProcess
from harness.pair import CONNECTOR, alone_job
from harness.setups import BLOCK, Setup, free_ports, prompt

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")

TOKENS = 10
START_S = 600.0
ENGINE = {"dtype": "float32"}
GREEDY = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}


@contextmanager
def process(log: Path, *arguments: str) -> Iterator[None]:
    """A Python process that ends with the block, and whatever it has started too."""
    with log.open("wb") as out:
        started = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdout=out, stderr=out, start_new_session=True
        )
        try:
            yield
        finally:
            started.terminate()
            try:
                started.wait(30)
            except subprocess.TimeoutExpired:
                pass
            subprocess.run(
                ["kill", "-9", "--", f"-{started.pid}"], check=False, capture_output=True
            )
            started.wait()


def post(url: str, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return bytes(answer.read())


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def wait_for(condition: Callable[[], bool], logs: Path) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            if condition():
                return
        except (urllib.error.URLError, OSError):
            pass
        if time.monotonic() > until:
            tails = [f"{log.name}:\n{log.read_text()[-3000:]}" for log in logs.glob("*.log")]
            pytest.fail("the servers did not come up\n" + "\n".join(tails))
        time.sleep(0.2)


@dataclass
class Front:
    url: str

    def complete(self, tokens: list[int], **changes: Any) -> list[list[int]]:
        """The tokens of each choice."""
        body = {"prompt": tokens, "max_tokens": TOKENS, **GREEDY}
        answer = json.loads(
            post(f"{self.url}/v1/completions", {"model": "tiny", **body, **changes})
        )
        return [choice["token_ids"] for choice in answer["choices"]]

    def stream(self, tokens: list[int]) -> list[int]:
        body = {"prompt": tokens, "max_tokens": TOKENS, **GREEDY}
        raw = post(f"{self.url}/v1/completions", {"model": "tiny", **body, "stream": True})
        *events, last = [part.removeprefix(b"data: ") for part in raw.split(b"\n\n") if part]
        assert last == b"[DONE]"
        return [
            token
            for event in events
            for token in json.loads(event)["choices"][0]["token_ids"] or []
        ]


def make_tokenizer(model: Path, folder: Path) -> Path:
    """One for bytes; the server wants one, though prompts are tokens here."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    size = json.loads((model / "config.json").read_text())["vocab_size"]
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    words += [f"<x{number}>" for number in range(len(words), size)]
    tokenizer = Tokenizer(BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def server_arguments(setup: Setup, tokenizer: Path, ping_port: int, read_mode: bool) -> list[str]:
    extra = {
        **setup.extra_config,
        "proxy_ip": "127.0.0.1",
        "proxy_ping_port": ping_port,
        "read_mode": read_mode,
    }
    transfer = {
        "kv_connector": "MoRIIOConnector",
        "kv_role": setup.role,
        "kv_connector_extra_config": extra,
        **CONNECTOR,
    }
    return [
        "vllm.entrypoints.openai.api_server", "--model", str(setup.model),
        "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(setup.ports[0]),
        "--tokenizer", str(tokenizer), "--enforce-eager", "--max-model-len", "1024",
        "--block-size", str(BLOCK), "--kv-cache-memory-bytes", str(32 << 20),
        "--dtype", "float32", "--kv-transfer-config", json.dumps(transfer),
    ]  # fmt: skip


@pytest.fixture(scope="module", params=["read", "write"])
def front(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    """The proxy, started first; the servers find it by their heartbeats."""
    logs = tmp_path_factory.mktemp(f"proxy-{request.param}")
    listen, ping = free_ports(2)
    tokenizer = make_tokenizer(models / "llama", logs / "tokenizer")
    with ExitStack() as stack:
        stack.enter_context(
            process(
                logs / "proxy.log",
                "stagelink.proxy",
                "--listen",
                str(listen),
                "--heartbeat",
                str(ping),
                "--log-level",
                "debug",
            )  # fmt: skip
        )
        for role in ("kv_producer", "kv_consumer"):
            setup = Setup(models / "llama", role)
            arguments = server_arguments(setup, tokenizer, ping, request.param == "read")
            stack.enter_context(process(logs / f"{role}.log", *arguments))
            wait_for(lambda s=setup: get_ok(f"http://127.0.0.1:{s.ports[0]}/health"), logs)
        url = f"http://127.0.0.1:{listen}"
        wait_for(lambda: get(f"{url}/health")["ready"], logs)
        assert get(f"{url}/status")["mode"] == request.param
        yield Front(url)


def get_ok(url: str) -> bool:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bool(answer.status == 200)


@pytest.fixture(scope="module")
def alone(models: Path, module_engines: Engines) -> EngineProcess:
    return module_engines.start("alone", Setup(models / "llama", engine=ENGINE)).wait_ready()


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK + 1, 300])
def test_the_tokens_are_those_of_one_engine(
    front: Front, alone: EngineProcess, length: int
) -> None:
    tokens = prompt(3000 + length, length)
    wanted = alone.run(alone_job(tokens, TOKENS, ignore_eos=True)).tokens
    assert front.complete(tokens) == [wanted]
    assert front.stream(tokens) == wanted


def test_choices_and_prompts_of_one_request_are_kept_apart(
    front: Front, alone: EngineProcess
) -> None:
    prompts = [prompt(3500 + i, 100) for i in range(2)]
    wanted = [alone.run(alone_job(tokens, TOKENS, ignore_eos=True)).tokens for tokens in prompts]
    got = front.complete(prompts, n=2, temperature=1.0, top_k=1)  # type: ignore[arg-type]
    assert got == [wanted[0], wanted[0], wanted[1], wanted[1]]


def test_sixteen_requests_at_once(front: Front, alone: EngineProcess) -> None:
    prompts = [prompt(4000 + i, 90 + i) for i in range(16)]
    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(front.complete, prompts))
    for tokens, choices in zip(prompts, got, strict=True):
        assert choices == [alone.run(alone_job(tokens, TOKENS, ignore_eos=True)).tokens]
