"""The manager by itself, over connectors that do as the test says."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import stagelink as sl
from stagelink.kv_transfer import KvTransferConfig, KvTransferManager
from stagelink.omni_config import load_omni_transfer_config

LAYER = np.arange(2 * 8 * 4 * 2 * 3, dtype=np.int16).reshape(2, 8, 4, 2, 3)
REQUEST = {"block_ids": [3, 5], "seq_len": 7}


class Shelf:
    """A connector of one process, whose calls can be held up or refused."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] = {}
        self.open = threading.Event()
        self.open.set()
        self.refuse: Callable[[str], bool] = lambda key: False
        self.puts: list[str] = []
        self.running = 0
        self.most = 0
        self.offers: int | None = None
        self.lock = threading.Lock()

    def put(self, from_stage: str, to_stage: str, put_key: str, data: Any) -> Any:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        assert self.open.wait(20)
        with self.lock:
            self.running -= 1
            self.puts.append(put_key)
            if self.refuse(put_key):
                return False, 0, None
            self.stored[put_key] = data
        return True, len(data), None

    def get(self, from_stage: str, to_stage: str, get_key: str, metadata: Any = None) -> Any:
        with self.lock:
            data = self.stored.pop(get_key, None)
        return None if data is None else (data, len(data))

    def health(self) -> dict[str, Any]:
        return {} if self.offers is None else {"offers": self.offers}

    def close(self) -> None:
        pass


def config(role: str, sizes: tuple[int, int] = (1, 1), rank: int = 0, **more: Any) -> Any:
    return {
        "need_send_cache": role == "sender",
        "need_recv_cache": role == "receiver",
        "omni_from_stage": 0,
        "omni_to_stage": 1,
        "stage_id": 0 if role == "sender" else 1,
        "rank_mapping": {"from_tp": sizes[0], "to_tp": sizes[1]},
        "tp_rank": rank,
        **more,
    }


def soon(condition: Callable[[], Any]) -> Any:
    until = time.monotonic() + 20
    while not (found := condition()) and time.monotonic() < until:
        time.sleep(0.001)
    return found


def hand_over(one: KvTransferManager, *requests: str) -> list[str]:
    asked = {request: dict(REQUEST) for request in requests}
    return one.handle_finished_requests_kv_transfer(asked, [LAYER], 4, "int16")


def test_blocks_are_given_back_when_they_have_been_put_and_not_before() -> None:
    shelf = Shelf()
    shelf.open.clear()
    with KvTransferManager(config("sender"), connector=shelf) as one:
        assert hand_over(one, "a") == []
        assert soon(lambda: shelf.running == 1)
        assert hand_over(one) == [] and one.pending_sends == 1
        shelf.open.set()
        assert soon(lambda: hand_over(one)) == ["a"]
        assert one.pending_sends == 0 and one.take_failed_sends() == {}
    with KvTransferManager(config("receiver"), connector=shelf) as other:
        data, size = other.receive_kv_cache_for_request("a")
        assert data is not None and size > 0
        wanted = LAYER[:, [3, 5]].reshape(2, 8, 2, 3)[:, :7]
        assert (np.asarray(data["layer_blocks"]["key_cache"][0]) == wanted[0]).all()
        assert data["metadata"]["seq_len"] == 7 and data["request_id"] == "a"


def test_a_declared_type_that_the_tensors_do_not_have_is_refused() -> None:
    with KvTransferManager(config("sender"), connector=Shelf()) as one:
        for said in ("float16", "torch.bfloat16"):
            with pytest.raises(sl.InvalidArgument, match="layer 0 is int16"):
                one.handle_finished_requests_kv_transfer({"a": REQUEST}, [LAYER], 4, said)
        one.handle_finished_requests_kv_transfer({"a": REQUEST}, [LAYER], 4, "auto")
        assert soon(lambda: hand_over(one)) == ["a"]


