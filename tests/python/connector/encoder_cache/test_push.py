"""Embeddings that a producer in another process pushes: by value, and told at both ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from child import Child

import stagelink as sl
from stagelink import _core

EXTRA = {
    "host": "127.0.0.1",
    "ec_mode": "push",
    "buffer_size": "4MiB",
    "control_timeout": "20s",  # A machine that is busy is no failure.
}
SHAPE = (64, 256)
NBYTES = 64 * 256 * 4
NOTHING = {"pushes_pending": 0, "leases": 0}

# Of a child: a producer, and what it makes.
PRODUCER = """
import time
from stagelink import _core

def made(seed, shape, dtype):
    kind = {"bfloat16": "uint16"}.get(dtype, dtype)
    count = int(np.prod(shape)) * np.dtype(kind).itemsize
    data = np.random.default_rng(seed).integers(0, 256, count, np.uint8)
    return data.view(kind).reshape(shape)

def soon(condition):
    until = time.monotonic() + 20
    while not condition() and time.monotonic() < until:
        time.sleep(0.002)
    return condition()
"""
PUSH = "producer.push(transfer, at, mm_hash, (nbytes, shape, dtype))"
SAVE = "producer.save(mm_hash, shape, dtype, made(seed, shape, dtype))"


class Ends:
    """A consumer here, and its producer in another process."""

    def __init__(self, child: Child, fetcher: Any) -> None:
        self.child = child
        self.fetcher = fetcher
        self.rank = _core.EncoderCacheConsumer(json.dumps({**EXTRA, "buffer_size": "1MiB"}))

    def push(self, mm_hash: str, transfer: str, **other: Any) -> bool:
        what = {"at": self.fetcher.consumer_zmq, "nbytes": NBYTES, "shape": SHAPE}
        what |= {"dtype": "float32", "mm_hash": mm_hash, "transfer": transfer, **other}
        return bool(self.child.run(PUSH, **what))

    def save(self, mm_hash: str, seed: int, **other: Any) -> bool:
        what = {"shape": SHAPE, "dtype": "float32", "mm_hash": mm_hash, "seed": seed, **other}
        return bool(self.child.run(SAVE, **what))

    def failures(self, count: int = 1) -> list[tuple[str, str, str]]:
        """As many as that, or what there is after a time that should have been enough."""
        found: list[tuple[str, str, str]] = self.child.run(
            "taken = []\n"
            "soon(lambda: taken.extend(producer.take_push_failures()) or len(taken) >= count)\n"
            "taken",
            count=count,
        )
        return found

    def producer_left(self) -> dict[str, Any]:
        """What its pushes still hold: nothing, after a while."""
        found: dict[str, Any] = self.child.run(
            "soon(lambda: not producer.usage['pushes_pending'] and not producer.usage['leases'])\n"
            "{name: producer.usage[name] for name in ('pushes_pending', 'leases')}"
        )
        return found

    def outcome(self, mm_hash: str) -> tuple[str, str, Any]:
        assert soon(lambda: self.fetcher.look(mm_hash)[0] not in ("expected", "loading"))
        found: tuple[str, str, Any] = self.fetcher.look(mm_hash)
        return found

    def got(self, mm_hash: str) -> bytes:
        """What a worker gets of it, which then is its own."""
        state, why, place = self.outcome(mm_hash)
        assert state == "ready", why
        nbytes, shape, dtype, *_ = place
        self.fetcher.handed_on(mm_hash)
        tensor = np.zeros(nbytes, np.uint8)
        assert self.rank.load([(mm_hash, [place], tensor)], handed_on=True) == [None]
        assert self.fetcher.look(mm_hash) == ("unknown", "", None)
        assert int(np.prod(shape)) * _bytes_of(dtype) == nbytes
        return tensor.tobytes()

    def has_reserved(self, count: int) -> bool:
        """Whether so many transfers have room here."""
        usage = self.fetcher.usage
        return bool(usage["reservations"] == count and usage["queued"] == 0)

    def reserved(self, count: int) -> bool:
        return soon(lambda: self.has_reserved(count))

    def emptied(self) -> bool:
        return soon(lambda: self.fetcher.usage["pool_used"] == 0)

    def left(self) -> dict[str, Any]:
        """What the consumer still has for requests; what is idle goes when its room is wanted."""
        names = ("reservations", "queued", "expected", "wanted", "handed_on", "in_flight")
        soon(lambda: not any(self.fetcher.usage[name] for name in names))
        return {name: value for name in names if (value := self.fetcher.usage[name])}


def soon(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 20
    while not condition() and time.monotonic() < until:
        time.sleep(0.002)
    return condition()


def _bytes_of(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def made(seed: int, shape: tuple[int, ...] = SHAPE, dtype: str = "float32") -> bytes:
    count = int(np.prod(shape)) * _bytes_of(dtype)
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8).tobytes()


@pytest.fixture(scope="module")
def process() -> Iterator[Child]:
    child = Child()
    child.run(PRODUCER)
    yield child
    child.close()


@pytest.fixture
def ends(process: Child) -> Iterator[Callable[..., Ends]]:
    """Makes the two ends; `producer` are options of that end alone."""
    opened: list[Ends] = []

    def make(producer: dict[str, Any] | None = None, **extra: Any) -> Ends:
        options = json.dumps({**EXTRA, **(producer or {})})
        process.run("producer = _core.EncoderCacheProducer(extra)", extra=options)
        opened.append(Ends(process, _core.EncoderCacheFetcher(json.dumps({**EXTRA, **extra}), 1)))
        return opened[-1]

    yield make
    for end in opened:
        end.rank.close()
        end.fetcher.close()
        process.run("producer.close()")


def test_what_is_pushed_is_here_by_value_and_nothing_is_left(ends: Callable[..., Ends]) -> None:
    both = ends()
    kinds: list[tuple[tuple[int, ...], str]] = [
        (SHAPE, "float32"), ((7, 33), "bfloat16"), ((1,), "uint8"), ((2, 3, 5), "float16"),
    ]  # fmt: skip
    for seed, (shape, dtype) in enumerate(kinds):
        what = {"shape": shape, "dtype": dtype}
        nbytes = int(np.prod(shape)) * _bytes_of(dtype)
        mm_hash, transfer = f"h{seed}", f"t{seed}"
        # The request may come first, after the push, or after the embedding.
        if seed % 3 == 0:
            both.fetcher.expect(mm_hash, transfer)
            assert both.fetcher.look(mm_hash) == ("expected", "", None)
        assert both.push(mm_hash, transfer, nbytes=nbytes, **what)
        assert both.reserved(1)
        assert both.fetcher.usage["pool_used"] >= nbytes  # Room is taken before it is made.
        if seed % 3 == 1:
            both.fetcher.expect(mm_hash, transfer)
        assert both.save(mm_hash, seed, **what)
        if seed % 3 == 2:
            assert both.producer_left() == NOTHING  # The consumer has it.
            both.fetcher.expect(mm_hash, transfer)
        assert both.got(mm_hash) == made(seed, shape, dtype)
        assert both.left() == {}
    assert both.fetcher.usage["pushes"] == {"ok": len(kinds)}
    assert both.child.run("producer.usage['pushes']") == {"ok": len(kinds)}
    assert both.child.run("producer.take_push_failures()") == []
    assert both.producer_left() == NOTHING
    # What is idle gives way to what wants its room, and a push that is cancelled gives that back.
    idle = both.fetcher.usage
    assert idle["idle"] == len(kinds) and idle["pool_used"] >= NBYTES
    most = 4 * 1024 * 1024 - NBYTES // 2
    assert both.push("big", "big", nbytes=most, shape=(most,), dtype="uint8")
    assert soon(lambda: both.fetcher.usage["pool_used"] >= most)
    assert both.reserved(1)
    both.child.run("producer.cancel_push('big')")
    assert both.left() == {} and both.producer_left() == NOTHING
    assert both.emptied() and both.fetcher.usage["idle"] == 0
    assert both.child.run("producer.take_push_failures()") == []  # It was wanted so.


def test_all_who_were_promised_a_picture_have_it_of_one_read(ends: Callable[..., Ends]) -> None:
    both = ends()
    for transfer in ("t0", "t1", "t2"):
        both.fetcher.expect("h", transfer)
        assert both.push("h", transfer)
    assert both.reserved(3)
    assert both.save("h", 5)
    assert both.got("h") == made(5)
    assert both.producer_left() == NOTHING and both.left() == {}
    assert both.child.run("producer.usage['pushes'], producer.take_push_failures()") == (
        {"ok": 3},
        [],
    )
    assert both.fetcher.usage["loads"] == {"ok": 1}


def test_a_push_that_fails_is_told_at_both_ends(ends: Callable[..., Ends]) -> None:
    both = ends()
    # Another shape is made than was announced.
    both.fetcher.expect("h1", "t1")
    assert both.push("h1", "t1") and both.reserved(1)
    assert both.save("h1", 1, shape=(64, 255))
    [(transfer, mm_hash, why)] = both.failures()
    assert (transfer, mm_hash) == ("t1", "h1") and "incompatible" in why
    assert "[64, 256]" in why and "[64, 255]" in why
    state, told, _ = both.outcome("h1")
    assert state == "missing" and "cancelled" in told
    # It does not fit where it is made.
    both.fetcher.expect("h2", "t2")
    huge = {"shape": (3 * 1024 * 1024,), "dtype": "uint8"}
    assert both.push("h2", "t2", nbytes=3 * 1024 * 1024, **huge) and both.reserved(1)
    assert not both.save("h2", 1, shape=(5 * 1024 * 1024,), dtype="uint8")
    [(transfer, _, why)] = both.failures()
    assert transfer == "t2" and "too_large" in why
    assert both.outcome("h2")[0] == "missing"
    # It does not fit where it is to go.
    both.fetcher.expect("h3", "t3")
    assert both.push("h3", "t3", nbytes=8 << 20, shape=(8 << 20,), dtype="uint8")
    [(transfer, _, why)] = both.failures()
    assert transfer == "t3" and "too_large" in why
    state, told, _ = both.outcome("h3")
    assert state == "missing" and "too_large" in told
    for mm_hash in ("h1", "h2", "h3"):
        both.fetcher.drop(mm_hash)
    assert both.left() == {} and both.emptied() and both.producer_left() == NOTHING


def test_what_is_given_up_is_told_to_who_waits_and_may_be_pushed_again(
    ends: Callable[..., Ends],
) -> None:
    both = ends()
    both.fetcher.expect("h", "t")
    assert both.push("h", "t") and both.reserved(1)
    both.child.run("producer.give_up('h', 'the encoder failed')")
    state, why, place = both.outcome("h")
    assert (state, place) == ("missing", None) and "gave it up" in why
    both.fetcher.drop("h")
    assert both.left() == {} and both.emptied() and both.producer_left() == NOTHING
    both.fetcher.expect("h", "t")
    assert both.push("h", "t") and both.save("h", 9)
    assert both.got("h") == made(9)
    assert both.child.run("producer.usage['pushes']") == {"cancelled": 1, "ok": 1}


def test_a_consumer_refuses_before_and_after_it_was_asked(ends: Callable[..., Ends]) -> None:
    both = ends()
    both.fetcher.refuse("before")
    assert both.push("h0", "before")
    assert both.producer_left() == NOTHING
    assert both.push("h1", "after") and both.reserved(1)
    both.fetcher.refuse("after")
    both.fetcher.expect("h2", "dropped")
    assert both.push("h2", "dropped") and both.reserved(1)
    both.fetcher.drop("h2")
    assert both.left() == {} and both.emptied()
    # Its producer hears of it with its next word, and holds nothing for it.
    for seed, mm_hash in enumerate(("h0", "h1", "h2")):
        assert both.save(mm_hash, seed)
    assert both.producer_left() == NOTHING
    assert both.child.run("producer.usage['pushes']") == {"cancelled": 3}
    assert both.child.run("producer.take_push_failures()") == []  # No failures of anybody.
    assert both.left() == {} and both.emptied()


def test_another_model_and_a_transfer_of_others_are_refused_by_name(
    ends: Callable[..., Ends],
) -> None:
    both = ends(producer={"identity": "model B"}, identity="model A")
    assert both.push("h", "t")
    [(transfer, mm_hash, why)] = both.failures()
    assert (transfer, mm_hash) == ("t", "h") and "incompatible" in why
    assert "model A" in why and "model B" in why
    assert both.fetcher.usage["pool_used"] == 0
    same = ends(identity="model A", producer={"identity": "model A"})
    assert same.push("h", "t") and same.reserved(1)
    assert not same.push("h", "t")
    [(transfer, _, why)] = same.failures()
    assert transfer == "t" and "already_exists" in why
    assert same.child.run("producer.usage['pushes_pending']") == 1  # The first goes on.


def test_a_killed_producer_costs_the_time_of_its_reservation(
    ends: Callable[..., Ends], child: Callable[..., Child]
) -> None:
    both = ends(reservation_ttl="300ms")
    dying = child()
    dying.run(PRODUCER + "producer = _core.EncoderCacheProducer(extra)", extra=json.dumps(EXTRA))
    both.fetcher.expect("h", "t")
    what = {"at": both.fetcher.consumer_zmq, "nbytes": NBYTES, "shape": SHAPE, "dtype": "float32"}
    assert dying.run(PUSH, transfer="t", mm_hash="h", **what)
    # Reserved; or so slow that its reservation has ended by now.
    assert soon(lambda: both.has_reserved(1) or both.fetcher.look("h")[0] == "missing")
    dying.kill()
    state, why, _ = both.outcome("h")
    assert state == "missing" and "expired" in why and "sign of life" in why
    both.fetcher.drop("h")
    assert both.left() == {} and both.emptied()


def test_what_cannot_be_pushed_is_a_failure_that_says_why(ends: Callable[..., Ends]) -> None:
    both = ends(producer={"control_timeout": "300ms"})
    for wrong, name in (
        ({"at": "nowhere"}, 'consumer_zmq "nowhere"'),
        ({"at": "tcp://0.0.0.0:5"}, "consumer_zmq"),
        ({"transfer": ""}, "transfer_id"),
        ({"transfer": "x" * 5000}, "transfer_id"),
        ({"mm_hash": ""}, "mm_hash"),
        ({"nbytes": NBYTES - 1}, str(NBYTES - 1)),
        ({"dtype": "float9"}, "float9"),
    ):
        assert not both.push(**{"mm_hash": "h", "transfer": "t", **wrong})
        [(_, _, why)] = both.failures()
        assert name in why, (wrong, why)
    assert both.push("h", "t", at="tcp://127.0.0.1:1")  # Nobody is there.
    [(transfer, mm_hash, why)] = both.failures()
    assert (transfer, mm_hash) == ("t", "h") and "unreachable" in why
    assert both.producer_left() == NOTHING and both.fetcher.usage["pool_used"] == 0


HALF = "\ud800"
INFO = (32, (2, 4), "float32")


def test_wrong_arguments_are_named(ends: Callable[..., Ends]) -> None:
    fetcher, at = ends().fetcher, "tcp://127.0.0.1:1"
    producer = _core.EncoderCacheProducer(json.dumps(EXTRA))
    push = producer.push
    cases: list[tuple[str, Callable[[Any], Any], list[Any]]] = [
        ("transfer_id", lambda v: push(v, at, "h", INFO), [None, 5, HALF, b"t"]),
        ("consumer_zmq", lambda v: push("t", v, "h", INFO), [None, 5, HALF]),
        ("mm_hash", lambda v: push("t", at, v, INFO), [None, 5, HALF]),
        ("info", lambda v: push("t", at, "h", v), [None, 5, "abc", INFO[:2], (*INFO, 1)]),
        ("nbytes", lambda v: push("t", at, "h", (v, *INFO[1:])), [None, "x", -1, 2**64, 1.5]),
        ("shape", lambda v: push("t", at, "h", (32, v, "float32")), [None, "ab", (-1, 2)]),
        ("dtype", lambda v: push("t", at, "h", (32, (2, 4), v)), [None, 5, HALF]),
        ("mm_hash", lambda v: producer.give_up(v, "why"), [None, 5, HALF]),
        ("why", lambda v: producer.give_up("h", v), [None, 5, HALF]),
        ("transfer_id", producer.cancel_push, [None, 5, HALF]),
        ("mm_hash", lambda v: fetcher.expect(v, "t"), [None, 5, HALF]),
        ("transfer_id", lambda v: fetcher.expect("h", v), [None, 5, HALF]),
        ("transfer_id", fetcher.refuse, [None, 5, HALF]),
        ("mm_hash", fetcher.look, [None, 5, HALF]),
        ("mm_hash", fetcher.handed_on, [None, 5, HALF]),
    ]
    for name, call, values in cases:
        for value in values:
            with pytest.raises(sl.InvalidArgument) as raised:
                call(value)
            message = raised.value.message
            assert message.startswith(name), (name, value, message)
            assert len(message) < 400 and "incompatible function" not in message
    assert producer.take_push_failures() == [] and fetcher.usage["wanted"] == 0
    producer.close()
    with pytest.raises(sl.InvalidArgument, match="ec_mode"):
        _core.EncoderCacheProducer(json.dumps({**EXTRA, "ec_mode": "shove"}))


def test_a_producer_that_does_not_push_says_so() -> None:
    extra = {"host": "127.0.0.1", "buffer_size": "1MiB", "registry_http_port": 0}
    producer = _core.EncoderCacheProducer(json.dumps(extra))
    with pytest.raises(sl.InvalidState, match="ec_mode is pull"):
        producer.push("t", "tcp://127.0.0.1:1", "h", INFO)
    producer.close()
