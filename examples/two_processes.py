"""Two processes: a read, a write, a message that follows its data, an error caught by its type."""

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np

import stagelink as sl


def prefill(pipe: Connection) -> None:
    with sl.Engine(name="prefill") as engine:
        pool = engine.allocate("1MiB")  # Memory that peers reach; NumPy sees it without a copy.
        blocks = np.asarray(pool).view(np.float32).reshape(-1, 1024)
        blocks[:] = np.arange(len(blocks))[:, None]  # Block i holds the number i.
        pipe.send((engine.descriptor(), pool.descriptor()))  # Any channel will do for these bytes.
        for message in engine.notifications(timeout="10s"):
            print(f"prefill: {message.source_name} says {message.payload!r}: {blocks[9, 0]}")


def decode(pipe: Connection) -> None:
    with sl.Engine(name="decode") as engine:
        mine = np.zeros((4, 1024), np.float32)  # Any array can be registered.
        where, what = pipe.recv()
        peer = engine.connect(where, timeout="5s")
        session = peer.session(local=[engine.register(mine)], remote=[sl.RegionDesc.unpack(what)])
        size = mine[0].nbytes  # Offsets and sizes are bytes; one batch moves many ranges.
        session.read(np.arange(3) * size, np.array([7, 3, 5]) * size, size).wait(timeout="5s")
        print("decode: read blocks", mine[:3, 0])
        mine[3] = 42
        write = session.write(3 * size, 9 * size, size)  # Returns at once.
        peer.notify(b"block 9 is there", after=write)  # Never seen before the bytes of the write.
        write.wait(timeout="5s")
        try:
            session.read(0, 1 << 20, size)  # Past the end of the peer's pool.
        except sl.InvalidArgument as error:
            print("decode: refused:", error.code, error.scope, error.reason)


if __name__ == "__main__":
    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(target=prefill, args=[theirs])
    other.start()
    decode(ours)
    other.join()
