"""`protocol: ascend`: its checks, and its path over the package's own engine without an NPU."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from child import Child

import stagelink as sl
from stagelink import _core
from stagelink.pull import EngineMissing, ascend
from stagelink.pull.ascend import device_of

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import pulls  # noqa: E402

Start = Callable[..., Child]


@pytest.fixture(scope="module")
def plug_in(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The data plane, compiled against the headers of the package."""
    found = importlib.util.find_spec("yr")
    compiler = shutil.which("g++")
    if found is None or not found.submodule_search_locations or compiler is None:
        pytest.skip("needs openyuanrong-datasystem 0.8.1 (Python 3.9 to 3.11) and g++")
    headers = Path(next(iter(found.submodule_search_locations))) / "datasystem" / "include"
    out = tmp_path_factory.mktemp("ascend") / "cpu_plane.so"
    command = [compiler, "-std=c++17", "-shared", "-fPIC", "-I", str(headers)]
    subprocess.run([*command, str(HERE / "cpu_plane.cc"), "-o", str(out)], check=True, timeout=100)
    return str(out)


def _peer(child: Start, plug_in: str, role: str, **extra: Any) -> tuple[Child, dict[str, Any]]:
    peer = child()
    peer.run(
        "import sys; sys.path.insert(0, folder); import host_pool; host_pool.prepare(plug_in)",
        folder=str(HERE),
        plug_in=plug_in,
    )
    extra = {"protocol": "ascend", "device_name": "npu:0", **extra}
    return peer, peer.run(pulls.CHILD, folder=str(HERE), role=role, extra=extra)


def test_payloads_travel_by_the_packages_own_engine(child: Start, plug_in: str) -> None:
    sender, place = _peer(child, plug_in, "sender")
    receiver, _ = _peer(child, plug_in, "receiver", device_name="npu:1")
    receiver.run("one.update_sender_info(place['host'], place['zmq_port'])", place=place)
    assert sender.run("one.health()['pool_device']") == "npu"
    for size in (1, 4096, 1_000_001):
        ok, _, metadata = sender.run(
            "data = bytes(i % 251 for i in range(size)); one.put('0', '1', 'r', data)", size=size
        )
        assert ok and metadata["source_rpc_port"] == place["rpc_port"]
        got = receiver.run("pulls.raw(one.get('0', '1', 'r'))")
        assert got == bytes(i % 251 for i in range(size))
    assert sender.run("one.put('0', '1', 'r', {'a': [1, (2, 3)]})[0]")
    assert receiver.run("one.get('0', '1', 'r')[0]") == {"a": [1, (2, 3)]}
    # Filled in place, as a tensor of the device is.
    assert sender.run(
        "buffer = one.allocate(100); buffer.tensor[:] = 5; one.put('0', '1', 'r', buffer)[0]"
    )
    assert receiver.run("pulls.raw(one.get('0', '1', 'r'))") == b"\5" * 100
    # What fills it runs behind the caller's back, until the device is waited for.
    assert sender.run(
        "buffer = one.allocate(100)\n"
        "one._plane._pool.queued.append(lambda: buffer.tensor.fill(7))\n"
        "one.put('0', '1', 'r', buffer)[0]"
    )
    assert receiver.run("pulls.raw(one.get('0', '1', 'r'))") == b"\7" * 100
    assert pulls.soon(lambda: sender.run("one.health()['offers']") == 0)
    for peer in (receiver, sender):
        assert peer.run("one.health()['errors']") == 0
        peer.run("one.close()")


