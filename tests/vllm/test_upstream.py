"""vLLM 0.32's own connector on our IO engine: tokens equal those of one engine alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Engines
from harness import upstream
from harness.engine import EngineProcess, Job
from harness.setups import Setup, decode_job, prefill_job, prompt, write_params

PROMPTS = [(1, 300), (2, 97), (3, 64), (4, 33)]
TOKENS = 12
PREPARE: dict[str, Callable[[], None]] = {
    "shm": upstream.prepare_shm,
    "tcp": upstream.prepare_tcp,
}


@pytest.fixture(scope="module")
def alone(models: Path, module_engines: Engines) -> EngineProcess:
    return module_engines.start("alone", Setup(models / "llama"))


def expected(alone: EngineProcess) -> list[list[int]]:
    alone.wait_ready()
    return [
        alone.run(Job(f"alone-{seed}-{length}-{id(object())}", prompt(seed, length), TOKENS)).tokens
        for seed, length in PROMPTS
    ]


def test_one_engine_gives_the_same_prompt_the_same_tokens(alone: EngineProcess) -> None:
    """Else nothing here could be compared."""
    alone.wait_ready()
    first, second, other = (
        alone.run(Job(name, prompt(seed, 300), TOKENS)).tokens
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == second != other


def pair(
    models: Path, engines: Engines, transport: str, read_mode: bool
) -> tuple[Setup, EngineProcess, Setup, EngineProcess]:
    extra = {"read_mode": str(read_mode).lower()}
    prefill_setup = Setup(models / "llama", "kv_producer", extra=extra)
    decode_setup = Setup(models / "llama", "kv_consumer", extra=extra)
    prefill = engines.start("prefill", prefill_setup, PREPARE[transport])
    decode = engines.start("decode", decode_setup, PREPARE[transport])
    return prefill_setup, prefill.wait_ready(), decode_setup, decode.wait_ready()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_read_mode_gives_the_tokens_of_one_engine(
    models: Path, engines: Engines, alone: EngineProcess, transport: str
) -> None:
    wanted = expected(alone)
    _, prefill, _, decode = pair(models, engines, transport, read_mode=True)
    for number, (seed, length) in enumerate(PROMPTS):
        name = f"read-{transport}-{number}"
        answer = prefill.run(prefill_job(name, prompt(seed, length)))
        assert answer.params is not None
        got = decode.run(decode_job(name, prompt(seed, length), TOKENS, answer.params))
        assert got.tokens == wanted[number]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_write_mode_gives_the_tokens_of_one_engine(
    models: Path, engines: Engines, alone: EngineProcess, transport: str
) -> None:
    wanted = expected(alone)
    prefill_setup, prefill, decode_setup, decode = pair(models, engines, transport, read_mode=False)
    for number, (seed, length) in enumerate(PROMPTS):
        name = f"write-{transport}-{number}"
        tokens = prompt(seed, length)
        decode.submit(decode_job(name, tokens, TOKENS, write_params(name, prefill_setup)))
        prefill.submit(prefill_job(name, tokens, decode_setup))
        prefill.outcome(name)
        assert decode.outcome(name).tokens == wanted[number]
