"""Two processes: a read, a write, a message that follows its data, an error caught by its type."""

from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection

import numpy as np

import stagelink as sl


def prefill(pipe: Connection) -> None:
    with sl.Engine(name="prefill") as engine:
        pool = engine.allocate("1MiB")  # Memory that peers reach; NumPy sees it without a copy.
        blocks = np.asarray(pool).view(np.float32).reshape(-1, 1024)
        blocks[:] = np.arange(len(blocks))[:, None]  # Block i, 4096 bytes, holds the number i.
        pipe.send((engine.descriptor(), pool.descriptor()))  # Any channel will do for these.
        for message in engine.notifications(timeout="10s"):  # Waits for the first one.
            print(f"prefill: {message.source_name} says {message.payload!r}: {blocks[9, 0]}")


if __name__ == "__main__":
    pipe, pipe_of_prefill = Pipe()
    Process(target=prefill, args=[pipe_of_prefill]).start()
    where, what = pipe.recv()
    with sl.Engine(name="decode") as engine:
        mine = np.zeros((4, 1024), np.float32)  # Any contiguous array can be registered.
        peer = engine.connect(where, timeout="5s")
        session = peer.session(local=[engine.register(mine)], remote=[sl.RegionDesc.unpack(what)])
        # Offsets and sizes are in bytes. One batch moves many ranges and has one completion.
        session.read([0, 4096, 8192], [7 * 4096, 3 * 4096, 5 * 4096], 4096).wait(timeout="5s")
        print("decode: read blocks", mine[:3, 0])
        try:
            session.read(0, 1 << 20, 4096)  # Past the end of the peer's pool.
        except sl.InvalidArgument as error:
            print("decode: refused:", error.code, error.scope, error.reason)
        mine[3] = 42
        write = session.write(3 * 4096, 9 * 4096, 4096)  # Returns at once.
        peer.notify(b"block 9 is there", after=write)  # Never seen before the bytes of the write.
        write.wait(timeout="5s")
