"""A second process for tests: runs the code it is sent and answers with the value.

It ends with the test, with its parent, and in any case after KILL_AFTER_S seconds.
"""

import ast
import ctypes
import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
from typing import IO, Any

KILL_AFTER_S = int(os.environ.get("STAGELINK_CHILD_SECONDS", "90"))
_PR_SET_PDEATHSIG = 1


def _send(pipe: IO[bytes], value: object) -> None:
    blob = pickle.dumps(value)
    pipe.write(struct.pack("<Q", len(blob)) + blob)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    header = pipe.read(8)
    if len(header) < 8:
        raise EOFError("the other process ended")
    return pickle.loads(pipe.read(struct.unpack("<Q", header)[0]))


class Child:
    """Starts the process. `run` executes statements there and returns the last expression."""

    def __init__(self, env: dict[str, str] | None = None) -> None:
        self._stderr = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **(env or {})},
        )
        self.pid = self.process.pid

    def run(self, code: str, timeout: float = 30, **names: object) -> Any:
        self.start(code, **names)
        return self.finish(timeout)

    def start(self, code: str, **names: object) -> None:
        assert self.process.stdin is not None
        _send(self.process.stdin, (code, names))

    def finish(self, timeout: float = 30) -> Any:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                self.kill()
                raise AssertionError(f"no answer in {timeout} s; stderr:\n{self.stderr()}")
        ok, value = _receive(self.process.stdout)
        if not ok:
            raise value
        return value

    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)  # Until all of its threads have stopped.

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def exit(self, timeout: float = 20) -> int:
        """Ends it the normal way: the main module runs to its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout)

    def close(self) -> None:
        if self.process.poll() is None:
            try:
                self.exit(timeout=10)
            except (subprocess.TimeoutExpired, BrokenPipeError):
                self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self._stderr):
            if pipe is not None:
                pipe.close()


def _execute(code: str, names: dict[str, object]) -> Any:
    tree = ast.parse(code)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<child>", "exec"), names)
        return None
    tree.body.pop()
    exec(compile(tree, "<child>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<child>", "eval"), names)


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.alarm(KILL_AFTER_S)
    names: dict[str, object] = {}
    exec("import numpy as np\nimport stagelink as sl", names)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            code, arguments = _receive(sys.stdin.buffer)
        except EOFError:
            return
        names.update(arguments)
        try:
            answer = (True, _execute(code, names))
        except Exception as error:  # The test decides what to think of it.
            traceback.print_exc()
            answer = (False, error)
        _send(output, answer)


if __name__ == "__main__":
    main()
