"""vLLM-Omni's own pulling connector, unmodified, over our engine; and ours against it."""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import host
import pytest

sys.path.insert(0, str(host.PROJECT / "tests" / "python"))

from child import Child  # noqa: E402

HERE = Path(__file__).parent
START_S = 250  # Importing vLLM takes most of a minute on a busy machine.
POOL = 16 << 20

THEIRS = """
import logging, sys
sys.path.insert(0, here)
import host, torch
kind = host.reference_pull()
logging.basicConfig(level=logging.INFO, force=True)
"""
OURS = """
import logging, torch
from stagelink.connectors import YuanrongTransferEngineConnector as kind
logging.basicConfig(level=logging.INFO, force=True)
"""
# What a get gave, as something that can be sent: whether it was raw, and its bytes or value.
TAKE = """
def take(got):
    if got is None:
        return None
    data, size = got
    if hasattr(data, "to_bytes"):
        raw = data.to_bytes()
        data.release()
        return True, raw, size
    return False, data, size
"""


@pytest.fixture(scope="module")
def peers() -> Iterator[list[Child]]:
    """Two processes that have imported vLLM-Omni's connector, and two with ours."""
    try:
        host.package_folder()
    except PackageNotFoundError:
        pytest.skip("vllm-omni is not installed here; tests/omni/run.sh says how")
    env = {"STAGELINK_CHILD_SECONDS": "900", "VLLM_LOGGING_LEVEL": "INFO"}
    env["OMP_NUM_THREADS"] = "1"
    children = [Child(env) for _ in range(4)]
    for one, code in zip(children, (THEIRS, THEIRS, OURS, OURS), strict=True):
        one.start(code + TAKE, here=str(HERE))
    for one in children:
        one.finish(START_S)
    yield children
    for one in children:
        one.close()


def _open(peer: Child, role: str, **extra: Any) -> dict[str, Any]:
    config = {"host": "127.0.0.1", "role": role, "memory_pool_size": POOL, **extra}
    info: dict[str, Any] = peer.run(
        "connector = kind(config); connector.get_connection_info()", config=config, timeout=60
    )
    return info


PAYLOADS = {
    "tensor": ("torch.arange(5000, dtype=torch.int32)", True),
    "strided": ("torch.arange(64.0).reshape(8, 8).t()", True),
    "bfloat16": ("torch.arange(300, dtype=torch.bfloat16)", True),
    "bytes": ("b'some bytes'", True),
    "dict": ("{'hidden': torch.arange(12.0).reshape(3, 4), 'ids': [1, 2], 'text': 'x' * 9}", False),
    "falsy": ("{'zero': 0, 'none': None, 'empty': []}", False),
}


def _raw(peer: Child, expression: str) -> bytes:
    """The bytes of a tensor or of bytes in their order."""
    raw: bytes = peer.run(
        f"value = {expression}\n"
        "value if isinstance(value, bytes) else "
        "value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()"
    )
    return raw


def _exchange(sender: Child, receiver: Child, places: list[Any]) -> None:
    for number, (name, (expression, raw)) in enumerate(PAYLOADS.items()):
        ok, size, metadata = sender.run(f"connector.put('0', '1', '{name}', {expression})")
        assert ok and size > 0
        place = places[number % len(places)]
        if place == "complete":
            place = metadata
        got = receiver.run(f"take(connector.get('0', '1', '{name}', place))", place=place)
        assert got is not None, receiver.stderr()
        assert got[0] is raw and got[2] == size
        if raw:
            assert got[1] == _raw(receiver, expression), name
        else:
            same = receiver.run(
                f"wanted = {expression}\n"
                "all(bool(torch.equal(v, got[k])) if hasattr(v, 'dtype') else v == got[k] "
                "for k, v in wanted.items()) and list(got) == list(wanted)",
                got=got[1],
            )
            assert same, name


def _expect_success_lines(log: str) -> None:
    """What users look for after a run: the same from vLLM-Omni's class and from ours."""
    part = r"%s=\d+\.\dms, "
    raw = r"\[YR GET\] tensor@0_1: " + "".join(
        part % p for p in ("query", "alloc", "read", "total")
    )
    assert re.search(raw + r"\d+\.\d MB/s \(fast_path, zero-copy\)$", log, re.MULTILINE), log
    parts = ("query", "alloc", "read", "copy", "total")
    decoded = r"\[YR GET\] dict@0_1: " + "".join(part % p for p in parts)
    assert re.search(decoded + r"\d+\.\d MB/s$", log, re.MULTILINE), log


