"""The two halves of a request: what the prefill server and the decode server are sent."""

import uuid
from dataclasses import dataclass, replace
from typing import Any

from ..servers.messages import ZmqAddress, request_id
from ..servers.table import Lease, Server

# The first token of prefill is thrown away: nothing about its choice or its look is wanted, and
# nothing may end the request before it, or the blocks are not kept for decode.
_NOT_FOR_PREFILL = (
    "stream_options",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "best_of",
)


@dataclass(frozen=True)
class Route:
    """One prefill server and one decode server for one transfer."""

    prefill: Server
    prefill_rank: int | None
    prefill_address: ZmqAddress | None
    decode: Server
    decode_address: ZmqAddress | None
    transfer_id: str
    unique: str

    @classmethod
    def of(cls, prefill: Lease, decode: Lease, mode: str) -> "Route":
        return cls(
            prefill.server,
            prefill.rank,
            prefill.server.connector(mode),
            decode.server,
            decode.server.connector(mode),
            f"tx-{uuid.uuid4()}",
            uuid.uuid4().hex,
        )

    def with_decode(self, decode: Lease, mode: str) -> "Route":
        """The same prefill and transfer with another decode server."""
        return replace(
            self, decode=decode.server, decode_address=decode.server.connector(mode),
            unique=uuid.uuid4().hex,
        )  # fmt: skip

    def request_id(self) -> str:
        """With both addresses in it, as the connectors look for them, if both are known."""
        if self.prefill_address is None or self.decode_address is None:
            return self.unique
        return request_id(self.prefill_address, self.decode_address, self.unique)


def _peer_params(server: Server, address: ZmqAddress | None) -> dict[str, Any]:
    """What one side is told about the other."""
    params: dict[str, Any] = {"remote_dp_size": server.dp_size}
    if server.tp_size is not None:  # Absent is unknown, which connectors take to be their own.
        params["remote_tp_size"] = server.tp_size
    if address is not None:
        params["remote_host"] = address.host
        params["remote_handshake_port"] = address.handshake_port
        params["remote_notify_port"] = address.notify_port
    return params


def prefill_body(body: dict[str, Any], route: Route) -> dict[str, Any]:
    sent = {key: value for key, value in body.items() if key not in _NOT_FOR_PREFILL}
    sent.update(stream=False, max_tokens=1, ignore_eos=True)
    for key in ("n", "max_completion_tokens"):
        if sent.get(key) is not None:
            sent[key] = 1
    sent["kv_transfer_params"] = {
        **_peer_params(route.decode, route.decode_address),
        "transfer_id": route.transfer_id,
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
    }
    return sent


def decode_body(
    body: dict[str, Any], route: Route, returned: dict[str, Any] | None
) -> dict[str, Any]:
    """`returned` are the kv_transfer_params of the prefill server's answer, in read mode."""
    params = {
        **_peer_params(route.prefill, route.prefill_address),
        "transfer_id": route.transfer_id,
        "remote_dp_rank": route.prefill_rank or 0,
        **(returned or {}),
        "do_remote_prefill": True,
        "do_remote_decode": False,
    }
    return {**body, "kv_transfer_params": params}


def headers(route: Route, rank: int | None, authorization: str | None) -> dict[str, str]:
    sent = {"X-Request-Id": route.request_id(), "Accept-Encoding": "identity"}
    if rank is not None:
        sent["X-data-parallel-rank"] = str(rank)
    if authorization is not None:
        sent["Authorization"] = authorization
    return sent