def test_claims_and_generations_hold_there_too(child: Start, plug_in: str) -> None:
    sender, place = _peer(child, plug_in, "sender")
    receiver, _ = _peer(child, plug_in, "receiver")
    receiver.run("one.update_sender_info(place['host'], place['zmq_port'])", place=place)
    old = sender.run("one.put('0', '1', 'r', b'old')")[2]
    sender.run("one.put('0', '1', 'r', b'new')")
    assert receiver.run("one.get('0', '1', 'r', old)", old=old) is None
    assert receiver.run("pulls.raw(one.get('0', '1', 'r'))") == b"new"
    assert receiver.run("one.get('0', '1', 'r')") is None
    receiver.start(
        "import time\n"
        "pulls.raw(one.get_with_deadline('0', '1', 'later', deadline=time.monotonic() + 30))"
    )
    assert pulls.soon(lambda: sender.run("one.health()['waiting']") == 1)
    sender.run("one.put('0', '1', 'later', b'late')")
    assert receiver.finish() == b"late"
    sender.kill()
    begun = time.monotonic()
    assert receiver.run("one.get('0', '1', 'r', old)", old=old) is None
    assert time.monotonic() - begun < 20


def test_a_tensor_is_copied_between_two_waits_for_the_whole_device() -> None:
    done: list[str] = []

    class Memory:
        device = "npu:0"

        def data_ptr(self) -> int:
            return 4096

        def __getitem__(self, at: slice) -> Memory:
            return self

        def copy_(self, source: object) -> None:
            done.append("copied")

    class Tensor:
        nbytes = 8

        def reshape(self, size: int) -> Tensor:
            return self

        view = reshape

    torch = SimpleNamespace(
        Tensor=Tensor,
        uint8=0,
        empty=lambda size, dtype, device: Memory(),
        npu=SimpleNamespace(synchronize=lambda device: done.append(f"waited for {device}")),
    )
    ascend.NpuPool(torch, "npu:0", 64).write(0, Tensor())
    assert done == ["waited for npu:0", "copied", "waited for npu:0"]


def test_a_pool_of_the_host_is_refused() -> None:
    with pytest.raises(ValueError, match="(?s)memory_pool_device.*cpu"):
        pulls.sender(protocol="ascend", memory_pool_device="cpu", device_name="npu:0")
    with pytest.raises(ValueError, match="memory_pool_device"):
        pulls.sender(protocol="tcp", memory_pool_device="npu:1")


def test_what_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yr.datasystem", None)
    with pytest.raises(ImportError, match="openyuanrong-datasystem==0.8.1") as caught:
        pulls.sender(protocol="ascend", device_name="npu:0")
    assert isinstance(caught.value, EngineMissing)
    assert "memory_pool_device: cpu" in str(caught.value)
    importlib.import_module("stagelink.compat.yuanrong")
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    monkeypatch.setitem(sys.modules, "yr.datasystem", sys.modules["stagelink.compat.yuanrong"])
    with pytest.raises(ImportError, match=r"on an NPU \(npu:0\).*torch_npu"):
        pulls.sender(protocol="ascend", device_name="npu:0")


def test_the_device_is_told_or_known_and_never_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "VLLM_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("MV2_COMM_WORLD_LOCAL_RANK", raising=False)
    assert device_of("npu:12") == "npu:12"
    with pytest.raises(sl.InvalidArgument, match="LOCAL_RANK.*device_name: npu:N"):
        device_of("auto")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert device_of("auto") == device_of("") == "npu:3"
    for wrong in ("npu", "npu:", "npu:x", "cpu:0", "cuda:0", "npu:1 "):
        with pytest.raises(ValueError, match="device_name"):
            device_of(wrong)


def test_the_engine_listens_at_an_ipv4_address(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"host": "auto", "advertise_host": "", "interface": "lo"}
    assert ascend._host_of(options) == "127.0.0.1"
    assert ascend._host_of({**options, "advertise_host": "10.1.2.3"}) == "10.1.2.3"
    assert ascend._host_of({**options, "interface": ""}).count(".") == 3
    with pytest.raises(ValueError, match="interface 'none0' has no IPv4"):
        ascend._host_of({**options, "interface": "none0"})
    with pytest.raises(ValueError, match="'::1' has no IPv4 address"):
        ascend._host_of({**options, "host": "::1"})


def test_a_data_plane_that_fails_is_an_end_with_its_words() -> None:
    class Plane:
        def memory(self) -> tuple[int, int]:
            raise RuntimeError("no memory today")

    with pytest.raises(RuntimeError, match="no memory today"):
        _core.PullConnector('{"protocol": "ascend"}', Plane())
