"""``stagelink.moriio`` in place of 0.32's own classes: under its worker, and across the wire."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Engines
from harness import upstream
from harness.engine import EngineProcess, Job
from harness.setups import Setup, decode_job, prefill_job, prompt, write_params

PROMPTS = [(1, 300), (3, 64), (4, 33)]
TOKENS = 8


def theirs() -> None:
    upstream.prepare("shm,tcp")


def ours() -> None:
    """0.32's connector and worker with our wrapper and writer."""
    upstream.prepare("shm,tcp")
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_connector

    from stagelink.moriio import MoRIIOWrapper, MoRIIOWriter

    moriio_connector.MoRIIOWrapper = MoRIIOWrapper
    moriio_connector.MoRIIOWriter = MoRIIOWriter


SIDES: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
    "both": (ours, ours),
    "prefill": (ours, theirs),
    "decode": (theirs, ours),
}


@pytest.fixture(scope="module")
def wanted(models: Path, module_engines: Engines) -> list[list[int]]:
    """The tokens of one engine alone."""
    alone: EngineProcess = module_engines.start("alone", Setup(models / "llama")).wait_ready()
    return [
        alone.run(Job(f"alone-{seed}-{length}", prompt(seed, length), TOKENS)).tokens
        for seed, length in PROMPTS
    ]


@pytest.mark.parametrize("read_mode", [False, True], ids=["write", "read"])
@pytest.mark.parametrize("sides", SIDES)
def test_the_tokens_are_those_of_one_engine(
    models: Path, engines: Engines, wanted: list[list[int]], sides: str, read_mode: bool
) -> None:
    extra = {"read_mode": str(read_mode).lower()}
    prefill_setup = Setup(models / "llama", "kv_producer", extra=extra)
    decode_setup = Setup(models / "llama", "kv_consumer", extra=extra)
    prefill = engines.start("prefill", prefill_setup, SIDES[sides][0])
    decode = engines.start("decode", decode_setup, SIDES[sides][1])
    prefill.wait_ready()
    decode.wait_ready()
    for number, (seed, length) in enumerate(PROMPTS):
        name = f"{sides}-{read_mode}-{number}"
        tokens = prompt(seed, length)
        if read_mode:
            answer = prefill.run(prefill_job(name, tokens))
            assert answer.params is not None
            got = decode.run(decode_job(name, tokens, TOKENS, answer.params))
        else:
            decode.submit(decode_job(name, tokens, TOKENS, write_params(name, prefill_setup)))
            prefill.submit(prefill_job(name, tokens, decode_setup))
            prefill.outcome(name)
            got = decode.outcome(name)
        assert got.tokens == wanted[number]


# The classes alone, in this process.


@pytest.fixture
def their_wrapper() -> Iterator[Any]:
    from stagelink.compat import mori

    mori.enable()
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_engine

    wrapper = moriio_engine.MoRIIOWrapper()
    yield wrapper
    wrapper.shutdown()  # Its listener's thread stays until the process ends.


@pytest.fixture
def set_their_role(their_wrapper: Any) -> Iterator[Callable[[str], None]]:
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_common import ROLE, set_role

    yield lambda name: set_role(ROLE(name))
    set_role(ROLE.NOTINIT)


def eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 30
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    return condition()


def test_ours_understands_what_theirs_sends(their_wrapper: Any) -> None:
    from stagelink.moriio import MoRIIOTransferAck, MoRIIOWrapper

    producer, consumer = MoRIIOWrapper(role="producer"), MoRIIOWrapper(role="consumer")
    try:
        for wrapper in (producer, consumer):
            wrapper.notify_port = 0
            wrapper.async_wait_reqid()
        assert producer.notify_address is not None and consumer.notify_address is not None
        blocks = {
            "req_id": "req-1",
            "block_notify_list": [4, 5, 300],
            "decode_rank": 3,
        }
        release = {"consumer_tp_size": 2}
        send = their_wrapper.send_notify
        send("tx-1", *producer.notify_address, "remote_blocks", blocks)
        assert eventually(lambda: "tx-1" in producer.done_remote_allocate_req_dict)
        allocation = producer.done_remote_allocate_req_dict["tx-1"]
        assert allocation.block_ids == [4, 5, 300] and allocation.decode_dp_rank == 3
        send("tx-1", *producer.notify_address, "release", release)
        send("cmpl-legacy", *producer.notify_address)
        send("tx-1", *consumer.notify_address, "write_done")
        assert eventually(lambda: len(producer.done_req_ids) == 2)
        acks = [tuple(ack) for ack in producer.pop_finished_req_ids()]
        assert acks == [("tx-1", 2), tuple(MoRIIOTransferAck("cmpl-legacy"))]
        assert eventually(lambda: list(consumer.done_write_cache_req_ids) == ["tx-1"])
    finally:
        producer.shutdown()
        consumer.shutdown()


@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_theirs_understands_what_ours_sends(
    their_wrapper: Any, set_their_role: Callable[[str], None], role: str
) -> None:
    from vllm.utils.network_utils import get_open_port

    from stagelink.moriio import MoRIIOWrapper

    set_their_role(role)
    their_wrapper.notify_port = get_open_port()
    their_wrapper.async_wait_reqid()
    us = MoRIIOWrapper(role="consumer" if role == "producer" else "producer")
    try:
        place = ("127.0.0.1", their_wrapper.notify_port)
        if role == "producer":
            us.send_notify("tx-1", *place, "release", {"consumer_tp_size": 4})
            us.send_notify("cmpl-2", *place)
            assert eventually(lambda: len(their_wrapper.done_req_ids) == 2)
            acks = [tuple(ack) for ack in their_wrapper.pop_finished_req_ids()]
            assert acks == [("tx-1", 4), ("cmpl-2", 1)]
        else:
            us.send_notify(["tx-1", "tx-2"], *place, "write_done")
            us.send_notify("cmpl-3", *place)
            assert eventually(lambda: len(their_wrapper.done_write_cache_req_ids) == 3)
            assert their_wrapper.pop_finished_write_req_ids() == {"tx-1", "tx-2", "cmpl-3"}
    finally:
        us.shutdown()
