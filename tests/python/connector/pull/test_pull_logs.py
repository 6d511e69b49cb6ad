"""What a flood of failures leaves in the log."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

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


def test_calls_that_fail_one_by_one_leave_twenty_lines_and_later_their_count(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = log_limit.limited(logging.getLogger("stagelink.test_pull_logs"))
    assert log_limit.limited(logger) is logger
    assert len(logger.filters) == 1
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
