"""Connectors between the stages of a pipeline, with the contract of vLLM-Omni's OmniConnectors.

A stage puts an object under an id, the next stage gets it::

    connector = YuanrongConnector({"namespace": "demo"})
    connector.put("0", "1", "request-7", {"hidden": tensor})
    ...
    data, size = connector.get("0", "1", "request-7")   # or None: not there yet

Nothing else need pass between them: both make the key ``{id}:{from_stage}_{to_stage}``. That is
:class:`YuanrongConnector`, which passes through a store. :class:`YuanrongTransferEngineConnector`
pulls from the sender's memory, and its receiver has to know where the sender is.

vLLM-Omni need not be installed; ``stagelink.vllm_omni`` gives these classes to it if it is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import _core, serializer
from ._core import EncoderCacheConsumer, EncoderCacheFetcher, EncoderCacheProducer
from .errors import Error, InvalidArgument, NotFound
from .omni_config import (
    ConnectorPurpose,
    ConnectorSpec,
    OmniTransferConfig,
    load_omni_transfer_config,
    resolve_connector_spec,
)
from .pull import ConnectorClosed, YuanrongTransferEngineConnector, arguments
from .pull.contract import OmniConnector
from .pull.log_limit import quiet_logger
from .pull.shared import OPTIONS_OF_EDGE

__all__ = [
    "ConnectorClosed",
    "ConnectorSpec",
    "DatasystemMissing",
    "EncoderCacheConsumer",
    "EncoderCacheFetcher",
    "EncoderCacheProducer",
    "OmniTransferConfig",
    "YuanrongConnector",
    "YuanrongTransferEngineConnector",
    "create_connector",
    "create_connectors",
    "load_omni_transfer_config",
]

logger = quiet_logger(__name__)

# Failures of the connection rather than of the object.
_TRANSPORT_CODES = frozenset({"unreachable", "peer_lost", "incompatible", "busy"})


class DatasystemMissing(NotFound, ImportError):
    """The package of the Yuanrong Datasystem is not installed; the message has the command."""


class YuanrongConnector(OmniConnector):
    """Hands objects from stage to stage through a store.

    With a ``host`` in the configuration the store is the Yuanrong Datasystem there; without one it
    is memory shared by the processes of this host, which needs no server. docs/connectors/store.md
    lists the options.

    All methods may be called from any thread at the same time, ``close`` too, which ends what
    waits.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Open the store. Raises what is wrong with the configuration or the store, by name."""
        self._core: _core.StoreConnector | None = None
        self.config: dict[str, Any] = dict(arguments.mapping("config", config))
        self.stage_id = -1
        self.sender_host: str | None = None
        self.sender_zmq_port: int | None = None
        self.can_put = True
        try:
            core = _core.StoreConnector(json.dumps(self.config, default=str))
        except NotFound as error:
            raise DatasystemMissing(error.message, error.reason) from error
        options = core.options
        self.stage_id = options["stage_id"]
        self.backend: str = options["backend"]
        self.host: str = options["host"]
        self.port: int = options["port"]
        self.namespace: str = options["namespace"]
        self.get_sub_timeout_ms: int = options["get_sub_timeout_ms"]
        self._get_wait: float = options["get_wait"]
        self._wire: serializer.Wire = options["wire"]
        self._checksum: bool = options["checksum"]
        self._copy: bool = options["copy"]
        self._view_min_bytes: int = options["view_min_bytes"]
        self._revive: bool = options["revive"]
        self._core = core
        where = self.namespace if self.backend == "shm" else f"{self.host}:{self.port}"
        logger.info("YuanrongConnector initialized successfully (%s, %s)", self.backend, where)

    # Transfer.

    def put(
        self, from_stage: str, to_stage: str, put_key: str, data: Any
    ) -> tuple[bool, int, dict[str, Any] | None]:
        """Store an object for a stage: ``(True, its bytes, None)``.

        ``(False, 0, None)``: it was not put; the log says why. An object of the same key is
        replaced.
        """
        core = self._open()
        edge = *self._edge(from_stage, to_stage), arguments.text("put_key", put_key)
        try:
            for name, part in zip(("from_stage", "to_stage", "put_key"), edge, strict=True):
                arguments.utf8(name, part)
            plan = serializer.plan(data, self._wire, checksum=self._checksum)
        except (
            TypeError,
            ValueError,
            RuntimeError,  # Of a payload that does not tell its layout, or nests too deep.
            OverflowError,
            BufferError,
            Error,
        ) as error:
            from_shown, to_shown, key_shown = map(arguments.shown, edge)
            core.refuse(from_shown, to_shown, key_shown, str(error))
            return False, 0, None
        if not core.put(*edge, plan):
            return False, 0, None
        return True, plan.nbytes, None

    def get(
        self,
        from_stage: str,
        to_stage: str,
        get_key: str,
        metadata: Mapping[str, Any] | None = None,
    ) -> tuple[Any, int] | None:
        """Return the object that was put for this stage, and its bytes; None: it is not there.

        Waits as ``get_sub_timeout_ms`` says; without that key it looks once. The object is deleted
        from the store (``delete_consumed``). ``metadata`` is not needed and not looked at.
        """
        return self._get(from_stage, to_stage, get_key, self._get_wait)

    def get_with_deadline(
        self,
        from_stage: str,
        to_stage: str,
        get_key: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        deadline: float,
    ) -> tuple[Any, int] | None:
        """Do as :meth:`get` does, but wait until ``deadline``, a time of ``time.monotonic()``."""
        return self._get(from_stage, to_stage, get_key, arguments.left_until(deadline))

    def cleanup(
        self, request_id: str, from_stage: str | None = None, to_stage: str | None = None
    ) -> None:
        """Delete what this connector has put under an id and nobody has got, on all its edges.

        The chunks of a request are ``{id}_{from_stage}_{number}``, and go with its id.
        With both stages, or with a whole key ``{id}:{from}_{to}``, whoever has put it. Raises
        ``ValueError`` for one stage without the other.
        """
        edge = self._edge_or_none(from_stage, to_stage)
        name = arguments.text("request_id", request_id)
        core = self._core
        if core is None or core.closed or not all(map(arguments.has_utf8, (name, *(edge or ())))):
            return
        core.cleanup(name, *(edge or ()))

    def reap_consumed(self) -> None:
        """Forget objects that others have consumed; at most a few for each call."""
        if self._core is not None and not self._core.closed:
            self._core.reap_consumed()

    # Where senders are matters to connectors that dial them; a store is the same for all.

    def update_sender_info(
        self, sender_host: str, sender_zmq_port: int, sender_rank: int | None = None
    ) -> None:
        """Remember where the sender is, for whoever asks; the store does not need it."""
        self.sender_host = arguments.utf8("sender_host", sender_host)
        self.sender_zmq_port = arguments.port("sender_zmq_port", sender_zmq_port)

    def get_connection_info(self) -> dict[str, Any]:
        """Return what identifies the other end: the store."""
        return {
            "host": self.host,
            "port": self.port,
            "backend": self.backend,
            "namespace": self.namespace,
            "zmq_port": None,
            "rpc_port": None,
            "can_put": self.can_put,
        }

    # State.

    def health(self) -> dict[str, Any]:
        """Return ``status`` (healthy, unhealthy) and the counters; see docs/connectors/store.md."""
        core = self._core
        found: dict[str, Any] = {"status": "unhealthy", "error": "closed"}
        if core is not None and not core.closed:
            error = core.check_health()
            found = {"status": "unhealthy" if error else "healthy", "error": error}
        found.update(host=self.host, port=self.port, backend=self.backend, namespace=self.namespace)
        found.update(self._counters())
        return found

    def metrics_text(self) -> str:
        """Counters and histograms as Prometheus text: of the connector and of its store."""
        return "" if self._core is None else self._core.metrics_text()

    def close(self) -> None:
        """End what waits and leave the store, within seconds. Objects stay. Idempotent."""
        core = getattr(self, "_core", None)
        if core is None:
            return
        try:
            core.close()
        except Error as error:
            logger.warning("YuanrongConnector: closing the store failed: %s", error)

    def _open(self) -> _core.StoreConnector:
        core = self._core
        if core is None or core.closed:
            raise ConnectorClosed("YuanrongConnector is closed", "closed")
        return core

    def _get(
        self, from_stage: str, to_stage: str, get_key: str, timeout: float
    ) -> tuple[Any, int] | None:
        core = self._open()
        edge = *self._edge(from_stage, to_stage), arguments.text("get_key", get_key)
        for name, part in zip(("from_stage", "to_stage", "get_key"), edge, strict=True):
            if not arguments.has_utf8(part):
                core.refuse_get(arguments.complaint(name, part, arguments.UTF8))
                return None
        view = core.get(*edge, timeout)
        if view is None:
            return None
        size = view.nbytes
        started = time.perf_counter()
        try:
            copy = self._copy or size < self._view_min_bytes
            data = serializer.decode(view, copy=copy, revive=self._revive)
        except Exception as error:  # noqa: BLE001 - whatever a payload makes decoders raise
            core.spoiled(*edge, view, time.perf_counter() - started, str(error))
            return None
        core.consumed(*edge, view, time.perf_counter() - started)
        return data, size

    def _counters(self) -> dict[str, int]:
        core = self._core
        outcomes = [] if core is None else core.outcomes()

        def gets(accept: Callable[[str, str], bool]) -> int:
            return sum(gets for reason, code, _, gets in outcomes if accept(reason, code))

        failed_puts = sum(p for reason, _, p, _ in outcomes if reason not in ("ok", "closed"))
        transport = gets(lambda _, code: code in _TRANSPORT_CODES)
        decode = gets(lambda _, code: code == "corrupt")
        return {
            "puts": sum(puts for reason, _, puts, _ in outcomes if reason == "ok"),
            "gets": gets(lambda reason, _: reason == "ok"),
            "bytes_transferred": 0 if core is None else core.put_bytes,
            "errors": failed_puts + transport + decode,
            "timeouts": gets(lambda _, code: code == "timed_out"),
            "hits": gets(lambda reason, _: reason == "ok"),
            "misses": gets(lambda reason, _: reason == "not_found"),
            "expired": gets(lambda reason, _: reason == "expired"),
            "evicted": gets(lambda reason, _: reason == "evicted"),
            "transport": transport,
            "decode": decode,
            "failed_puts": failed_puts,
            "bytes_received": 0 if core is None else core.get_bytes,
            "unconsumed": 0 if core is None else core.unconsumed,
        }


Connector = YuanrongConnector | YuanrongTransferEngineConnector

_CONNECTORS: dict[str, Callable[[Mapping[str, Any]], Connector]] = {
    "YuanrongConnector": YuanrongConnector,
    "StagelinkStoreConnector": YuanrongConnector,
    "YuanrongTransferEngineConnector": YuanrongTransferEngineConnector,
    "StagelinkPullConnector": YuanrongTransferEngineConnector,
}


def create_connector(spec: ConnectorSpec) -> Connector:
    """Return the connector of a specification, by its name."""
    kind = _CONNECTORS.get(spec.name)
    if kind is None:
        raise InvalidArgument(
            f"Unknown connector: {spec.name}. Available: {sorted(_CONNECTORS)}", "unsupported"
        )
    return kind(spec.extra)


def create_connectors(
    config: OmniTransferConfig | None,
    stage_id: str | int,
    *,
    purpose: ConnectorPurpose = "request_forwarding",
    local_rank: int | None = None,
    replica_id: int = 0,
) -> dict[tuple[str, str], Connector]:
    """Return a connector for every edge that a stage is an end of; none if they are disabled.

    Connectors that pull get the role of the stage on the edge and the port of this rank. Edges that
    a stage sends on by the same connector share one, which listens once; those that it receives on
    have one each, which share their engine and pool. ``local_rank`` may be left out where the
    sending stage has one rank.
    """
    found: dict[tuple[str, str], Connector] = {}
    if config is None or not config.enabled:
        return found
    for edge, spec in config.connectors.items():
        if str(stage_id) not in edge:
            continue
        extra = {**spec.extra, "stage_id": int(stage_id)}
        bounds = config.bounds.get(edge)
        if _CONNECTORS.get(spec.name) is YuanrongTransferEngineConnector:
            role = "sender" if edge[0] == str(stage_id) else "receiver"
            same = [e for e in found if e[0] == edge[0] and config.connectors[e] == spec]
            if role == "sender" and same:
                found[edge] = found[same[0]]
                continue
            extra["from_stage"], extra["to_stage"] = int(edge[0]), int(edge[1])
            extra = resolve_connector_spec(
                ConnectorSpec(spec.name, extra),
                stage_id=int(stage_id),
                role=role,
                purpose=purpose,
                local_rank=_rank_on(config, edge, local_rank),
                replica_id=replica_id,
            ).extra
            if role == "receiver":
                found[edge] = _receiver(extra, found.values())
                continue
        elif bounds is not None:
            extra.setdefault("window_size", bounds.window_size)
            extra.setdefault("max_inflight", bounds.max_inflight)
        found[edge] = create_connector(ConnectorSpec(spec.name, extra))
    return found


def _receiver(extra: dict[str, Any], others: Iterable[Connector]) -> Connector:
    """A connector that pulls, in the pool of one that differs only in where its sender is."""

    def of_pool(config: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in config.items() if key not in OPTIONS_OF_EDGE}

    for other in others:
        if isinstance(other, YuanrongTransferEngineConnector) and not other.can_put:
            if of_pool(other.config) == of_pool(extra):
                return YuanrongTransferEngineConnector(extra, share=other)
    return YuanrongTransferEngineConnector(extra)


def _rank_on(config: OmniTransferConfig, edge: tuple[str, str], rank: int | None) -> int:
    """The rank of this process; it is never guessed where the sender of an edge has several."""
    if rank is not None:
        return rank
    ranks = {port.rank for port in config.ports if str(port.from_stage) == edge[0]}
    if len(ranks) > 1:
        raise InvalidArgument(
            f"edge {edge[0]}->{edge[1]}: stage {edge[0]} has {len(ranks)} ranks, each with a port "
            "of its own; say which one this is (local_rank)"
        )
    return 0
