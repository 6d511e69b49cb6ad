"""The stand-in for the transfer engine of yr.datasystem answers as the original does."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from stagelink import compat
from stagelink.compat.yuanrong import ErrorCode, Result, TransferEngine, enable

PAIR = ("127.0.0.1:0", "ascend", "npu:0")


@pytest.fixture
def engine() -> Iterator[TransferEngine]:
    made = TransferEngine()
    assert made.initialize(*PAIR).is_ok()
    yield made
    assert made.finalize().is_ok()


def code(result: Result) -> ErrorCode:
    assert result.is_error() is (result.get_code() is not ErrorCode.kOk)
    assert result.to_string() == f"code={result.get_code().value}, msg={result.get_msg()}"
    return result.get_code()


def test_before_it_is_initialized_nothing_is_ready() -> None:
    engine = TransferEngine()
    assert engine.get_rpc_port() == -1
    assert code(engine.register_memory(4096, 10)) is ErrorCode.kNotReady
    assert code(engine.transfer_sync_read("127.0.0.1:1", 4096, 4096, 1)) is ErrorCode.kNotReady
    assert code(engine.finalize()) is ErrorCode.kOk
    assert code(engine.initialize("127.0.0.1:0", "smoke signals", "")) is ErrorCode.kNotSupported
    assert code(engine.initialize("no port", "ascend", "")) is ErrorCode.kInvalid


def test_registrations_may_touch_and_never_overlap(engine: TransferEngine) -> None:
    array = np.zeros(4096, np.uint8)
    start = array.ctypes.data
    assert code(engine.initialize(*PAIR)) is ErrorCode.kInvalid
    assert engine.batch_register_memory([start + 1024, start], [1024, 1024]).is_ok()
    for address, size in ((start, 1024), (start + 1023, 2), (start + 2047, 1), (start - 1, 2)):
        result = engine.register_memory(address, size)
        assert code(result) is ErrorCode.kInvalid and "overlap" in result.get_msg()
    # The second one overlaps: the first is taken back.
    last = [start + 2048, start + 100]
    assert code(engine.batch_register_memory(last, [10, 10])) is ErrorCode.kInvalid
    assert engine.register_memory(start + 2048, 10).is_ok()
    assert code(engine.unregister_memory(start + 1)) is ErrorCode.kNotFound
    assert engine.batch_unregister_memory([start, start + 1024, start + 2048]).is_ok()
    assert engine.register_memory(start, 4096).is_ok()


def test_reads_that_cannot_be_have_the_codes_of_the_original(engine: TransferEngine) -> None:
    owner = TransferEngine()
    assert owner.initialize(*PAIR).is_ok()
    target = f"127.0.0.1:{owner.get_rpc_port()}"
    theirs, mine = np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8)
    here, there = mine.ctypes.data, theirs.ctypes.data
    assert code(engine.transfer_sync_read(target, here, there, 8)) is ErrorCode.kNotAuthorized
    assert owner.register_memory(there, 64).is_ok() and engine.register_memory(here, 64).is_ok()
    assert engine.transfer_sync_read(target, here, there, 64).is_ok() and (mine == theirs).all()
    assert code(engine.transfer_sync_read(target, here, there, 65)) is not ErrorCode.kOk
    assert code(engine.transfer_sync_read(target, here, there + 1, 64)) is ErrorCode.kNotAuthorized
    assert code(engine.transfer_sync_read(target, here, there, 0)) is ErrorCode.kInvalid
    assert code(engine.batch_transfer_sync_read(target, [], [], [])) is ErrorCode.kInvalid
    assert code(engine.batch_transfer_sync_read(target, [here], [there], [])) is ErrorCode.kInvalid
    assert owner.finalize().is_ok()
    assert code(engine.transfer_sync_read(target, here, there, 8)) is ErrorCode.kNotReady


def test_a_peer_that_comes_back_at_its_address_is_read_again(engine: TransferEngine) -> None:
    mine = np.zeros(8, np.uint8)
    assert engine.register_memory(mine.ctypes.data, 8).is_ok()
    port = 0
    for life in range(3):
        owner = TransferEngine()
        assert owner.initialize(f"127.0.0.1:{port}", "tcp", "").is_ok()
        port = owner.get_rpc_port()
        theirs = np.full(8, 7 + life, np.uint8)
        assert owner.register_memory(theirs.ctypes.data, 8).is_ok()
        result = engine.transfer_sync_read(
            f"127.0.0.1:{port}", mine.ctypes.data, theirs.ctypes.data, 8
        )
        assert result.is_ok() and (mine == 7 + life).all(), result
        assert owner.finalize().is_ok()


def test_an_installed_package_is_never_shadowed(caplog: pytest.LogCaptureFixture) -> None:
    if importlib.util.find_spec("yr") is None:
        pytest.skip("the package of the Yuanrong Datasystem is not installed")
    assert not enable()
    assert sys.modules.get("yr.datasystem") is not compat.yuanrong
    assert "stays in use" in caplog.text


def test_where_the_package_is_missing_it_stands_in_for_it() -> None:
    code = (
        "import sys\n"
        "sys.meta_path.insert(0, type('F', (), {'find_spec': staticmethod(lambda n, *_: "
        "(_ for _ in ()).throw(ModuleNotFoundError(n)) if n.split('.')[0] == 'yr' else None)}))\n"
        "import importlib.util\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda n, *a: None if n == 'yr' else real(n, *a)\n"
        "import stagelink.compat.yuanrong as ours\n"
        "assert 'yr' not in sys.modules and ours.enable() and ours.enable()\n"
        "from yr.datasystem import ErrorCode, Result, TransferEngine\n"
        "assert TransferEngine is ours.TransferEngine\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
