"""Hands the KV cache of requests from the ranks of one stage to those of the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _core
from ..connectors import create_connector
from ..errors import InvalidArgument
from ..omni_config import ConnectorSpec, resolve_connector_spec
from ..pull import arguments
from ..pull.contract import Closing
from ..pull.log_limit import quiet_logger
from .arrays import check_device, check_dtype
from .config import KvTransferConfig
from .counters import KvCounters
from .device import event_of
from .endpoints import SenderEndpoints, find_sender_info
from .prefetch import KvPrefetcher
from .receiver import KvReceiver
from .requests import RequestCaches
from .sender import KvSender, SendJob

__all__ = ["KvTransferManager"]

logger = quiet_logger("stagelink.kv")

_RANK_STRIDE = 16


class KvTransferManager(RequestCaches, Closing):
    """Sends the caches of finished requests and receives those of new ones, for one rank.

    The calls and the log lines are those of vLLM-Omni's manager. What differs: a send does not hold
    up the model, only requests whose every payload was put are acknowledged, each receiver is sent
    its own heads and no others, ranks with copies of a head send it once, and a receive ends at its
    deadline. docs/connectors/kv-transfer.md says more.

    All methods may be called from any thread, ``close`` too, which ends what waits.
    """

    def __init__(
        self,
        config: KvTransferConfig | Mapping[str, Any],
        *,
        connector: Any = None,
        agree: Callable[[bool], bool] | None = None,
    ) -> None:
        """Prove the map of ranks and make the connector, unless one is given.

        ``agree`` tells whether all ranks of this stage have received, from whether this one has;
        without it a rank goes by itself. Raises what is wrong with the configuration, by name.
        """
        if not isinstance(config, KvTransferConfig):
            config = KvTransferConfig.from_dict(config)
        self.config = config
        self.counters = KvCounters()
        self._agree = agree
        self._closed = threading.Event()
        self._senders = SenderEndpoints()
        self._sender: KvSender | None = None
        self._receiver: KvReceiver | None = None
        self._prefetcher: KvPrefetcher | None = None
        self._connector = connector
        self._owns_connector = connector is None
        self.rank_map = _core.KvRankMap(config.from_tp, config.to_tp, config.kv_heads, config.mla)
        sends, receives = config.need_send_cache, config.need_recv_cache
        self.local_rank = -1
        if not (sends or receives):
            return
        stated = config.stated_rank()
        size, side = (config.from_tp, "sender") if sends else (config.to_tp, "receiver")
        self.local_rank = _core.kv_stated_rank(stated, size, side)
        if self._connector is None:
            self._connector = self._make_connector()
        if sends:
            self._sender = KvSender(
                config, self._connector, self.rank_map, self.local_rank, self.counters
            )
            logger.info("Sender connector eagerly initialized")
        if receives:
            rank = _core.kv_stated_rank(stated, config.to_tp, "receiver")
            self._receiver = KvReceiver(config, self._connector, self.rank_map, rank, self.counters)
            if config.enable_kv_async_prefetch:
                self._prefetcher = KvPrefetcher(self._receive, config.max_prefetch)

    # Sending.

    def handle_finished_requests_kv_transfer(
        self,
        finished_reqs: Mapping[str, Mapping[str, Any]],
        kv_caches: Sequence[Any],
        block_size: int,
        cache_dtype: str,
        request_id_resolver: Callable[[str], str] | None = None,
    ) -> list[str]:
        """Hand finished requests over and return those whose payloads have all been put by now.

        ``finished_reqs`` has ``block_ids``, ``seq_len`` and perhaps ``custom_metadata`` for each
        id. Keep the blocks of a request until its id is returned here or by
        :meth:`take_failed_sends`; an id may come back from a later call, which may be an empty one.
        """
        sender = self._sender
        if sender is None:
            return list(finished_reqs)
        finished = arguments.mapping("finished_reqs", finished_reqs)
        if finished:
            check_dtype(arguments.sequence("kv_caches", kv_caches), str(cache_dtype))
            block_size = arguments.integer("block_size", block_size, 1, 2**31 - 1)
        event = event_of(kv_caches) if finished else None
        jobs = []
        for request_id, data in finished.items():
            transfer_id = request_id_resolver(request_id) if request_id_resolver else request_id
            job = SendJob(
                request_id=request_id,
                transfer_id=transfer_id,
                block_ids=[],
                seq_len=0,
                metadata={"block_size": block_size, "num_layers": len(kv_caches)},
                layers=kv_caches,
                block_size=block_size,
                deadline=time.monotonic() + self.config.send_timeout,
                written=event,
            )
            try:
                job.read(data, str(cache_dtype))
            except InvalidArgument as error:
                sender.refuse(job, error)
                continue
            if sender.submit(job):
                jobs.append(job)
        if not self.config.async_send:
            for job in jobs:
                job.done.wait(max(0.0, job.deadline - time.monotonic()))
        return sender.take_done()

    def take_failed_sends(self) -> dict[str, dict[str, str]]:
        """Requests that were not sent, since the last call: why, for each key that was not put.

        Their blocks are not read any more.
        """
        return {} if self._sender is None else self._sender.take_failed()

    def register_kv_caches(self, kv_caches: Sequence[Any], block_size: int) -> None:
        """Offer blocks of these caches where they lie, from now on, instead of copying them.

        Blocks are then read by those who receive them, after the request was returned as put: keep
        the blocks of every request until :meth:`take_reusable` returns it. Needs the connector that
        pulls and caches in memory of the host; else raises ``InvalidArgument``, and all stays as
        it was.
        """
        if self._sender is None:
            raise InvalidArgument("this stage sends no cache (need_send_cache)")
        arguments.sequence("kv_caches", kv_caches)
        block_size = arguments.integer("block_size", block_size, 1, 2**31 - 1)
        self._sender.register(kv_caches, block_size)

    def take_reusable(self) -> list[str]:
        """Requests whose blocks may be used again, since the last call: sent, failed or expired.

        With registered caches each request that was handed over comes here once, when whoever has
        claimed its blocks has read them, or by its time. Without them there is nothing to wait for,
        and this is empty.
        """
        return [] if self._sender is None else self._sender.take_reusable()

    @property
    def pending_sends(self) -> int:
        """Requests that were handed over and are not done: their blocks are still read."""
        return 0 if self._sender is None else self._sender.pending

    # Receiving.

    def update_sender_info(
        self, sender_info: Mapping[str, Any], sender_stage_id: str | int | None = None
    ) -> None:
        """Say where the senders are, for receives that are not told.

        ``{"host", "zmq_port"}`` of rank 0, whose other ranks are on the same host; or ``{"ranks":
        [{"host", "zmq_port"}, ...]}``; or either by stage.
        """
        if self._receiver is None:
            return
        try:
            self._senders = self._endpoints(sender_info, sender_stage_id)
        except InvalidArgument as error:
            logger.warning("Invalid sender_info format: %.200r (%s)", sender_info, error)
            return
        port = self._senders.zmq_port
        adjusted = None if port is None else port + self.local_rank * _RANK_STRIDE
        update = getattr(self._connector, "update_sender_info", None)
        if update is not None and port is not None:
            source = self.rank_map.gets(self.local_rank)[0][0]
            place = self._senders.metadata(source)
            if place is not None:
                update(place["source_host"], place["source_port"])
        logger.info(
            "Sender info updated: host=%s, base_port=%s, adjusted_port=%s (local_rank=%s)",
            self._senders.host, port, adjusted, self.local_rank,
        )  # fmt: skip

    def receive_kv_cache_for_request(
        self,
        request_id: str,
        target_device: Any = None,
        *,
        sender_info: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> tuple[dict[str, Any] | None, int]:
        """Return ``(cache, bytes)``, or ``(None, 0)`` after ``recv_timeout`` or a failure.

        The cache is ``{"request_id", "layer_blocks": {"key_cache", "value_cache"}, "block_ids",
        "metadata"}``; each tensor is this rank's, ``[tokens, heads, dim]``.
        """
        if self._receiver is None:
            logger.debug("Skip receiving KV cache for %s (need_recv_cache=False)", request_id)
            return None, 0
        arguments.text("request_id", request_id)
        check_device("target_device", target_device)
        if timeout is not None:
            arguments.seconds("timeout", timeout)
        if self._prefetcher is not None:
            fetched = self._prefetcher.take(request_id)
            if fetched is not None and fetched[0] is not None:
                return fetched
        return self._receive(request_id, target_device, sender_info, timeout)

    def start_prefetch(
        self, kv_prefetch_job: Mapping[str, Any] | None, target_device: Any = None
    ) -> None:
        """Begin to receive a request's cache. It is kept until somebody asks for it."""
        if self._prefetcher is None or not kv_prefetch_job:
            return
        arguments.mapping("kv_prefetch_job", kv_prefetch_job)
        request_id = kv_prefetch_job.get("request_id")
        info = kv_prefetch_job.get("kv_sender_info")
        if request_id and info:
            self._prefetcher.start(
                arguments.text("request_id", request_id),
                target_device,
                arguments.mapping("kv_sender_info", info),
            )

    def consume_prefetched_kv(self, req: Any) -> tuple[dict[str, Any] | None, int]:
        """Wait for the prefetched cache of a request; ``(None, 0)``: there is none."""
        request_id = getattr(req, "request_id", None)
        if self._prefetcher is None or not request_id:
            return None, 0
        return self._prefetcher.take(request_id) or (None, 0)

    def wait_prefetch(self, timeout: float | None = None) -> bool:
        """Wait until nothing is being prefetched; False: something still is."""
        if timeout is not None:
            timeout = arguments.seconds("timeout", timeout)
        return self._prefetcher is None or self._prefetcher.wait(timeout)

    def shutdown_prefetch(self) -> None:
        """End prefetching. What has been fetched can be consumed."""
        if self._prefetcher is not None:
            self._prefetcher.close()

    # State.

    @property
    def connector(self) -> Any:
        """The connector that payloads pass through; None if this stage does neither."""
        return self._connector

    def map_text(self) -> str:
        """Return who sends what to whom, as ``stagelink config check`` prints it."""
        return "\n".join([self.rank_map.fan, *self.rank_map.lines])

    def metrics_text(self) -> str:
        """Counters as Prometheus text."""
        return self.counters.text(f'rank="{self.local_rank}"')

    def close(self) -> None:
        """End what waits; fail what was not sent. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._receiver is not None:
            self._receiver.close()
        if self._prefetcher is not None:
            self._prefetcher.close()
        if self._sender is not None:
            self._sender.close()
        if self._owns_connector and self._connector is not None:
            self._connector.close()

    def _agreed(self, received: bool) -> bool:
        return received if self._agree is None else self._agree(received)

    def _endpoints(
        self, info: Mapping[str, Any], stage: str | int | None = None
    ) -> SenderEndpoints:
        source = self.config.receive_stages()[0] if stage is None else str(stage)
        return SenderEndpoints.of(find_sender_info(info, source), self.config.from_tp)

    def _receive(
        self,
        request_id: str,
        target_device: Any,
        sender_info: Mapping[str, Any] | None,
        timeout: float | None = None,
    ) -> tuple[dict[str, Any] | None, int]:
        receiver = self._receiver
        if receiver is None:
            return None, 0
        senders = self._senders
        if sender_info is not None:
            try:
                senders = self._endpoints(sender_info)
            except InvalidArgument as error:
                self.counters.count("requests_received", "invalid_argument")
                logger.error(
                    "KV receive for %s: unresolved per-call sender_info: %s", request_id, error
                )
                return None, 0
        if not arguments.has_utf8(request_id):
            self.counters.count("requests_received", "invalid_argument")
            logger.error(
                "KV receive failed: %s",
                arguments.complaint("request_id", request_id, arguments.UTF8),
            )
            return None, 0
        limit = self.config.recv_timeout if timeout is None else timeout
        return receiver.receive(request_id, senders, target_device, limit)

    def _make_connector(self) -> Any:
        config = self.config
        given = dict(config.connector_config or {})
        name = given.pop("type", None)
        if not isinstance(name, str) or not name:
            raise InvalidArgument("connector_config has no `type`, the name of a connector")
        role = "sender" if config.need_send_cache else "receiver"
        stages = config.send_stages() if config.need_send_cache else config.receive_stages()
        given.setdefault("from_stage", stages[0])
        given.setdefault("to_stage", stages[1])
        if config.window_size > 0:
            given.setdefault("window_size", config.window_size)
        given.pop("role", None)
        logger.info("Initializing OmniConnector type=%s role=%s", name, role)
        # A sender's ports follow from its stage; a receiver's are whatever is free.
        stage = int(stages[0]) if stages[0].isdecimal() else 0
        spec = resolve_connector_spec(
            ConnectorSpec(name, given),
            stage_id=stage,
            role=role,
            purpose="kv_transfer",
            local_rank=self.local_rank,
            replica_id=config.replica_id,
        )
        return create_connector(spec)