def test_what_was_not_put_is_reported_key_by_key_and_never_acknowledged() -> None:
    shelf = Shelf()
    shelf.refuse = lambda key: key.endswith("_1")
    made = config("sender", (1, 2), async_send=False)
    with KvTransferManager(made, connector=shelf) as one:
        assert hand_over(one, "a") == []
        assert one.take_failed_sends() == {"a": {"a_0_0_0_1": "refused"}}
        assert shelf.puts == ["a_0_0_0_0"] + ["a_0_0_0_1"] * 3  # Tried three times.
        assert one.counters.get("sent", "refused") == 1 and one.counters.get("sent", "ok") == 1
        assert one.counters.failures() == 1
        text = one.metrics_text()
        assert 'stagelink_kv_requests_sent_total{rank="0",outcome="failed"} 1' in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"block_ids": [3, 9]}, "out_of_bounds"), ({"seq_len": 9}, "out_of_bounds"),
     ({"block_ids": []}, "out_of_bounds"), ({"seq_len": 0}, "out_of_bounds"),
     ({"custom_metadata": {"x": {1, 2}}}, "invalid_argument")],
)  # fmt: skip
def test_a_request_that_cannot_be_sent_fails_with_its_reason(change: Any, reason: str) -> None:
    shelf = Shelf()
    with KvTransferManager(config("sender", async_send=False), connector=shelf) as one:
        asked = {"a": {**REQUEST, **change}}
        assert one.handle_finished_requests_kv_transfer(asked, [LAYER], 4, "int16") == []
        assert one.take_failed_sends() == {"a": {"omni_0_to_1_kv_cache_a": reason}}
        assert shelf.puts == []


def test_the_queue_and_the_puts_that_run_are_bounded() -> None:
    shelf = Shelf()
    shelf.open.clear()
    made = config("sender", send_queue=2, send_threads=4, max_inflight=1)
    with KvTransferManager(made, connector=shelf) as one:
        hand_over(one, "a")
        assert soon(lambda: shelf.running == 1)
        assert hand_over(one, "b", "c", "d") == []
        assert one.take_failed_sends() == {"d": {"omni_0_to_1_kv_cache_d": "busy"}}
        shelf.open.set()
        done: list[str] = []
        assert soon(lambda: done.extend(hand_over(one)) or len(done) == 3)
        assert done == ["a", "b", "c"] and shelf.most == 1


def test_a_full_window_holds_puts_back_until_something_is_consumed() -> None:
    shelf = Shelf()
    shelf.offers = 2
    with KvTransferManager(config("sender", window_size=2), connector=shelf) as one:
        assert hand_over(one, "a") == []
        assert soon(lambda: one.pending_sends == 1) and shelf.puts == []
        shelf.offers = 1
        assert soon(lambda: hand_over(one)) == ["a"]
    made = config("sender", window_size=2, send_timeout=0.05, async_send=False)
    shelf.offers = 2
    with KvTransferManager(made, connector=shelf) as one:
        hand_over(one, "b")
        assert soon(one.take_failed_sends) == {"b": {"omni_0_to_1_kv_cache_b": "timed_out"}}


def test_close_fails_what_waits_and_ends_a_receive() -> None:
    shelf = Shelf()
    shelf.open.clear()
    one = KvTransferManager(config("sender", send_threads=1), connector=shelf)
    hand_over(one, "a", "b")
    assert soon(lambda: shelf.running == 1)
    closing = threading.Thread(target=one.close)
    closing.start()
    assert soon(lambda: one.take_failed_sends()) == {"b": {"omni_0_to_1_kv_cache_b": "closed"}}
    shelf.open.set()
    closing.join(20)
    assert hand_over(one, "c") == ["a"]
    assert one.take_failed_sends() == {"c": {"omni_0_to_1_kv_cache_c": "closed"}}

    other = KvTransferManager(config("receiver", recv_timeout=60), connector=shelf)
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(other.receive_kv_cache_for_request("x")))
    waiting.start()
    assert soon(lambda: any(t.name.startswith("kv-get") for t in threading.enumerate()))
    other.close()
    waiting.join(20)
    assert got == [(None, 0)]