@pytest.mark.parametrize("protocol", ["ascend", "tcp"])
def test_two_of_vllm_omnis_own_exchange_payloads_over_our_engine(
    peers: list[Child], protocol: str
) -> None:
    sender, receiver = peers[:2]
    there = _open(sender, "sender", protocol=protocol)
    _open(receiver, "receiver", protocol=protocol)
    receiver.run("connector.update_sender_info('127.0.0.1', port)", port=there["zmq_port"])
    partial = {"source_host": "127.0.0.1", "source_port": there["zmq_port"]}
    _exchange(sender, receiver, [None, partial, "complete"])
    assert receiver.run("connector.get('0', '1', 'tensor')") is None  # Consumed once.
    health = receiver.run("connector.health()")
    assert health["gets"] == len(PAYLOADS) and health["errors"] == 0
    _expect_success_lines(receiver.stderr())
    for peer in (receiver, sender):
        peer.run("connector.close()", timeout=60)


@pytest.mark.parametrize("protocol", ["auto", "tcp"])
@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_ours_exchanges_payloads_with_vllm_omnis_own(
    peers: list[Child], role: str, protocol: str
) -> None:
    theirs, ours = peers[0], peers[2]
    sender, receiver = (ours, theirs) if role == "sender" else (theirs, ours)
    for peer, side in ((sender, "sender"), (receiver, "receiver")):
        extra = {"compat_030": True} if peer is ours else {}
        info = _open(peer, side, protocol=protocol, **extra)
        if side == "sender":
            there = info
    receiver.run("connector.update_sender_info('127.0.0.1', port)", port=there["zmq_port"])
    partial = {"source_host": "127.0.0.1", "source_port": there["zmq_port"]}
    _exchange(sender, receiver, [None, partial, "complete"])
    assert receiver.run("connector.get('0', '1', 'tensor')") is None
    for number in range(20):
        # The release of one takes nothing from the next; a sender of 0.30 knows no generations.
        key = "again" if sender is ours else f"again-{number}"
        put = "connector.put('0', '1', key, bytes([n]) * 5000)[0]"
        assert sender.run(put, key=key, n=number)
        got = receiver.run("take(connector.get('0', '1', key))", key=key)
        assert got == (True, bytes([number]) * 5000, 5000)
    health = receiver.run("connector.health()")
    assert health["gets"] == len(PAYLOADS) + 20 and health["errors"] == 0
    _expect_success_lines(receiver.stderr())
    if sender is ours:
        assert sender.run("connector.health()['offers']") == 0
    for peer in (receiver, sender):
        peer.run("connector.close()", timeout=60)


def test_tensors_of_any_type_and_layout_are_offered_as_their_bytes(peers: list[Child]) -> None:
    sender, receiver = peers[2:]
    there = _open(sender, "sender")
    _open(receiver, "receiver")
    receiver.run("connector.update_sender_info('127.0.0.1', port)", port=there["zmq_port"])
    tensors = [
        "torch.tensor(True)", "torch.tensor(2.5, dtype=torch.bfloat16)", "torch.arange(9)[::2]",
        "torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)", "torch.ones(3, requires_grad=True)",
        "torch.arange(5.0).to(torch.float8_e4m3fn)", "torch.tensor([1 + 2j, 3j]).conj()",
        "torch.arange(6.0).expand(4, 6)",
    ]  # fmt: skip
    for tensor in tensors:
        ok, size, metadata = sender.run(f"connector.put('0', '1', 't', {tensor})")
        assert ok and metadata["is_fast_path"], tensor
        same = receiver.run(
            f"wanted = {tensor}.detach().resolve_conj()\n"
            "buffer, size = connector.get('0', '1', 't')\n"
            "got = buffer.as_tensor(wanted.dtype, wanted.shape)\n"
            "buffer.release()\n"
            "size == wanted.nbytes and got.shape == wanted.shape and bool((got == wanted).all())"
            if "float8" not in tensor
            else "take(connector.get('0', '1', 't'))[1] == "
            f"{tensor}.view(torch.uint8).numpy().tobytes()"
        )
        assert same, tensor
    for refused in ("torch.empty(0)", "torch.empty(3, device='meta')", "torch.eye(3).to_sparse()"):
        assert sender.run(f"connector.put('0', '1', 't', {refused})") == (False, 0, None)
    assert sender.run("connector.put('0', '1', 't', torch.arange(4, dtype=torch.int16))")[0]
    wrong = receiver.run(
        "buffer, size = connector.get('0', '1', 't')\n"
        "found = [buffer.tensor.dtype == torch.uint8, list(buffer.tensor.shape) == [8]]\n"
        "for dtype, shape in ((torch.int16, (5,)), (torch.int16, (-1,)), (torch.int64, (2,))):\n"
        "    try:\n"
        "        buffer.as_tensor(dtype, shape)\n"
        "    except ValueError:\n"
        "        found.append(True)\n"
        "found"
    )
    assert wrong == [True] * 5
    for peer in (receiver, sender):
        peer.run("connector.close()", timeout=60)
