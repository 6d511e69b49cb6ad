"""Two processes hand payloads to each other; killed and forked ones leave the other whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from child import Child

from stagelink.connectors import YuanrongConnector

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "serializer")]

import stores  # noqa: E402
import zoo  # noqa: E402

SENDER = """
import sys
sys.path.append(zoo_folder)
import zoo
from stagelink.connectors import YuanrongConnector
one = YuanrongConnector(config)
"""


@pytest.fixture
def sender() -> Iterator[Callable[[dict[str, Any]], Child]]:
    children = []

    def start(config: dict[str, Any]) -> Child:
        child = Child()
        children.append(child)
        child.run(SENDER, config=config, zoo_folder=str(HERE.parent / "serializer"))
        return child

    yield start
    for child in children:
        child.close()


def config_of(**extra: Any) -> dict[str, Any]:
    return {"namespace": stores.namespace(), "capacity": "64MiB", "max_objects": 1024, **extra}


@pytest.mark.parametrize("wire", ["compat", "fast"])
def test_two_processes_exchange_every_kind_of_payload(
    sender: Callable[[dict[str, Any]], Child], wire: str
) -> None:
    config = config_of(wire=wire)
    child = sender(config)
    count = child.run("""
modes = zoo.IMAGE_MODES + (zoo.FAST_IMAGE_MODES if config["wire"] == "fast" else [])
kinds = zoo.NUMPY_TYPES + zoo.ML_TYPES
values = [*zoo.FALSY, *zoo.INTEGERS, *zoo.TEXTS, zoo.NESTED, zoo.arrays(), zoo.images(modes)]
names = [*map(repr, range(len(values))), *kinds]
for name, value in zip(names, [*values, *map(zoo.every_pattern, kinds)]):
    assert one.put("0", "1", name, {"v": value})[0], name
len(names)
""")
    modes = zoo.IMAGE_MODES + (zoo.FAST_IMAGE_MODES if wire == "fast" else [])
    kinds = zoo.NUMPY_TYPES + zoo.ML_TYPES
    values = [*zoo.FALSY, *zoo.INTEGERS, *zoo.TEXTS, zoo.NESTED, zoo.arrays(), zoo.images(modes)]
    names = [*map(repr, range(len(values))), *kinds]
    assert count == len(names)
    with YuanrongConnector({**config, "get_sub_timeout_ms": 20_000}) as receiver:
        for name, value in zip(names, [*values, *map(zoo.every_pattern, kinds)], strict=True):
            got = receiver.get("0", "1", name)
            assert got is not None and zoo.same(got[0]["v"], value), name
        del got
        assert stores.objects(receiver) == 0


@pytest.mark.parametrize("wire", ["compat", "fast"])
def test_arrays_without_axes_keep_their_value_their_shape_and_their_type(
    sender: Callable[[dict[str, Any]], Child], wire: str
) -> None:
    config = config_of(wire=wire)
    child = sender(config)
    kinds = ["f8", "f2", "i4", "u1", "?", "c8", "M8[ns]", "bfloat16"]
    put = "[one.put('0', '1', k, np.array(1).astype(zoo.dtype_named(k)))[0] for k in kinds]"
    assert child.run(put, kinds=kinds) == [True] * len(kinds)
    with YuanrongConnector({**config, "get_sub_timeout_ms": 20_000}) as receiver:
        for kind in kinds:
            got = receiver.get("0", "1", kind)
            wanted = np.array(1).astype(zoo.dtype_named(kind))
            assert got is not None and got[0].shape == () and zoo.same(got[0], wanted), kind
        del got
        assert stores.objects(receiver) == 0


def test_a_get_wakes_up_when_another_process_puts(
    sender: Callable[[dict[str, Any]], Child],
) -> None:
    config = config_of()
    child = sender(config)
    with YuanrongConnector({**config, "get_sub_timeout_ms": 0, "max_wait": "20s"}) as receiver:
        for at in range(20):
            child.start(f"one.put('0', '1', 'r{at}', {at})")
            got = receiver.get("0", "1", f"r{at}")
            assert got is not None and got[0] == at
            child.finish()


def test_a_killed_sender_leaves_what_it_has_put(
    sender: Callable[[dict[str, Any]], Child],
) -> None:
    config = config_of()
    with YuanrongConnector(config) as receiver:
        child = sender(config)
        child.run("one.put('0', '1', 'a', np.arange(100_000))")
        child.kill()
        got = receiver.get("0", "1", "a")
        assert got is not None and (got[0] == np.arange(100_000)).all()
        again = sender(config)
        again.run("one.put('0', '1', 'b', 'again')")
        got = receiver.get("0", "1", "b")
        assert got is not None and got[0] == "again"


def test_a_forked_child_touches_nothing_and_makes_its_own() -> None:
    config = config_of()
    with YuanrongConnector(config) as one:
        one.put("0", "1", "r", 1)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                assert one.get("0", "1", "r") is None
                assert one.put("0", "1", "r", 2) == (False, 0, None)
                with YuanrongConnector(config) as own:
                    got = own.get("0", "1", "r")
                    assert got is not None and got[0] == 1
                    assert own.put("1", "0", "r", 3)[0]
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        got = one.get("1", "0", "r")
        assert got is not None and got[0] == 3


# Of make_key and of the namespace: processes of other versions and builds meet under them.
GOLDEN = [
    ("r", "0", "1", "r:0_1"),
    ("req/7 é", "0", "12", "req/7 é:0_12"),
    ("omni_0_to_1_kv_cache_a", "0", "1", "omni_0_to_1_kv_cache_a:0_1"),
    ("", "0", "1", ":0_1"),
    ("a_0_3", "3", "4", "a_0_3:3_4"),
]
GOLDEN_NAMESPACE = "omni-32184841c702fc9e"


def test_keys_and_namespaces_are_the_same_in_every_process() -> None:
    code = (
        "import sys, ast\n"
        "from stagelink.connectors import YuanrongConnector as Y\n"
        "keys = [Y._make_key(*g[:3]) for g in ast.literal_eval(sys.argv[1])]\n"
        "one = Y({'capacity': '1MiB', 'x': {'b': [1, 2.5], 'a': None}, 'stage_id': 1})\n"
        "print([keys, one.namespace])\n"
        "one.close()\n"
    )
    for seed in (None, "0", "1"):
        env = {**os.environ, "STAGELINK_LOG_LEVEL": "error"}
        env.pop("PYTHONHASHSEED", None)
        if seed is not None:
            env["PYTHONHASHSEED"] = seed
        done = subprocess.run(
            [sys.executable, "-c", code, repr(GOLDEN)],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == repr([[key for *_, key in GOLDEN], GOLDEN_NAMESPACE])


SMALL_SHM = """
import numpy as np, os, sys
from stagelink.connectors import YuanrongConnector as Y
from stagelink.errors import NoSpace
try:
    Y({"capacity": "8MiB", "namespace": "n"})
    raise SystemExit("8 MiB in 4 MiB was taken")
