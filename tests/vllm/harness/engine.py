"""A real vLLM engine in a forked child process, driven by the test.

vLLM takes most of a minute to import, so the test process imports it once and forks one child for
each engine. The child steps its engine by itself, as a server does; the test sends it requests and
reads results. Every wait has a deadline, and a child that does not answer is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import multiprocessing.connection
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

START_TIMEOUT = 600.0
RESULT_TIMEOUT = 300.0


class EngineDied(Exception):
    """The child ended or did not answer; the message carries the end of its log."""


@dataclass
class Outcome:
    tokens: list[int]
    reason: str | None
    params: dict[str, Any] | None
    samples: list[list[int]] = field(default_factory=list)  # All of n.


@dataclass
class Job:
    """What one request asks for."""

    request_id: str
    prompt: list[int]
    max_tokens: int = 8
    params: dict[str, Any] | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    image: int | None = None  # Seed of one picture, where the prompt has its place.
    ec_params: dict[str, Any] | None = None


class EngineProcess:
    def __init__(
        self,
        name: str,
        arguments: dict[str, Any],
        folder: Path,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._outcomes: dict[str, Outcome | str] = {}
        self._replies: list[tuple[bool, Any]] = []
        self._ready = False
        ours, theirs = Pipe()
        self._connection = ours
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _child(theirs, arguments, self.log, prepare)
        theirs.close()

    def wait_ready(self, timeout: float = START_TIMEOUT) -> EngineProcess:
        self._pump(lambda: self._ready, timeout, "to start")
        return self

    def submit(self, job: Job) -> None:
        self._send(("submit", job))

    def abort(self, request_id: str) -> None:
        self._send(("abort", request_id))

    def outcome(self, request_id: str, timeout: float = RESULT_TIMEOUT) -> Outcome:
        self._pump(lambda: request_id in self._outcomes, timeout, f"to finish {request_id}")
        outcome = self._outcomes.pop(request_id)
        if isinstance(outcome, str):
            raise EngineDied(f"{self.name}: {request_id} was refused: {outcome}")
        return outcome

    def run(self, job: Job, timeout: float = RESULT_TIMEOUT) -> Outcome:
        self.submit(job)
        return self.outcome(job.request_id, timeout)

    def call(self, function: Callable[..., Any], *arguments: Any, timeout: float = 60.0) -> Any:
        """function(llm, *arguments), run in the child between two steps."""
        self._send(("call", function, arguments))
        self._pump(lambda: bool(self._replies), timeout, f"to run {function.__name__}")
        good, value = self._replies.pop(0)
        if not good:
            raise EngineDied(f"{self.name}: {function.__name__} failed: {value}")
        return value

    def until(
        self, function: Callable[..., Any], *arguments: Any, timeout: float = RESULT_TIMEOUT
    ) -> Any:
        """Calls until the answer is true; that the engine steps in between is what it waits for."""
        deadline = time.monotonic() + timeout
        while not (value := self.call(function, *arguments)):
            if time.monotonic() > deadline:
                raise EngineDied(f"{self.name}: {function.__name__} never held\n{self.tail()}")
            time.sleep(0.02)
        return value

    def kill(self) -> None:
        """As a crash: no goodbye."""
        if self.pid > 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = -1

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def stop(self, timeout: float = 60.0) -> None:
        if self.pid <= 0:
            return
        with contextlib.suppress(OSError):
            self._connection.send(("stop",))
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                self.pid = -1
                return
            time.sleep(0.02)
        self.kill()

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise EngineDied(f"{self.name} is gone ({error})\n{self.tail()}") from error

    def _pump(self, done: Callable[[], bool], timeout: float, what: str) -> None:
        deadline = time.monotonic() + timeout
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise EngineDied(f"{self.name} took over {timeout} s {what}\n{self.tail()}")
            try:
                if self._connection.poll(min(left, 1.0)):
                    self._accept(self._connection.recv())
            except (EOFError, OSError) as error:
                raise EngineDied(f"{self.name} died {what} ({error})\n{self.tail()}") from error

    def _accept(self, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == "ready":
            self._ready = True
        elif kind == "finished":
            self._outcomes[message[1]] = message[2]
        elif kind == "reply":
            self._replies.append(message[1:])
        elif kind == "failed":
            raise EngineDied(f"{self.name} failed\n{message[1]}\n{self.tail()}")


def _child(
    connection: multiprocessing.connection.Connection,
    arguments: dict[str, Any],
    log: Path,
    prepare: Callable[[], None] | None,
) -> None:
    """Never returns into the test's code."""
    code = 1
    try:
        with log.open("wb", buffering=0) as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        _log_to_ours()
        faulthandler.enable()
        _serve(connection, arguments, prepare)
        code = 0
    except BaseException:
        text = traceback.format_exc()
        print(text, flush=True)
        with contextlib.suppress(OSError):
            connection.send(("failed", text))
    finally:
        sys.stdout.flush()
        os._exit(code)


