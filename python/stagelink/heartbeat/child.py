"""The process that sends heartbeats. It imports nothing of the package, reads one line from its
standard input, says on its standard output when its state changes, and ends with its parent."""

import json
import os
import signal
import sys
import time

import zmq


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal's Ctrl-C is for the parent.
    line = sys.stdin.readline()
    if not line:
        return 0
    task = json.loads(line)
    message = bytes.fromhex(task["message"])
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 1)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # Nothing is kept for a proxy that is not there.
        socket.setsockopt(zmq.IPV6, "[" in task["endpoint"])
        socket.connect(task["endpoint"])
        send_until_closed(socket, message, task["interval_s"], task["parent"])
    return 0


def send_until_closed(
    socket: "zmq.Socket[bytes]", message: bytes, interval_s: float, parent: int
) -> None:
    """Until the end of standard input, or of the parent: a fork of it may hold the pipe open."""
    stop = zmq.Poller()
    stop.register(sys.stdin.fileno(), zmq.POLLIN)
    either = zmq.Poller()
    either.register(sys.stdin.fileno(), zmq.POLLIN)
    either.register(socket, zmq.POLLOUT)
    state = ""
    while os.getppid() == parent:
        ready = dict(either.poll(round(interval_s * 1000)))
        if sys.stdin.fileno() in ready:
            return
        now = "sending" if socket in ready else "unreachable"
        if socket in ready:
            try:
                socket.send(message, zmq.DONTWAIT)
            except zmq.Again:  # The connection has ended in between.
                now = "unreachable"
        if now != state:
            state = now
            print(state, flush=True)
        if now == "sending" and stop.poll(round(interval_s * 1000)):
            return
        if now == "unreachable":
            time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
