"""The connector over the real Yuanrong Datasystem, with a worker of its own on loopback.

Skipped where the package of the datasystem is not installed (build/yuanrong-venv, or where
STAGELINK_YUANRONG_SDK says)
or the command is not built beside the package.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from child import Child

import stagelink
from stagelink.connectors import DatasystemMissing, YuanrongConnector

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "serializer")]

import stores  # noqa: E402
import zoo  # noqa: E402

PROJECT = HERE.parents[3]


def _sdk() -> str | None:
    if named := os.environ.get("STAGELINK_YUANRONG_SDK"):
        return named
    found = sorted(PROJECT.glob("build/yuanrong-venv/lib/python3*/site-packages/yr/datasystem"))
    return str(found[0]) if found else None


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def _worker(folder: Path, memory: str) -> Iterator[dict[str, Any]]:
    """What a connector needs to reach a worker that keeps its metadata itself."""
    sdk = _sdk()
    if sdk is None:
        pytest.skip("openyuanrong-datasystem is not installed in build/yuanrong-venv")
    command = Path(stagelink.__file__).parents[2] / "stagelink"
    broker = command.with_name("stagelink-yuanrong-broker")
    for built in (command, broker, command.with_name("stagelink-yuanrong-sdk.so")):
        if not built.exists():
            pytest.skip(f"{built} is not built")
    port, metastore = _free_ports(2)
    where = [f"--worker=127.0.0.1:{port}", f"--dir={folder}"]
    up = ["--backend=yuanrong", *where, "--no-etcd", f"--etcd-port={metastore}"]
    done = subprocess.run(
        [command, "store", "up", *up, f"--sdk-path={sdk}", f"--memory={memory}"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    os.environ["STAGELINK_YUANRONG_BROKER"] = str(broker)
    try:
        yield {"host": "127.0.0.1", "port": port, "sdk_path": sdk}
    finally:
        down = ["--backend=yuanrong", *where]
        subprocess.run([command, "store", "down", *down], capture_output=True, timeout=60)
        del os.environ["STAGELINK_YUANRONG_BROKER"]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with _worker(tmp_path_factory.mktemp("yuanrong"), "512MiB") as one:
        yield one


def test_two_processes_exchange_every_kind_of_payload(worker: dict[str, Any]) -> None:
    kinds = ["f2", "i8", *zoo.ML_TYPES[:6]]
    values = [*zoo.FALSY, *zoo.TEXTS, zoo.NESTED, zoo.arrays(), zoo.images(zoo.IMAGE_MODES)]
    child = Child()
    try:
        child.run(
            """
import sys
sys.path.append(folder)
import zoo
from stagelink.connectors import YuanrongConnector
one = YuanrongConnector(config)
kinds = ["f2", "i8", *zoo.ML_TYPES[:6]]
values = [*zoo.FALSY, *zoo.TEXTS, zoo.NESTED, zoo.arrays(), zoo.images(zoo.IMAGE_MODES)]
for at, value in enumerate([*values, *map(zoo.every_pattern, kinds)]):
    assert one.put("0", "1", f"req/{at} é", {"v": value})[0], at
""",
            timeout=60,
            config=worker,
            folder=str(HERE.parent / "serializer"),
        )
        with YuanrongConnector({**worker, "get_sub_timeout_ms": 20_000}) as receiver:
            for at, value in enumerate([*values, *map(zoo.every_pattern, kinds)]):
                got = receiver.get("0", "1", f"req/{at} é")
                assert got is not None and zoo.same(got[0]["v"], value), at
            assert receiver.health()["status"] == "healthy"
            del got
        with YuanrongConnector(worker) as again:
            assert again.get("0", "1", "req/0 é") is None  # It was consumed.
            assert stores.gets(again) == {"not_found": 1}
    finally:
        child.close()


def test_gets_wait_cleanup_deletes_and_time_passes(worker: dict[str, Any]) -> None:
    with YuanrongConnector(worker) as one:
        start = time.monotonic()
        assert one.get_with_deadline("0", "1", "none", deadline=start + 0.2) is None
        assert time.monotonic() - start >= 0.2
        assert one.put("0", "1", "r", np.zeros(1 << 20, np.uint8))[0]
        one.cleanup("r")
        assert one.get("0", "1", "r") is None
        found = one.health()
        assert (found["timeouts"], found["misses"], found["errors"]) == (1, 1, 0)


def test_a_large_payload_is_split_and_comes_back(worker: dict[str, Any]) -> None:
    payload = np.arange(10 << 20, dtype=np.uint64)  # 80 MiB in pieces of 16
    with YuanrongConnector({**worker, "chunk_bytes": "16MiB"}) as one:
        assert one.put("0", "1", "large", {"t": payload})[0]
        got = one.get("0", "1", "large")
        assert got is not None and (got[0]["t"] == payload).all()


@pytest.mark.timeout(400)
@pytest.mark.skipif("STAGELINK_HUGE_OBJECT" not in os.environ, reason="set STAGELINK_HUGE_OBJECT=1")
@pytest.mark.parametrize("wire", ["compat", "fast"])
def test_a_payload_of_more_than_two_gib_comes_whole_from_another_process(
    tmp_path: Path, wire: str
) -> None:
    size = (2 << 30) + 4096
    with _worker(tmp_path / "servers", "4GiB") as where:
        config = {**where, "wire": wire, "put_timeout": "60s", "connect_timeout": "20s"}
        child = Child()
        try:
            child.run(
                """
import numpy as np
from stagelink.connectors import YuanrongConnector
one = YuanrongConnector(config)
t = np.zeros(size, np.uint8)
t[::4096] = 7
t[-1] = 9
assert one.put("0", "1", "large", {"t": t, "end": [1]})[0]
del t
""",
                timeout=100,
                config=config,
                size=size,
            )
            with YuanrongConnector({**config, "get_sub_timeout_ms": 100_000}) as receiver:
                got = receiver.get("0", "1", "large")
                assert got is not None, receiver.health()
                data, bytes_of_it = got
                assert bytes_of_it > size == data["t"].size and data["end"] == [1]
                assert (data["t"][:-1:4096] == 7).all() and data["t"][-1] == 9
                assert receiver.get("0", "1", "large") is None  # It was consumed.
        finally:
            child.close()


def test_a_worker_that_is_not_there_is_told_at_once(worker: dict[str, Any]) -> None:
    (port,) = _free_ports(1)
    with pytest.raises(ConnectionError):
        YuanrongConnector({**worker, "port": port, "connect_timeout": "1s"})


def test_a_missing_package_names_the_command_that_installs_it(worker: dict[str, Any]) -> None:
    with pytest.raises(ImportError, match="pip install openyuanrong-datasystem") as caught:
        YuanrongConnector({**worker, "sdk_path": "/nonexistent"})
    assert isinstance(caught.value, DatasystemMissing)