def _log_to_ours() -> None:
    """pytest has put its own streams in place of the process's; handlers of loggers keep them."""
    sys.stdin = open(os.devnull)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
    for logger in loggers:
        for handler in logger.handlers:
            if type(handler) is logging.StreamHandler:  # Not a FileHandler, which would close it.
                handler.setStream(sys.stderr)


def _serve(
    connection: multiprocessing.connection.Connection,
    arguments: dict[str, Any],
    prepare: Callable[[], None] | None,
) -> None:
    allow_tiles()
    if prepare is not None:
        prepare()
    from vllm import LLM

    llm = LLM(**arguments)
    core = llm.llm_engine.engine_core.engine_core
    connection.send(("ready",))
    while True:
        busy = core.scheduler.has_requests()
        while connection.poll(0 if busy else 0.02):
            message = connection.recv()
            if message[0] == "stop":
                core.shutdown()
                return
            _handle(llm, connection, message)
            busy = core.scheduler.has_requests()
        if not core.scheduler.has_requests():
            continue
        for output in llm.llm_engine.step():
            if output.finished:
                best = output.outputs[0]
                outcome = Outcome(
                    list(best.token_ids),
                    best.finish_reason,
                    output.kv_transfer_params,
                    [list(sample.token_ids) for sample in output.outputs],
                )
                connection.send(("finished", output.request_id, outcome))


def allow_tiles() -> None:
    """Asks the kernel for the tile registers of AMX. A prefill makes oneDNN ask for them, but a
    decode engine whose first forward is a single token calls vLLM's AMX kernels before that, and
    dies of an illegal instruction. No effect on other processors."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)


def _handle(
    llm: Any, connection: multiprocessing.connection.Connection, message: tuple[Any, ...]
) -> None:
    kind = message[0]
    if kind == "submit":
        _submit(llm, connection, message[1])
    elif kind == "abort":
        llm.llm_engine.abort_request([message[1]], internal=False)
        connection.send(("finished", message[1], Outcome([], "abort", None)))
    elif kind == "call":
        try:
            connection.send(("reply", True, message[1](llm, *message[2])))
        except Exception:
            connection.send(("reply", False, traceback.format_exc()))


def _prompt_of(job: Job) -> dict[str, Any]:
    if job.image is None:
        return {"prompt_token_ids": job.prompt}
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(job.image).integers(0, 256, (56, 56, 3), dtype=np.uint8)
    return {
        "prompt_token_ids": job.prompt,
        "multi_modal_data": {"image": Image.fromarray(pixels)},
    }


def _submit(llm: Any, connection: multiprocessing.connection.Connection, job: Job) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    legs = {"kv_transfer_params": job.params, "ec_transfer_params": job.ec_params}
    extra = {name: params for name, params in legs.items() if params is not None} or None
    settings = {"temperature": 0.0, "max_tokens": job.max_tokens, **job.sampling}
    try:
        llm.llm_engine.add_request(
            job.request_id,
            _prompt_of(job),
            SamplingParams(extra_args=extra, output_kind=RequestOutputKind.FINAL_ONLY, **settings),
        )
    except Exception:
        connection.send(("finished", job.request_id, traceback.format_exc()))
