"""What a flood of failures leaves in the log."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from typing import Any

import pytest

from stagelink.connectors import YuanrongConnector
from stagelink.pull import YuanrongTransferEngineConnector, log_limit

_HERE: dict[str, Any] = {"host": "127.0.0.1", "memory_pool_size": 1 << 20}
_FAILED = "transfer_engine get failed for"


@pytest.mark.parametrize(("keys", "lines"), [(5, 5), (6, 6), (2000, 6)])
def test_a_call_for_many_keys_names_five_and_counts_the_rest(
    keys: int, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    sender = YuanrongTransferEngineConnector({**_HERE, "role": "sender", "max_waiting": 0})
    receiver = YuanrongTransferEngineConnector({**_HERE, "role": "receiver"})
    receiver.update_sender_info(sender.host, sender.zmq_port)
    with caplog.at_level(logging.WARNING, "stagelink.pull"):
        names = [f"k{at}" for at in range(keys)]
        found = receiver.get_many("0", "1", names, deadline=time.monotonic() + 30)
    assert found == [None] * keys
    written = [line for line in caplog.messages if _FAILED in line]
    assert len(written) == lines
    assert all("busy" in line for line in written)
    assert [f"{_FAILED} {keys - 5} further keys" in line for line in written[5:]] == [True] * (
        lines - 5
    )
    receiver.close()
    sender.close()


class _Raising(logging.Handler):
    def handle(self, record: logging.LogRecord) -> bool:
        raise RuntimeError("telemetry is down")


def test_a_log_that_raises_changes_no_outcome() -> None:
    handler = _Raising()
    root = logging.getLogger("stagelink")
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        one = YuanrongTransferEngineConnector({**_HERE, "role": "dual"})
        ok, _, metadata = one.put("0", "1", "k", {"a": 1})
        found = one.get("0", "1", "k", metadata)
        assert ok and found is not None and found[0] == {"a": 1}
        assert one.get("0", "1", "k", metadata) is None  # An error, which has a line.
        assert one.put("0", "1", "k", object()) == (False, 0, None)
        one.close()
    finally:
        root.removeHandler(handler)
        root.setLevel(logging.NOTSET)


def test_a_payload_that_fails_in_its_own_way_is_a_put_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a nested tensor has no sizes")

    monkeypatch.setattr("stagelink.serializer.plan", fail)
    with YuanrongTransferEngineConnector({**_HERE, "role": "sender"}) as one:
        assert one.put("0", "1", "k", {"a": 1}) == (False, 0, None)
        assert one.health()["errors"] == 1
    with YuanrongConnector({"namespace": "pull-logs", "capacity": "1MiB"}) as other:
        assert other.put("0", "1", "k", {"a": 1}) == (False, 0, None)
        assert other.health()["failed_puts"] == 1


def test_a_connector_that_nobody_closed_ends_silently_with_the_process() -> None:
    program = (
        "from stagelink.pull import YuanrongTransferEngineConnector as Connector\n"
        f"one = Connector({ {**_HERE, 'role': 'dual'}!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_calls_that_fail_one_by_one_leave_twenty_lines_and_later_their_count(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = log_limit.limited("stagelink.test_pull_logs")
    assert log_limit.limited(logger.name).logger is logger.logger
    assert len(logger.logger.filters) == 1
    now = 100.0
    monkeypatch.setattr(log_limit.time, "monotonic", lambda: now)
    with caplog.at_level(logging.INFO, logger.name):
        for at in range(50):
            logger.error("no %s", at)
            logger.info("yes %s", at)
        logger.error("another form: %s", 1)
        assert [line for line in caplog.messages if "no" in line] == [
            *(f"no {at}" for at in range(20)),
            "another form: 1",
        ]
        assert sum("yes" in line for line in caplog.messages) == 50
        now += 10.0
        logger.error("no %s", 50)
        logger.error("no %s", 51)
    assert caplog.messages[-2:] == ["no 50 (30 further lines like this were left out)", "no 51"]
