"""Sender and receiver in two processes; one of them fails."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from child import Child

sys.path.insert(0, str(Path(__file__).parent))

import pulls  # noqa: E402

HERE = str(Path(__file__).parent)
Start = Callable[..., Child]
PUT_DATA = "one.put('0', '1', 'r', data.tobytes())"


def _sender(child: Start, **extra: Any) -> tuple[Child, dict[str, Any]]:
    """A sender in another process, and where it is."""
    peer = child()
    place = peer.run(pulls.CHILD, folder=HERE, role="sender", extra=extra)
    return peer, place


@pytest.mark.parametrize("protocol", ["auto", "shm", "cma", "unix", "tcp"])
def test_payloads_of_every_size_cross_processes_unchanged(child: Start, protocol: str) -> None:
    peer, place = _sender(child, protocol=protocol)
    with pulls.receiver(place, protocol=protocol) as one:
        for size in (1, 63, 4096, 1 << 20, (6 << 20) + 1):
            code = "data = np.arange(size, dtype=np.uint32).view(np.uint8)[:size]\n" + PUT_DATA
            ok, _, metadata = peer.run(code, size=size)
            assert ok
            got = pulls.raw(one.get(*pulls.EDGE, "r", None if size % 2 else metadata))
            wanted = np.arange(size, dtype=np.uint32).view(np.uint8)[:size]
            assert got is not None and (np.frombuffer(got, np.uint8) == wanted).all()
        assert peer.run("one.put('0', '1', 'r', {'a': (1, 2), 'b': np.ones(5)})[0]")
        got_object = one.get(*pulls.EDGE, "r")
        assert got_object is not None and got_object[0]["a"] == (1, 2)


@pytest.mark.parametrize("wire", ["fast", "compat"])
def test_arrays_without_axes_keep_their_value_their_shape_and_their_type(
    child: Start, wire: str
) -> None:
    peer, place = _sender(child, compat_030=wire == "compat")
    peer.run("import ml_dtypes")
    kinds = ("f8", "f2", "i4", "u1", "?", "c8", "M8[ns]", "ml_dtypes.bfloat16")
    with pulls.receiver(place, compat_030=wire == "compat") as one:
        for kind in kinds:
            dtype = np.dtype(ml_dtypes.bfloat16 if "ml_" in kind else kind)
            wanted = np.array(1).astype(dtype)
            code = "value = np.array(1).astype(eval(kind) if 'ml_' in kind else kind)\n"
            for form in ("value", "[value, {'a': value}]"):
                assert peer.run(code + f"one.put('0', '1', 'r', {form})[0]", kind=kind), kind
                got = one.get(*pulls.EDGE, "r")
                assert got is not None, (kind, form)
                for array in [got[0]] if form == "value" else [got[0][0], got[0][1]["a"]]:
                    assert type(array) is np.ndarray and array.shape == (), (kind, form)
                    assert array.dtype == dtype and array.tobytes() == wanted.tobytes(), kind
        assert peer.run("one.health()['errors']") == 0
        assert pulls.soon(lambda: one.health()["pool_used"] == 0)
    assert pulls.soon(lambda: peer.run("one.health()['pool_used']") == 0)


def test_a_key_that_is_put_again_and_again_never_shows_foreign_bytes(child: Start) -> None:
    peer, place = _sender(child)
    peer.start(
        "for number in range(2000):\n"
        "    assert one.put('0', '1', 'r', bytes([number % 251]) * (1 << 18), readers=0)[0]\n"
        "    if number % 7 == 0: one.cleanup('r', '0', '1')\n"
        "one.put('0', '1', 'end', b'end')[0]"
    )
    seen = 0
    with pulls.receiver(place) as one:
        for _ in range(20_000):
            data = pulls.raw(one.get(*pulls.EDGE, "r"))
            if data is not None:
                seen += 1
                assert data == data[:1] * (1 << 18)
            if pulls.raw(one.get(*pulls.EDGE, "end")) is not None:
                break
        assert seen > 0
    assert peer.finish(60) is True


def test_a_killed_sender_is_an_end_at_once_and_its_successor_is_found(child: Start) -> None:
    peer, place = _sender(child)
    with pulls.receiver(place) as one:
        stale = peer.run("one.put('0', '1', 'r', b'old', readers=0)")[2]
        assert pulls.raw(one.get(*pulls.EDGE, "r")) == b"old"
        peer.kill()
        begun = time.monotonic()
        assert one.get(*pulls.EDGE, "r") is None
        assert one.get_with_deadline(*pulls.EDGE, "r", stale, deadline=begun + 1) is None
        assert time.monotonic() - begun < 15
        found = one.health()
        assert found["errors"] + found["timeouts"] >= 2
        successor, _ = _sender(child, zmq_port=place["zmq_port"])
        fresh = successor.run("one.put('0', '1', 'r', b'new', readers=0)")[2]
        assert fresh["generation"] != stale["generation"]
        got = one.get_with_deadline(*pulls.EDGE, "r", deadline=time.monotonic() + 30)
        assert pulls.raw(got) == b"new"
        # What was known of the former life is never taken for the new one's.
        assert pulls.raw(one.get(*pulls.EDGE, "r", stale)) is None


def test_a_stopped_sender_costs_the_deadline_and_no_more(child: Start) -> None:
    peer, place = _sender(child)
    with pulls.receiver(place) as one:
        peer.run("one.put('0', '1', 'r', b'x')")
        assert pulls.raw(one.get(*pulls.EDGE, "r")) == b"x"
        peer.run("one.put('0', '1', 'r', b'x')")
        peer.stop()
        begun = time.monotonic()
        assert one.get_with_deadline(*pulls.EDGE, "r", deadline=begun + 0.3) is None
        assert 0.25 < time.monotonic() - begun < 10
        assert one.health()["timeouts"] == 1
        # To release what was read is nobody's to wait for.
        begun = time.monotonic()
        one.close()
        assert time.monotonic() - begun < 10
    peer.resume()


def test_a_killed_receiver_holds_nothing_of_the_sender(child: Start) -> None:
    with pulls.sender() as one:
        peer = child()
        peer.run(pulls.CHILD, folder=HERE, role="receiver", extra={})
        place = one.get_connection_info()
        peer.run("one.update_sender_info(place['host'], place['zmq_port'])", place=place)
        one.put(*pulls.EDGE, "a", b"x" * 5000)
        assert peer.run("pulls.raw(one.get('0', '1', 'a'))") == b"x" * 5000
        peer.start(
            "import time; one.get_with_deadline('0', '1', 'b', deadline=time.monotonic()+80)"
        )
        assert pulls.soon(lambda: one.health()["waiting"] == 1)
        peer.kill()
        assert pulls.soon(lambda: one.health()["waiting"] == 0)
        one.put(*pulls.EDGE, "b", b"y")
        with pulls.receiver(one) as other:
            assert pulls.raw(other.get(*pulls.EDGE, "b")) == b"y"
        assert pulls.soon(lambda: one.health()["pool_used"] == 0)


def test_only_those_who_hold_the_secret_are_answered(child: Start, tmp_path: Path) -> None:
    secrets = [tmp_path / "a", tmp_path / "b"]
    for at, path in enumerate(secrets):
        path.write_bytes(bytes([at]) * 40)
        path.chmod(0o600)
    peer, place = _sender(child, secret_file=str(secrets[0]))
    peer.run("one.put('0', '1', 'r', b'secret', readers=0)")
    with pulls.receiver(place, secret_file=str(secrets[0])) as one:
        assert pulls.raw(one.get(*pulls.EDGE, "r")) == b"secret"
    for extra in ({}, {"secret_file": str(secrets[1])}):
        with pulls.receiver(place, **extra) as one:
            got = one.get_with_deadline(*pulls.EDGE, "r", deadline=time.monotonic() + 0.5)
            assert got is None
            found = one.health()
            assert found["errors"] + found["timeouts"] == 1


def test_lives_of_a_receiver_leave_no_file_descriptors_behind(child: Start) -> None:
    peer, place = _sender(child)
    count = "len(__import__('os').listdir('/proc/self/fd'))"
    levels = []
    for life in range(12):
        with pulls.receiver(place) as one:
            peer.run("one.put('0', '1', 'r', b'x')")
            assert pulls.raw(one.get(*pulls.EDGE, "r")) == b"x"
        levels.append(peer.run(count))
        assert life < 4 or levels[-1] <= max(levels[2:4]) + 2, levels
