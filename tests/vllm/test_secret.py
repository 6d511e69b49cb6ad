"""Two real engines that hold a secret, and one that does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import Engines
from harness import inside
from harness.engine import EngineProcess
from harness.pair import Pair, alone_job, prepare, setups
from harness.setups import Setup, prompt
from test_faults import ENGINE, RECOMPUTE, TIMES, TOKENS


def secret_file(folder: Path) -> str:
    path = folder / "secret"
    path.touch(0o600)
    path.write_bytes(os.urandom(32))
    return str(path)


@pytest.mark.parametrize("mode", ["read", "write"])
def test_engines_with_one_secret_work_together(
    models: Path, engines: Engines, tmp_path: Path, mode: str
) -> None:
    prefill_setup, decode_setup = setups(
        models / "llama", mode == "write", ENGINE, secret_file=secret_file(tmp_path), **TIMES
    )
    alone = engines.start("alone", Setup(models / "llama", engine=ENGINE))
    prefill = engines.start("prefill", prefill_setup, prepare("tcp"))
    decode = engines.start("decode", decode_setup, prepare("tcp"))
    alone.wait_ready()
    pair = Pair(
        mode == "write", prefill_setup, decode_setup, prefill.wait_ready(), decode.wait_ready()
    )
    tokens = prompt(41, 200)
    assert pair.run(tokens, TOKENS).tokens == alone.run(alone_job(tokens, TOKENS)).tokens
    assert decode.call(inside.bytes_moved) + prefill.call(inside.bytes_moved) > 0
    pair.settle()


def test_an_engine_without_the_secret_gets_nothing_and_computes_for_itself(
    models: Path, engines: Engines, tmp_path: Path
) -> None:
    prefill_setup, decode_setup = setups(
        models / "llama", False, ENGINE, secret_file=secret_file(tmp_path), **TIMES
    )
    del decode_setup.extra["secret_file"]
    for setup in (prefill_setup, decode_setup):
        setup.connector = RECOMPUTE
    alone: EngineProcess = engines.start("alone", Setup(models / "llama", engine=ENGINE))
    prefill = engines.start("prefill", prefill_setup, prepare("tcp"))
    decode = engines.start("decode", decode_setup, prepare("tcp"))
    alone.wait_ready()
    pair = Pair(False, prefill_setup, decode_setup, prefill.wait_ready(), decode.wait_ready())
    tokens = prompt(42, 200)
    assert pair.run(tokens, TOKENS).tokens == alone.run(alone_job(tokens, TOKENS)).tokens
    assert decode.call(inside.bytes_moved) == 0
    pair.settle()
