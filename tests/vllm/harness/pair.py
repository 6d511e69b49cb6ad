"""A prefill and a decode engine with our connector, and the two legs of a request."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from . import inside
from .engine import EngineProcess, Job, Outcome
from .setups import Setup, decode_job, prefill_job, write_params

CONNECTOR = {"kv_connector_module_path": "stagelink.vllm"}
_names = itertools.count()


def use_transports(transports: str) -> None:
    """Runs in the child: what the IO engine may use."""
    os.environ["STAGELINK_TRANSPORTS"] = transports


def prepare(transports: str) -> Callable[[], None]:
    return partial(use_transports, transports)


def new_name(prefix: str) -> str:
    """Request names are never used twice in an engine."""
    return f"{prefix}-{next(_names)}"


@dataclass
class Pair:
    write_mode: bool
    prefill_setup: Setup
    decode_setup: Setup
    prefill: EngineProcess
    decode: EngineProcess

    def run(self, tokens: list[int], count: int, **sampling: Any) -> Outcome:
        name = new_name("r")
        self.submit(name, tokens, count, **sampling)
        return self.decode.outcome(name)

    def submit(self, name: str, tokens: list[int], count: int, **sampling: Any) -> None:
        """Both legs; returns when the decode engine has its own."""
        if self.write_mode:
            job = decode_job(
                name, tokens, count, write_params(name, self.prefill_setup), **sampling
            )
            self.decode.submit(job)
            self.prefill.submit(prefill_job(name, tokens, self.decode_setup))
            self.prefill.outcome(name)
        else:
            params = self.prefill_leg(name, tokens).params
            assert params is not None
            self.decode.submit(decode_job(name, tokens, count, params, **sampling))

    def prefill_leg(self, name: str, tokens: list[int], **sampling: Any) -> Outcome:
        return self.prefill.run(prefill_job(name, tokens, **sampling))

    def settle(self) -> None:
        """Every block is free on both sides, and no half remembers anything."""
        for engine in (self.prefill, self.decode):
            if engine.pid > 0:
                engine.until(inside.is_idle, timeout=90.0)
                left = engine.call(inside.tables)
                assert not any(left.values()), f"{engine.name}: {left}"


def setups(
    model: Path, write_mode: bool, engine: dict[str, Any] | None = None, **extra: Any
) -> tuple[Setup, Setup]:
    extra = {"read_mode": str(not write_mode).lower(), **extra}
    made = [
        Setup(model, role, CONNECTOR, dict(extra), dict(engine or {}))
        for role in ("kv_producer", "kv_consumer")
    ]
    return made[0], made[1]


def alone_job(tokens: list[int], count: int, **sampling: Any) -> Job:
    return Job(new_name("alone"), tokens, count, None, sampling)