except NoSpace as error:
    assert "8" in str(error) and "/dev/shm" in str(error), error
one = Y({"capacity": "2MiB", "max_objects": 64, "namespace": "n", "put_timeout": "10ms"})
put = [one.put("0", "1", f"r{i}", np.ones(100_000, np.uint8))[0] for i in range(100)]
assert 10 < sum(put) < 30, sum(put)
filler = os.open("/dev/shm/filler", os.O_CREAT | os.O_WRONLY)
try:
    while True:
        os.write(filler, b"x" * 4096)
except OSError:
    pass
got = one.get("0", "1", "r0")
assert got[0].sum() == 100_000
assert one.put("0", "1", "after", np.ones(50_000, np.uint8))[0]
os.unlink("/dev/shm/filler")
for i in range(100):
    one.cleanup(f"r{i}")
assert one.put("0", "1", "free", np.ones(1_000_000, np.uint8))[0]
found = one.health()
assert found["failed_puts"] == 100 - sum(put) and found["status"] == "healthy", found
one.close()
"""


def test_a_small_dev_shm_is_an_error_at_the_start_and_never_a_signal() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    shell = 'mount -t tmpfs -o size=4m tmpfs /dev/shm && exec "$0" -c "$1"'
    run = ["unshare", "-rm", "sh", "-c"]
    if subprocess.run([*run, "mount -t tmpfs tmpfs /dev/shm"], capture_output=True).returncode:
        pytest.skip("this user may not make mount namespaces")
    env = {**os.environ, "STAGELINK_LOG_LEVEL": "error"}
    done = subprocess.run(
        [*run, shell, sys.executable, SMALL_SHM],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def _pss() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")


def test_a_payload_lies_in_memory_twice_and_no_more() -> None:
    payload = np.ones(16 << 20, np.float16)  # 32 MiB
    with stores.connector(stores.namespace(), capacity="40MiB") as one:
        warm = np.ones(1 << 16, np.float16)
        one.put("0", "1", "w", {"t": warm})
        one.get("0", "1", "w")
        before = _pss()
        assert one.put("0", "1", "r", {"meta": {"a": 1}, "t": payload})[0]
        got = one.get("0", "1", "r")
        assert got is not None and (got[0]["t"][::4096] == 1).all()
        assert _pss() - before <= 1.2 * payload.nbytes


LARGE = (2 << 30) + 4096


@pytest.mark.timeout(400)
@pytest.mark.skipif("STAGELINK_HUGE_OBJECT" not in os.environ, reason="set STAGELINK_HUGE_OBJECT=1")
@pytest.mark.parametrize("wire", ["compat", "fast"])
def test_a_payload_of_more_than_two_gib_comes_whole(
    sender: Callable[[dict[str, Any]], Child], wire: str
) -> None:
    config = config_of(wire=wire, capacity=LARGE + (64 << 20), put_timeout="60s")
    child = sender(config)
    child.start(
        "t = np.zeros(size, np.uint8)\nt[::4096] = 7\nt[-1] = 9\n"
        "one.put('0', '1', 'large', {'t': t, 'end': [1]})[0]",
        size=LARGE,
    )
    with YuanrongConnector({**config, "get_sub_timeout_ms": 60_000}) as receiver:
        got = receiver.get("0", "1", "large")
        assert child.finish(60) is True
        assert got is not None
        data, size = got
        assert size > LARGE == data["t"].size and data["end"] == [1]
        assert (data["t"][:-1:4096] == 7).all() and data["t"][-1] == 9
