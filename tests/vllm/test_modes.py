"""Our connector between two real engines: both modes, mapped memory and TCP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Engines
from harness import inside
from harness.engine import EngineProcess
from harness.pair import Pair, alone_job, new_name, prepare, setups
from harness.setups import BLOCK, Setup, decode_job, prefill_job, prompt, write_params

TOKENS = 10
# vLLM takes n > 1 for sampling only; of one candidate there is one outcome.
SAMPLES = {"n": 3, "temperature": 1.0, "top_k": 1}
CHUNK = 128  # Of a prompt that is computed in one step; longer ones come in several.
# float32: greedy tokens then do not depend on how requests are batched.
ENGINE = {"max_num_batched_tokens": CHUNK, "dtype": "float32"}


@pytest.fixture(scope="module")
def alone(models: Path, module_engines: Engines) -> EngineProcess:
    return module_engines.start("alone", Setup(models / "llama", engine=ENGINE))


@pytest.fixture(
    scope="module",
    params=["read-shm", "write-shm", "read-tcp", "write-tcp", "early-shm"],
)
def shared_pair(
    request: pytest.FixtureRequest,
    models: Path,
    tmp_path_factory: pytest.TempPathFactory,
    alone: EngineProcess,
) -> Iterator[Pair]:
    mode, transport = request.param.split("-")
    write_mode = mode != "read"
    extra = {"early_push": "true"} if mode == "early" else {}
    prefill_setup, decode_setup = setups(models / "llama", write_mode, ENGINE, **extra)
    engines = Engines(tmp_path_factory.mktemp(request.param))
    prefill = engines.start("prefill", prefill_setup, prepare(transport))
    decode = engines.start("decode", decode_setup, prepare(transport))
    alone.wait_ready()
    yield Pair(write_mode, prefill_setup, decode_setup, prefill.wait_ready(), decode.wait_ready())
    engines.stop()


@pytest.fixture
def pair(shared_pair: Pair) -> Iterator[Pair]:
    yield shared_pair
    shared_pair.settle()


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 300])
def test_the_tokens_are_those_of_one_engine(pair: Pair, alone: EngineProcess, length: int) -> None:
    tokens = prompt(1000 + length, length)
    before = pair.decode.call(inside.bytes_moved) + pair.prefill.call(inside.bytes_moved)
    got = pair.run(tokens, TOKENS)
    assert got.tokens == alone.run(alone_job(tokens, TOKENS)).tokens
    assert pair.decode.call(inside.bytes_moved) + pair.prefill.call(inside.bytes_moved) > before


def test_the_cache_lies_in_shareable_memory(pair: Pair) -> None:
    assert pair.prefill.call(inside.placement) == "context"
    assert pair.decode.call(inside.placement) == "context"


def test_only_what_decode_lacks_travels(pair: Pair, alone: EngineProcess) -> None:
    tokens = prompt(7, 9 * BLOCK)
    moved = []
    for part in (tokens[: 8 * BLOCK], tokens):
        before = pair.decode.call(inside.bytes_moved) + pair.prefill.call(inside.bytes_moved)
        got = pair.run(part, TOKENS)
        assert got.tokens == alone.run(alone_job(part, TOKENS)).tokens
        after = pair.decode.call(inside.bytes_moved) + pair.prefill.call(inside.bytes_moved)
        moved.append(after - before)
    assert moved[1] * 4 <= moved[0]


def test_64_requests_at_once(pair: Pair, alone: EngineProcess) -> None:
    prompts = {new_name("many"): prompt(2000 + i, 40 + 3 * i) for i in range(64)}
    for name, tokens in prompts.items():
        pair.submit(name, tokens, 4)
    for name, tokens in prompts.items():
        wanted = alone_job(tokens, 4)
        assert pair.decode.outcome(name).tokens == alone.run(wanted).tokens, name


def test_samples_of_one_prompt_share_one_transfer(pair: Pair, alone: EngineProcess) -> None:
    tokens = prompt(31, 200)
    name = new_name("samples")
    if pair.write_mode:
        params = write_params(name, pair.prefill_setup)
        pair.decode.submit(decode_job(name, tokens, TOKENS, params, **SAMPLES))
        pair.prefill.run(prefill_job(name, tokens, pair.decode_setup))
    else:
        answer = pair.prefill_leg(name, tokens)
        assert answer.params is not None
        pair.decode.submit(decode_job(name, tokens, TOKENS, answer.params, **SAMPLES))
    wanted = alone.run(alone_job(tokens, TOKENS)).tokens
    assert pair.decode.outcome(name).samples == [wanted] * 3


def test_a_first_token_that_ends_the_prefill_leg_hands_over_all_the_same(
    pair: Pair, alone: EngineProcess
) -> None:
    tokens = prompt(41, 150)
    wanted = alone.run(alone_job(tokens, TOKENS)).tokens
    name = new_name("stopped")
    stop = {"stop_token_ids": [wanted[0]]}
    if pair.write_mode:
        params = write_params(name, pair.prefill_setup)
        pair.decode.submit(decode_job(name, tokens, TOKENS, params))
        answer = pair.prefill.run(prefill_job(name, tokens, pair.decode_setup, **stop))
    else:
        answer = pair.prefill_leg(name, tokens, **stop)
        assert answer.params is not None
        pair.decode.submit(decode_job(name, tokens, TOKENS, answer.params))
    assert answer.reason == "stop"
    assert pair.decode.outcome(name).tokens == wanted


def test_a_request_that_is_aborted_while_it_waits_gives_its_blocks_back(pair: Pair) -> None:
    tokens = prompt(51, 300)
    name = new_name("waits")
    if pair.write_mode:
        params = write_params(name, pair.prefill_setup)
        pair.decode.submit(decode_job(name, tokens, TOKENS, params))
        pair.decode.until(inside.waits_for_remote)
        pair.decode.abort(name)
        pair.prefill.run(prefill_job(name, tokens, pair.decode_setup))
        return
    answer = pair.prefill_leg(name, tokens)
    assert answer.params is not None
    pair.decode.call(inside.hold_reads)
    pair.decode.submit(decode_job(name, tokens, TOKENS, answer.params))
    pair.decode.until(inside.waits_for_remote)
    pair.decode.abort(name)
    pair.decode.call(inside.let_reads_go)


def test_an_aborted_prefill_is_told_to_decode(pair: Pair, alone: EngineProcess) -> None:
    """Decode does not wait for blocks that nobody computes (policy `fail`: an error)."""
    if not pair.write_mode:
        pytest.skip("in read mode decode is asked after the prefill leg")
    tokens = prompt(61, 900)
    name = new_name("gone")
    params = write_params(name, pair.prefill_setup)
    pair.decode.submit(decode_job(name, tokens, TOKENS, params))
    pair.decode.until(inside.waits_for_remote)
    pair.prefill.submit(prefill_job(name, tokens, pair.decode_setup))
    pair.prefill.abort(name)
    assert pair.decode.outcome(name).reason in ("error", "length")


def test_a_cache_that_was_wiped_gives_other_tokens(pair: Pair, alone: EngineProcess) -> None:
    """The control of all other tests: it is the peer's cache that decides the tokens."""
    if pair.write_mode:
        pytest.skip("in write mode the blocks have left before they can be wiped")
    tokens = prompt(71, 300)
    name = new_name("wiped")
    answer = pair.prefill_leg(name, tokens)
    assert answer.params is not None
    pair.prefill.call(inside.wipe_cache)
    got = pair.decode.run(decode_job(name, tokens, TOKENS, answer.params))
    assert got.tokens != alone.run(alone_job(tokens, TOKENS)).tokens
    pair.settle()
    assert pair.prefill.call(inside.drop_prefix_cache)
    assert pair.decode.call(inside.drop_prefix_cache)
