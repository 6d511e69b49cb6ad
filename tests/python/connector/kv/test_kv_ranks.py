"""Four senders and four receivers, each a process, of every pair of sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from child import Child

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)

Start = Callable[..., Child]

CHILD = """
import sys
sys.path.insert(0, folder)
import kv_ranks
lines = kv_ranks.Lines()
"""

CASES = [
    {"from_tp": 4, "to_tp": 4, "heads": 8},
    {"from_tp": 4, "to_tp": 2, "heads": 8},
    {"from_tp": 2, "to_tp": 4, "heads": 8},
    {"from_tp": 1, "to_tp": 4, "heads": 8},
    {"from_tp": 4, "to_tp": 1, "heads": 8},
    {"from_tp": 4, "to_tp": 2, "heads": 1, "mla": True},
    {"from_tp": 2, "to_tp": 4, "heads": 1, "mla": True},
    {"from_tp": 4, "to_tp": 4, "heads": 2},  # Two copies of each head on both sides.
    {"from_tp": 4, "to_tp": 1, "heads": 2},
    {"from_tp": 1, "to_tp": 4, "heads": 2},
    {"from_tp": 1, "to_tp": 1, "heads": 2},
]


class Ranks:
    """The processes of both stages, with a manager in as many of them as a case has ranks."""

    def __init__(self, start: Start) -> None:
        self.senders = [start() for _ in range(4)]
        self.receivers = [start() for _ in range(4)]
        for peer in self.senders + self.receivers:
            peer.start(CHILD, folder=HERE)
        for peer in self.senders + self.receivers:
            peer.finish()

    def open(self, case: dict[str, Any]) -> dict[str, Any]:
        """Makes the managers; where the senders are."""
        code = "one = kv_ranks.manager(role, rank, case)\none.connector.get_connection_info()"
        self._all("sender", case, code)
        self._all("receiver", case, code, collect=False)
        places = [peer.finish() for peer in self.senders[: case["from_tp"]]]
        for peer in self.receivers[: case["to_tp"]]:
            peer.finish()
        ranks = [{"host": place["host"], "zmq_port": place["zmq_port"]} for place in places]
        return {"ranks": ranks}

    def close(self, case: dict[str, Any]) -> None:
        peers = self.senders[: case["from_tp"]] + self.receivers[: case["to_tp"]]
        for peer in peers:
            peer.start("one.close()")
        for peer in peers:
            peer.finish()

    def receive(self, case: dict[str, Any], senders: Any, request: str, wait: float) -> None:
        code = "kv_ranks.receive(one, request, rank, case, senders, wait)"
        self._all(
            "receiver", case, code, collect=False, request=request, senders=senders, wait=wait
        )

    def send(self, case: dict[str, Any], request: str, ranks: list[int]) -> list[Any]:
        code = "kv_ranks.send(one, request, rank, case)"
        for rank in ranks:
            self.senders[rank].start(code, rank=rank, case=case, request=request)
        return [self.senders[rank].finish() for rank in ranks]

    def received(self, case: dict[str, Any]) -> list[Any]:
        return [peer.finish() for peer in self.receivers[: case["to_tp"]]]

    def _all(self, role: str, case: dict[str, Any], code: str, **names: Any) -> None:
        names.pop("collect", None)
        peers, size = (self.senders, "from_tp") if role == "sender" else (self.receivers, "to_tp")
        for rank, peer in enumerate(peers[: case[size]]):
            peer.start(code, role=role, rank=rank, case=case, **names)


def _payloads(case: dict[str, Any]) -> int:
    """Of one request, however many ranks have copies."""
    return max(case["to_tp"], min(case["from_tp"], case["heads"])) if not case.get("mla") else (
        case["to_tp"]
    )  # fmt: skip


def test_every_receiver_has_each_of_its_elements(child: Start) -> None:
    # All of it in one test: the eight processes take longer to start than everything else.
    ranks = Ranks(child)
    for case in ({**case, "protocol": of} for of in ("shm", "tcp") for case in CASES):
        senders = ranks.open(case)
        ranks.receive(case, senders, "r1", 20)  # They wait before anything is there.
        sent = ranks.send(case, "r1", list(range(case["from_tp"])))
        assert [(done, failed) for done, failed, _, _ in sent] == [(["r1"], {})] * case["from_tp"]
        assert sum(payloads for _, _, payloads, _ in sent) == _payloads(case), case
        for rank, (wrong, _, _) in enumerate(ranks.received(case)):
            assert wrong == "", f"{case}, rank {rank}: {wrong}"
        ranks.close(case)


def test_a_killed_rank_is_named_and_counted_and_the_others_are_fine(child: Start) -> None:
    ranks = Ranks(child)
    case = {"from_tp": 4, "to_tp": 2, "heads": 8, "protocol": "shm"}
    senders = ranks.open(case)
    ranks.senders[3].kill()
    ranks.receive(case, senders, "r1", 3)
    ranks.send(case, "r1", [0, 1, 2])
    fine, lacking = ranks.received(case)
    assert fine[0] == "" and fine[1] == 2
    assert lacking[:2] == ("nothing", 1)
    assert 2.9 < lacking[2] < 4
    lines = ranks.receivers[1].run("lines.lines")
    place = "127.0.0.1:{}".format(senders["ranks"][3]["zmq_port"])
    assert any(
        f"Timeout waiting for KV cache for request r1 after 3s: nothing from rank 3 at {place}"
        in line
        for line in lines
    )
    # What came of rank 2 is not lost: with a rank 3 that lives the request is whole.
    successor = child()
    successor.run(CHILD, folder=HERE)
    code = "one = kv_ranks.manager('sender', 3, case)\none.connector.get_connection_info()"
    at = successor.run(code, case=case)
    senders["ranks"][3] = {"host": at["host"], "zmq_port": at["zmq_port"]}
    successor.run("kv_ranks.send(one, 'r1', 3, case)", case=case)
    code = "kv_ranks.receive(one, 'r1', 1, case, senders, 20)"
    assert ranks.receivers[1].run(code, case=case, senders=senders)[0] == ""
    successor.run("one.close()")
    for peer in (*ranks.senders[:3], *ranks.receivers[:2]):
        peer.run("one.close()")


def test_the_lines_that_users_look_for_are_there(child: Start) -> None:
    case = {"from_tp": 1, "to_tp": 1, "heads": 2, "protocol": "shm"}
    sender, receiver = child(), child()
    for role, peer in (("sender", sender), ("receiver", receiver)):
        peer.run(CHILD, folder=HERE)
        peer.run("one = kv_ranks.manager(role, 0, case)", role=role, case=case)
    at = sender.run("one.connector.get_connection_info()")
    sender.run("kv_ranks.send(one, 'r1', 0, case)", case=case)
    code = """
from types import SimpleNamespace
request = SimpleNamespace(request_id="r1", kv_sender_info={0: senders}, sampling_params=
    SimpleNamespace(cfg_kv_request_ids={"cfg_text": "r1__cfg"}))
one.receive_multi_kv_cache(request, lambda *a: {"cfg_text_past_key_values": a[0]})
lines.lines
"""
    senders = {"host": at["host"], "zmq_port": at["zmq_port"]}
    heard = receiver.run(code, senders=senders)
    sent = sender.run("lines.lines")
    for line in ("KV cache serialized for r1 in ", "KV transfer OK: r1, ", " across 1 key(s), "):
        assert any(line in one for one in sent), line
    for line in (
        "[YR GET] omni_0_to_1_kv_cache_r1@0_1: query=",
        "(fast_path, zero-copy)",
        "Wait for KV cache for request r1 from stage 0 to 1 via 1 key(s)...",
        "Successfully received KV cache for r1, ",
        "bytes across 1 key(s), wait=",
        "Applied CFG KV caches: ['cfg_text_past_key_values']",
        "[KV Reuse] r1: 4 layers of 18 tokens",
    ):
        assert any(line in one for one in heard), line
    for peer in (sender, receiver):
        peer.run("one.close()")
