"""What goes wrong between two real engines, and that every block is free afterwards."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import Engines
from harness import inside
from harness.engine import EngineProcess
from harness.pair import CONNECTOR, Pair, alone_job, new_name, prepare, setups
from harness.setups import Setup, decode_job, prefill_job, prompt, write_params

TOKENS = 8
ENGINE = {"max_num_batched_tokens": 128, "dtype": "float32"}
# Short, so that a lost peer costs seconds; the policy lets a request go on without its blocks.
TIMES = {
    "defer_timeout": 6,
    "transfer_timeout": 5,
    "recv_abort_timeout": 8,
    "handshake_timeout": 3,
    "lease_margin": 1,
}
RECOMPUTE = {**CONNECTOR, "kv_load_failure_policy": "recompute"}


def start(
    models: Path, engines: Engines, write_mode: bool, transport: str = "tcp", **engine: Any
) -> Pair:
    prefill_setup, decode_setup = setups(models / "llama", write_mode, ENGINE | engine, **TIMES)
    for setup in (prefill_setup, decode_setup):
        setup.connector = RECOMPUTE
    prefill = engines.start("prefill", prefill_setup, prepare(transport))
    decode = engines.start("decode", decode_setup, prepare(transport))
    return Pair(write_mode, prefill_setup, decode_setup, prefill.wait_ready(), decode.wait_ready())


@pytest.fixture(scope="module")
def alone(models: Path, module_engines: Engines) -> EngineProcess:
    return module_engines.start("alone", Setup(models / "llama", engine=ENGINE)).wait_ready()


def wanted(alone: EngineProcess, tokens: list[int], count: int = TOKENS) -> list[int]:
    return alone.run(alone_job(tokens, count)).tokens


def decode_leg(pair: Pair, name: str, tokens: list[int]) -> None:
    """Only decode's part; in read mode after prefill's."""
    if pair.write_mode:
        params = write_params(name, pair.prefill_setup)
    else:
        answer = pair.prefill_leg(name, tokens).params
        assert answer is not None
        params = answer
    pair.decode.submit(decode_job(name, tokens, TOKENS, params))


def test_an_abort_in_the_middle_of_a_read_gives_every_block_back(
    models: Path, engines: Engines, alone: EngineProcess
) -> None:
    """A stopped prefill process is a transfer that has begun and does not go on."""
    pair = start(models, engines, write_mode=False)
    first = prompt(1, 200)
    assert pair.run(first, TOKENS).tokens == wanted(alone, first)
    name, tokens = new_name("abort"), prompt(2, 300)
    answer = pair.prefill_leg(name, tokens)
    assert answer.params is not None
    pair.prefill.signal(signal.SIGSTOP)
    pair.decode.submit(decode_job(name, tokens, TOKENS, answer.params))
    pair.decode.until(inside.waits_for_remote)
    pair.decode.abort(name)
    pair.decode.until(inside.is_idle)
    pair.prefill.signal(signal.SIGCONT)
    pair.settle()
    again = prompt(3, 200)
    assert pair.run(again, TOKENS).tokens == wanted(alone, again)
    pair.settle()


def test_an_abort_before_the_write_begins_gives_every_block_back(
    models: Path, engines: Engines, alone: EngineProcess
) -> None:
    pair = start(models, engines, write_mode=True)
    first = prompt(1, 200)
    assert pair.run(first, TOKENS).tokens == wanted(alone, first)
    name, tokens = new_name("abort"), prompt(2, 300)
    pair.prefill.signal(signal.SIGSTOP)
    decode_leg(pair, name, tokens)
    pair.decode.until(inside.waits_for_remote)
    pair.decode.abort(name)
    pair.prefill.signal(signal.SIGCONT)
    pair.prefill.run(prefill_job(name, tokens, pair.decode_setup))
    pair.settle()
    again = prompt(3, 200)
    assert pair.run(again, TOKENS).tokens == wanted(alone, again)
    pair.settle()


@pytest.mark.parametrize("write_mode", [False, True], ids=["read", "write"])
def test_decode_computes_for_itself_when_prefill_dies_and_uses_the_next_one(
    models: Path, engines: Engines, alone: EngineProcess, write_mode: bool
) -> None:
    pair = start(models, engines, write_mode)
    first = prompt(1, 200)
    assert pair.run(first, TOKENS).tokens == wanted(alone, first)
    name, tokens = new_name("dies"), prompt(2, 300)
    if write_mode:
        decode_leg(pair, name, tokens)
        pair.decode.until(inside.waits_for_remote)
        pair.prefill.kill()
    else:
        answer = pair.prefill_leg(name, tokens).params
        assert answer is not None
        pair.prefill.kill()
        pair.decode.submit(decode_job(name, tokens, TOKENS, answer))
    assert pair.decode.outcome(name).tokens == wanted(alone, tokens)
    pair.prefill = engines.start("restarted", pair.prefill_setup, prepare("tcp")).wait_ready()
    again = prompt(3, 200)
    moved = pair.decode.call(inside.bytes_moved) + pair.prefill.call(inside.bytes_moved)
    assert pair.run(again, TOKENS).tokens == wanted(alone, again)
    assert pair.decode.call(inside.bytes_moved) + pair.prefill.call(inside.bytes_moved) > moved
    pair.settle()


@pytest.mark.parametrize("write_mode", [False, True], ids=["read", "write"])
def test_prefill_gets_its_blocks_back_when_decode_dies(
    models: Path, engines: Engines, alone: EngineProcess, write_mode: bool
) -> None:
    pair = start(models, engines, write_mode)
    first = prompt(1, 200)
    assert pair.run(first, TOKENS).tokens == wanted(alone, first)
    pair.settle()
    name, tokens = new_name("dies"), prompt(2, 300)
    if write_mode:
        pair.decode.kill()
        pair.prefill.run(prefill_job(name, tokens, pair.decode_setup))
    else:
        pair.prefill_leg(name, tokens)
        pair.decode.kill()
    pair.settle()
    if write_mode:
        return
    # Without its decode engine it goes on serving others.
    assert pair.prefill.run(alone_job(first, TOKENS)).tokens == wanted(alone, first)


@pytest.mark.parametrize("write_mode", [False, True], ids=["read", "write"])
def test_requests_that_are_preempted_give_the_same_tokens(
    models: Path, engines: Engines, alone: EngineProcess, write_mode: bool
) -> None:
    """Decode has room for a few of the requests only, so that others are preempted."""
    pair = start(models, engines, write_mode, transport="shm", kv_cache_memory_bytes=3 << 20)
    prompts = {new_name("small"): prompt(100 + i, 90) for i in range(12)}
    for name, tokens in prompts.items():
        pair.submit(name, tokens, 120)
    pair.decode.until(inside.preemptions)
    for name, tokens in prompts.items():
        assert pair.decode.outcome(name).tokens == wanted(alone, tokens, 120), name
    pair.settle()


@pytest.mark.parametrize("write_mode", [False, True], ids=["read", "write"])
def test_engines_whose_block_sizes_differ_refuse_each_other_by_name(
    models: Path, engines: Engines, alone: EngineProcess, write_mode: bool
) -> None:
    prefill_setup, decode_setup = setups(models / "llama", write_mode, ENGINE, **TIMES)
    prefill_setup.engine = ENGINE | {"block_size": 64}
    decode_setup.connector = prefill_setup.connector = RECOMPUTE
    prefill = engines.start("prefill", prefill_setup, prepare("shm"))
    decode = engines.start("decode", decode_setup, prepare("shm"))
    pair = Pair(write_mode, prefill_setup, decode_setup, prefill.wait_ready(), decode.wait_ready())
    tokens = prompt(5, 200)
    assert pair.run(tokens, TOKENS).tokens == wanted(alone, tokens)
    assert "block_size: ours 32, theirs 64" in decode.log.read_text()
    pair.settle()


@pytest.mark.parametrize("write_mode", [False, True], ids=["read", "write"])
def test_a_model_with_sliding_windows_gives_the_same_tokens(
    models: Path, engines: Engines, write_mode: bool
) -> None:
    """Two KV cache groups, one of which keeps the last blocks only."""
    prefill_setup, decode_setup = setups(models / "gemma", write_mode, ENGINE)
    alone = engines.start("alone", Setup(models / "gemma", engine=ENGINE))
    prefill = engines.start("prefill", prefill_setup, prepare("shm"))
    decode = engines.start("decode", decode_setup, prepare("shm"))
    pair = Pair(write_mode, prefill_setup, decode_setup, prefill.wait_ready(), decode.wait_ready())
    alone.wait_ready()
    for length in (20, 128, 129, 300, 415, 420):
        tokens = prompt(300 + length, length)
        before = prefill.call(inside.bytes_moved) + decode.call(inside.bytes_moved)
        assert pair.run(tokens, TOKENS).tokens == wanted(alone, tokens), length
        moved = prefill.call(inside.bytes_moved) + decode.call(inside.bytes_moved) - before
        # After 415 tokens prefill's window has just left the block that holds token 287, which the
        # last token still looks at: in read mode decode finds it gone, and computes the prompt.
        assert (moved > 0) == (write_mode or length != 415), length
    pair.settle()


def test_engines_of_both_roles_serve_each_other(
    models: Path, engines: Engines, alone: EngineProcess
) -> None:
    """kv_both: each is prefill for one request and decode for the next."""
    one, two = setups(models / "llama", write_mode=False, engine=ENGINE)
    one.role = two.role = "kv_both"
    first = engines.start("one", one, prepare("shm"))
    second = engines.start("two", two, prepare("shm"))
    there = Pair(False, one, two, first.wait_ready(), second.wait_ready())
    back = Pair(False, two, one, second, first)
    for pair, seed in ((there, 11), (back, 12)):
        tokens = prompt(seed, 150)
        assert pair.run(tokens, TOKENS).tokens == wanted(alone, tokens)
        pair.settle()
