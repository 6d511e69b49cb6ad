"""TransferStatus and wait_all of the compat module, without any transfer."""

import signal
import threading
import time

import pytest

from stagelink.compat.mori.io import IOEngine, StatusCode, TransferStatus, set_log_level


def pending() -> TransferStatus:
    status = TransferStatus()
    status.Update(StatusCode.IN_PROGRESS, "")
    return status


def test_a_new_status_is_init_and_nobody_waits_for_it() -> None:
    status = TransferStatus()
    assert status.Init() and status.Code() is StatusCode.INIT and status.Message() == ""
    assert not (status.InProgress() or status.Succeeded() or status.Failed())
    assert status.WaitFor() is StatusCode.INIT
    status.Wait()


def test_the_first_error_stays_unless_it_is_set_by_hand() -> None:
    status = pending()
    status.Update(StatusCode.ERR_NOT_FOUND, "first")
    status.Update(StatusCode.SUCCESS, "second")
    assert status.Failed() and status.Code() is StatusCode.ERR_NOT_FOUND
    assert status.Message() == "first"
    status.SetCode(StatusCode.SUCCESS)
    status.SetMessage("well")
    assert status.Succeeded() and status.Message() == "well"
    assert "SUCCESS" in repr(status)


@pytest.mark.parametrize("wait", ["one", "all"])
def test_a_wait_lets_other_threads_run_and_is_woken(wait: str) -> None:
    status = pending()
    answer: list[StatusCode] = []

    def waiter() -> None:
        answer.append(status.WaitFor() if wait == "one" else IOEngine.wait_all([status]))

    thread = threading.Thread(target=waiter)
    thread.start()
    status.Update(StatusCode.SUCCESS, "")  # Needs the interpreter lock, which the wait gave up.
    thread.join(20)
    assert answer == [StatusCode.SUCCESS]


def test_a_timeout_leaves_the_status_in_progress() -> None:
    status = pending()
    assert status.WaitFor(0) is StatusCode.IN_PROGRESS
    begun = time.monotonic()
    assert status.WaitFor(timeout_ms=30) is StatusCode.IN_PROGRESS
    assert time.monotonic() - begun >= 0.03
    assert status.Cancel() is StatusCode.IN_PROGRESS  # There is no transfer behind it.


def test_wait_all_prefers_a_failure_to_what_is_in_progress() -> None:
    failed = TransferStatus()
    failed.Update(StatusCode.ERR_RDMA_OP, "cut")
    done = TransferStatus()
    done.SetCode(StatusCode.SUCCESS)
    assert IOEngine.wait_all([]) is StatusCode.SUCCESS
    assert IOEngine.wait_all([done, done]) is StatusCode.SUCCESS
    assert IOEngine.wait_all([pending(), failed], 0) is StatusCode.ERR_RDMA_OP
    assert IOEngine.wait_all([pending(), failed]) is StatusCode.ERR_RDMA_OP
    assert IOEngine.wait_all([done, pending()], timeout_ms=1) is StatusCode.IN_PROGRESS


def test_ctrl_c_ends_a_wait() -> None:
    status = pending()
    timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        status.Wait()
    timer.join()


def test_codes_are_moris_numbers() -> None:
    assert [int(code) for code in StatusCode] == [0, 1, 2, 11, 12, 13, 14, 15]


def test_log_levels_have_moris_names() -> None:
    for level in ("trace", "debug", "info", "error", "critical", "off", "warning"):
        set_log_level(level)
    with pytest.raises(ValueError, match="loud"):
        set_log_level("loud")