class Slow(Shelf):
    """A connector whose get comes back when it likes."""

    def get(self, from_stage: str, to_stage: str, get_key: str, metadata: Any = None) -> Any:
        assert self.open.wait(20)
        return super().get(from_stage, to_stage, get_key, metadata)


def test_a_get_that_blocks_moves_no_deadline_and_what_it_brings_is_kept() -> None:
    shelf = Slow()
    with KvTransferManager(config("sender", async_send=False), connector=shelf) as one:
        assert hand_over(one, "a") == ["a"]
    shelf.open.clear()
    with KvTransferManager(config("receiver"), connector=shelf) as other:
        begun = time.monotonic()
        assert other.receive_kv_cache_for_request("a", timeout=0.2) == (None, 0)
        assert 0.15 < time.monotonic() - begun < 1  # Within 50 ms on a machine that has time.
        assert other.counters.get("received", "timed_out") == 1
        shelf.open.set()
        data, _ = other.receive_kv_cache_for_request("a", timeout=20)
        assert data is not None and shelf.stored == {}


def test_a_prefetched_cache_is_there_until_somebody_takes_it() -> None:
    shelf = Shelf()
    info = {"host": "h", "zmq_port": 1}
    made = config("receiver", enable_kv_async_prefetch=True, max_prefetch=2)
    with (
        KvTransferManager(config("sender", async_send=False), connector=shelf) as one,
        KvTransferManager(made, connector=shelf) as other,
    ):
        hand_over(one, "a", "b", "c")
        for request in ("a", "b", "c"):  # The third is one too many.
            other.start_prefetch({"request_id": request, "kv_sender_info": info})
        assert other.wait_prefetch(20)
        assert list(shelf.stored) == ["omni_0_to_1_kv_cache_c"]
        assert other.consume_prefetched_kv(SimpleNamespace(request_id="b"))[0] is not None
        assert other.consume_prefetched_kv(SimpleNamespace(request_id="b")) == (None, 0)
        other.start_prefetch({"request_id": "c", "kv_sender_info": info})
        for request in ("c", "a"):
            assert other.receive_kv_cache_for_request(request)[0] is not None


def test_ranks_that_do_not_all_receive_go_without_together() -> None:
    shelf = Shelf()
    heard: list[bool] = []
    made = config("receiver", recv_timeout=5)
    with (
        KvTransferManager(config("sender", async_send=False), connector=shelf) as one,
        KvTransferManager(made, connector=shelf, agree=lambda got: heard.append(got)) as other,  # type: ignore[func-returns-value]
    ):
        hand_over(one, "a")
        parameters = SimpleNamespace(cfg_text_past_key_values=1)
        request = SimpleNamespace(request_id="a", sampling_params=parameters)
        assert other.receive_multi_kv_cache(request) is False
        assert heard == [True] and request.past_key_values is None
        assert parameters.cfg_text_past_key_values is None


