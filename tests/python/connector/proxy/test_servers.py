"""The table of servers, with a clock that tests turn."""

import pytest

from stagelink.proxy.servers.table import MAX_REFUSED, NoServer, Role, Server, ServerPool


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def server(url: str, role: Role = Role.DECODE, **changes: object) -> Server:
    facts: dict[str, object] = {
        "zmq_address": None, "tp_size": 1, "dp_size": 1, "mode": "read", "fixed": True,
    }  # fmt: skip
    return Server(role, url, **(facts | changes))  # type: ignore[arg-type]


def pool(*servers: Server, mode: str = "auto", most: int = 8) -> tuple[ServerPool, Clock]:
    clock = Clock()
    made = ServerPool(mode, most, 10.0, clock)
    for one in servers:
        made.add(one)
    return made, clock


def test_the_least_in_flight_is_chosen_and_equals_take_turns() -> None:
    table, _ = pool(server("a"), server("b"), server("c"))
    leases = [table.take(Role.DECODE) for _ in range(6)]
    assert [lease.server.url for lease in leases] == ["a", "b", "c", "a", "b", "c"]
    leases[1].close()
    leases[4].close()
    assert [table.take(Role.DECODE).server.url for _ in range(3)] == ["b", "b", "a"]


def test_a_lease_counts_once_however_often_it_is_closed() -> None:
    table, _ = pool(server("a"))
    lease = table.take(Role.DECODE)
    other = table.take(Role.DECODE)
    lease.close()
    lease.close()
    assert other.server.in_flight == 1


def test_a_server_that_failed_is_left_alone_then_tried_by_one_request() -> None:
    table, clock = pool(server("a"))
    lease = table.take(Role.DECODE)
    assert lease.failed("refused")
    lease.close()
    with pytest.raises(NoServer, match=r"none of 1 decode servers can be reached \(a: refused\)"):
        table.take(Role.DECODE)
    clock.now += 0.999
    with pytest.raises(NoServer):
        table.take(Role.DECODE)
    clock.now += 0.001
    trial = table.take(Role.DECODE)
    with pytest.raises(NoServer):
        table.take(Role.DECODE)
    assert not trial.failed("refused")
    trial.close()
    clock.now += 1.999
    with pytest.raises(NoServer):
        table.take(Role.DECODE)
    clock.now += 0.001
    trial = table.take(Role.DECODE)
    trial.answered()
    trial.close()
    table.take(Role.DECODE)
    table.take(Role.DECODE)


def test_the_back_off_is_bounded() -> None:
    table, clock = pool(server("a"))
    for _ in range(40):
        lease = table.take(Role.DECODE)
        lease.failed("refused")
        lease.close()
        clock.now += 30.0


def test_requests_that_fail_together_are_one_failure() -> None:
    table, clock = pool(server("a"))
    leases = [table.take(Role.DECODE) for _ in range(20)]
    assert [lease.failed("gone") for lease in leases] == [True] + [False] * 19
    for lease in leases:
        lease.close()
    clock.now += 1.0
    table.take(Role.DECODE)


def test_what_was_tried_is_avoided_if_there_is_another() -> None:
    table, _ = pool(server("a"), server("b"))
    assert table.take(Role.DECODE, {"a"}).server.url == "b"
    assert table.take(Role.DECODE, {"a"}).server.url == "b"
    assert table.take(Role.DECODE, {"a", "b"}).server.url == "a"


def test_silence_ends_an_announced_server_and_no_other() -> None:
    table, clock = pool(server("fixed"), server("heard", fixed=False, heard_at=1000.0))
    clock.now += 10.0
    assert table.expire() == []
    clock.now += 0.001
    assert [gone.url for gone in table.expire()] == ["heard"]
    assert [left.url for left in table] == ["fixed"]


def test_a_heartbeat_renews_and_a_hello_too() -> None:
    table, clock = pool(server("a", fixed=False, heard_at=1000.0))
    clock.now += 9.0
    assert not table.add(server("a", fixed=False, heard_at=clock.now))
    clock.now += 9.0
    assert table.renew("a")
    assert not table.renew("b")
    clock.now += 9.0
    assert table.expire() == []


def test_new_facts_of_a_known_server_are_taken() -> None:
    table, _ = pool(server("a", dp_size=2))
    lease = table.take(Role.DECODE)
    assert lease.rank == 0
    assert table.add(server("a", dp_size=1, tp_size=4))
    lease.close()
    assert (table.take(Role.DECODE).rank, next(iter(table)).tp_size) == (None, 4)


def test_the_table_is_bounded() -> None:
    table, _ = pool(*(server(str(i)) for i in range(8)))
    with pytest.raises(ValueError, match="the table is full"):
        table.add(server("9"))
    assert not table.add(server("7"))


def test_the_list_of_refused_ones_is_bounded_and_new_ones_are_told() -> None:
    table, _ = pool()
    assert table.refuse("x", "why")
    assert not table.refuse("x", "why")
    assert table.refuse("x", "another reason")
    assert table.status()["refused"][0]["count"] == 3
    for i in range(MAX_REFUSED + 5):
        table.refuse(str(i), "why")
    assert len(table.status()["refused"]) == MAX_REFUSED


def test_servers_of_the_other_mode_are_refused() -> None:
    table, _ = pool(server("a"))
    with pytest.raises(ValueError, match="transfers in write mode, the proxy is in read mode"):
        table.add(server("b", mode="write"))
    asked, _ = pool(mode="write")
    with pytest.raises(ValueError, match="in read mode, the proxy is in write mode"):
        asked.add(server("a"))


def test_servers_that_are_restarted_in_the_other_mode_change_it() -> None:
    heard = {"fixed": False, "heard_at": 1000.0}
    table, _ = pool(server("p", Role.PREFILL, **heard), server("d", **heard))
    for url, role in (("p", Role.PREFILL), ("d", Role.DECODE)):
        with pytest.raises(ValueError):
            table.add(server(url, role, mode="write", **heard))
    assert table.mode is None
    table.add(server("p", Role.PREFILL, mode="write", **heard))
    table.add(server("d", mode="write", **heard))
    assert table.mode == "write"


def test_ranks_of_a_server_are_chosen_like_servers() -> None:
    table, _ = pool(server("a", dp_size=3))
    leases = [table.take(Role.DECODE) for _ in range(4)]
    assert [lease.rank for lease in leases] == [0, 1, 2, 0]
    leases[1].close()
    assert table.take(Role.DECODE).rank == 1


def test_a_role_without_servers_says_what_to_do() -> None:
    table, _ = pool(server("a"))
    with pytest.raises(NoServer, match="no prefill server is known: start one .* --prefill"):
        table.take(Role.PREFILL)