@pytest.mark.parametrize(
    ("change", "text"),
    [({"tp_rank": -1, "rank_mapping": {"from_tp": 2, "to_tp": 2}}, "set `tp_rank`"),
     ({"tp_rank": 2, "rank_mapping": {"from_tp": 2, "to_tp": 2}}, "tp_rank is 2"),
     ({"rank_mapping": {"from_tp": 2}}, "needs both from_tp and to_tp"),
     ({"rank_mapping": {"from_tp": 3, "to_tp": 2}}, "must be divisible"),
     ({"recv_timout": 3}, "did you mean `recv_timeout`"), ({"recv_timeout": 0}, "more than 0"),
     ({"window_size": 0}, "window_size = 0"), ({"send_queue": 0}, "send_queue = 0"),
     ({"omni_to_stage": None}, "omni_to_stage"), ({"connector_config": {}}, "no `type`")],
)  # fmt: skip
def test_what_is_wrong_with_the_configuration_is_named(
    change: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    connector = None if "connector_config" in change else Shelf()
    with pytest.raises(sl.InvalidArgument, match=text):
        KvTransferManager({**config("sender"), **change}, connector=connector)


def test_a_rank_may_be_stated_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    made = {**config("sender", (2, 2)), "tp_rank": -1}
    with KvTransferManager(made, connector=Shelf()) as one:
        assert one.local_rank == 1
        assert one.map_text().splitlines() == [
            "one to one", "rank 0 <- rank 0 (all of it)", "rank 1 <- rank 1 (all of it)",
        ]  # fmt: skip


def test_where_senders_are_is_found_or_refused_by_name(caplog: Any) -> None:
    caplog.set_level("INFO", "stagelink.kv")
    with KvTransferManager(config("receiver", (4, 2), 1), connector=Shelf()) as one:
        one.update_sender_info({"0": {"host": "h", "zmq_port": 50151}})
        line = "Sender info updated: host=h, base_port=50151, adjusted_port=50167 (local_rank=1)"
        assert line in caplog.text
        one.update_sender_info({"ranks": [{"host": "h", "zmq_port": 1}]})
        assert "kv_sender_info names 1 ranks, the sender has 4" in caplog.text
        one.update_sender_info({"3": {"host": "h"}, "4": {"host": "h"}})
        assert "Invalid sender_info format" in caplog.text
        assert one.receive_kv_cache_for_request("a", sender_info={}) == (None, 0)
        assert "unresolved per-call sender_info" in caplog.text
        ranks = [[f"h{at}", 100 + at] for at in range(4)]
        places = {"ranks": ranks}
        assert one.receive_kv_cache_for_request("a", sender_info=places, timeout=0.01)[1] == 0
        assert "rank 2 at h2:102 (a_0_0_2_1), rank 3 at h3:103 (a_0_0_3_1)" in caplog.text


def test_a_pipelines_file_says_what_a_manager_needs() -> None:
    te = {"name": "YuanrongTransferEngineConnector", "extra": {"host": "127.0.0.1"}}
    sender = {
        "stage_id": 0,
        "tensor_parallel_size": 4,
        "output_connectors": {"to_stage_1": "te"},
        "omni_kv_config": {"need_send_cache": True, "kv_heads": 8},
    }
    pipeline = load_omni_transfer_config(
        config_dict={
            "connectors": {"te": te},
            "stages": [sender, {"stage_id": 1, "tensor_parallel_size": 2}],
            "edges": [{"from": 0, "to": 1, "window_size": 3, "max_inflight": 2}],
        }
    )
    assert pipeline is not None
    sends = KvTransferConfig.of_pipeline(pipeline, 0, 3)
    assert (sends.from_tp, sends.to_tp, sends.kv_heads, sends.tp_rank) == (4, 2, 8, 3)
    assert (sends.window_size, sends.max_inflight, sends.need_send_cache) == (3, 2, True)
    receives = KvTransferConfig.of_pipeline(pipeline, 1, 1, recv_timeout=5)
    assert receives.need_recv_cache and receives.recv_timeout == 5
    assert receives.receive_stages() == ("0", "1")
    with pytest.raises(sl.InvalidArgument, match="stage 7 neither sends nor receives"):
        KvTransferConfig.of_pipeline(pipeline, 7)


def test_a_payload_that_is_not_this_requests_is_refused_and_counted(caplog: Any) -> None:
    shelf = Shelf()
    with (
        KvTransferManager(config("sender", async_send=False), connector=shelf) as one,
        KvTransferManager(config("receiver"), connector=shelf) as other,
    ):
        hand_over(one, "a")
        shelf.stored["omni_0_to_1_kv_cache_b"] = shelf.stored.pop("omni_0_to_1_kv_cache_a")
        assert other.receive_kv_cache_for_request("b") == (None, 0)
        assert "of request a, where that of b was asked for" in caplog.text
        assert other.counters.get("received", "frame") == 1


def test_the_example_of_the_page_runs() -> None:
    page = Path(__file__).parents[4] / "docs" / "connectors" / "kv-transfer.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(page), "exec"), {})
