"""The class that pipelines name: payloads stay with their sender until a receiver pulls them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _core, serializer
from ..errors import Error, InvalidArgument, InvalidState
from . import arguments
from .ascend import AscendPlane
from .buffer import ManagedBuffer
from .contract import ConnectorClosed, OmniConnector
from .log_limit import LINES_OF_CALL, limited
from .shared import SharedCore, join_core, open_core, shared_with

__all__ = ["SenderUnknown", "YuanrongTransferEngineConnector"]

_Pulled = tuple[Any, int]

# Hosts that stand for "find out".
_UNKNOWN_HOSTS = frozenset({"", "auto", "*", "0.0.0.0", "::"})
# A get that gave nothing for one of these has nothing to complain of.
_NOT_YET = frozenset({"not_found", "timed_out"})
_NO_FORM = (
    TypeError,
    ValueError,
    NotImplementedError,
    RuntimeError,  # Of a payload that does not tell its layout, or nests too deep.
    OverflowError,
    BufferError,
    Error,
)
# Of a key, in a line of the log.
_MOST_LOGGED = 200


class SenderUnknown(InvalidState, RuntimeError):
    """A get without metadata, before anybody has said where the sender is."""


class YuanrongTransferEngineConnector(OmniConnector):
    """Hands objects from stage to stage without a store between them.

    A sender keeps what it puts in its pool; a receiver claims it there, reads it into its own and
    releases it. Whoever has claimed a payload reads the bytes that were put, whatever the sender
    does meanwhile, or gets None and a cause in the log. docs/connectors/pull.md lists the options.

    All methods may be called from any thread at the same time, ``close`` too, which ends what
    waits.
    """

    supports_raw_data = True
    _SEPARATOR = "@"
    _logger = limited("stagelink.pull")

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        share: YuanrongTransferEngineConnector | None = None,
    ) -> None:
        """Bind the ports and reserve the pool. Raises what is wrong, by name.

        ``share``: a receiver whose engine and pool this one uses with it, which closes with the
        last of them. Only where the sender is may differ in ``config``.
        """
        self._core: _core.PullConnector | None = None
        self._plane: AscendPlane | None = None
        self._sender_host: str | None = None
        self._sender_zmq_port: int | None = None
        self._sender_ranks: dict[int, tuple[str, int]] = {}
        self.can_put = False
        self.stage_id = -1
        self.config: dict[str, Any] = {
            key: os.path.expandvars(value) if isinstance(value, str) else value
            for key, value in arguments.mapping("config", config).items()
        }
        if share is not None:
            shared_with(share, YuanrongTransferEngineConnector)._open("share")
        extra = json.dumps(self.config, default=str)
        options, notes = _core.pull_connector_options(extra)
        for note in notes:
            self._logger.warning("YuanrongTransferEngineConnector: %s", note)
        self.protocol: str = options["protocol"]
        self.pool_device: str = options["pool_device"]
        self.stage_id = options["stage_id"]
        self._wire: serializer.Wire = "compat" if options["compat_030"] else "fast"
        self._checksum: bool = options["checksum"] and not options["compat_030"]
        self._shared: SharedCore = (
            open_core(options, extra) if share is None else join_core(share._shared, options)
        )
        core = self._shared.opened()
        self._core, self._plane = core, self._shared.plane
        self.can_put = options["can_put"]
        health = core.health()
        self.host: str = health["host"]
        self.zmq_port: int = health["zmq_port"]
        self.rpc_port: int = health["rpc_port"]
        self.update_sender_info(options["sender_host"], options["sender_zmq_port"])
        self._logger.info(
            "YuanrongTransferEngineConnector initialized at %s:%s (protocol=%s, device=%s)",
            self.host,
            self.rpc_port,
            self.protocol,
            self.pool_device,
        )

    # Sending.

    def put(
        self,
        from_stage: str,
        to_stage: str,
        put_key: str,
        data: Any,
        *,
        readers: int = 1,
        ttl: _core.Timeout | None = None,
    ) -> tuple[bool, int, dict[str, Any] | None]:
        """Offer a payload to a stage: ``(True, its bytes, metadata)``.

        ``(False, 0, None)``: it was not put; the log says why. Bytes and tensors are offered as
        they are, a buffer of :meth:`allocate` without a copy, any other object by the serializer.
        A payload goes when ``readers`` have read it (0: any number), or by its time, ``ttl``.
        A payload of the same key is replaced.
        """
        core = self._open("put")
        key = self._key("put_key", put_key, from_stage, to_stage)
        readers = arguments.integer("readers", readers, 0, _core.MAX_READERS)
        if ttl is not None:
            ttl = _core.seconds(ttl, "ttl")
        try:
            _, _, metadata = self._offer(core, key, data, readers, ttl)
        except _NO_FORM as error:
            core.refuse_put()
            self._logger.error("transfer_engine put failed for %s: %s", _shown(key), str(error))
            return False, 0, None
        if metadata is None:
            return False, 0, None  # The core has counted it, and its log has the cause.
        return True, metadata["data_size"], metadata

    def allocate(
        self, size: _core.Size, timeout: _core.Timeout | None = None
    ) -> ManagedBuffer | None:
        """Memory of the pool to be filled and put; None: there was no space in time."""
        _, _, buffer = self._open("allocate").allocate(size, timeout)
        return None if buffer is None else ManagedBuffer(buffer, self._plane)

    def cleanup(
        self, request_id: str, from_stage: str | None = None, to_stage: str | None = None
    ) -> None:
        """Take back what was put under a key, ``{id}@{from}_{to}``, or an id and both stages.

        Whoever reads it at the moment reads it to the end. Raises ``ValueError`` for one stage
        without the other.
        """
        edge = self._edge_or_none(from_stage, to_stage)
        key = arguments.text("request_id", request_id)
        if edge is not None:
            key = self._make_key(key, *edge)
        core = self._core
        if core is not None and not core.closed and arguments.has_utf8(key):
            core.cleanup(key)

    def reap_consumed(self) -> None:
        """Do nothing: what has been read is given back as it is released."""

    # Receiving.

    def get(
        self,
        from_stage: str,
        to_stage: str,
        get_key: str,
        metadata: Mapping[str, Any] | None = None,
    ) -> _Pulled | None:
        """Pull a payload: ``(data, its bytes)``; None: it is not there, or could not be had.

        ``metadata`` is what ``put`` gave, or only ``source_host`` and ``source_port``, or None for
        the sender of :meth:`update_sender_info`. Raw payloads come as :class:`ManagedBuffer`, which
        is yours to release; others as the object that was put.
        """
        key = self._key("get_key", get_key, from_stage, to_stage)
        return self._get(key, metadata, 0.0, None)

    def get_with_deadline(
        self,
        from_stage: str,
        to_stage: str,
        get_key: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        deadline: float,
    ) -> _Pulled | None:
        """Do as :meth:`get`, but wait for the put until ``deadline``, a ``time.monotonic()``.

        The sender answers when the payload is there: nothing is asked twice.
        """
        key = self._key("get_key", get_key, from_stage, to_stage)
        left = arguments.left_until(deadline)
        return self._get(key, metadata, left, left)

    def get_many(
        self,
        from_stage: str,
        to_stage: str,
        get_keys: Sequence[str],
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
        *,
        deadline: float,
    ) -> list[_Pulled | None]:
        """Pull several payloads at once, from any number of senders: one answer for each key."""
        core = self._open("get")
        edge = self._edge(from_stage, to_stage)
        keys = [
            self._make_key(arguments.utf8(f"get_keys[{at}]", key), *edge)
            for at, key in enumerate(arguments.items("get_keys", get_keys))
        ]
        places: list[Mapping[str, Any] | None] = [None] * len(keys)
        if metadata is not None:
            places = arguments.items("metadata", metadata)
        left = arguments.left_until(deadline)
        self._expect_sender(core, all(places) and metadata is not None)
        places = [place or self._place() for place in places]
        found = core.get_many(keys, places, left, left)
        return self._results(keys, found)

    # Where the senders are.

    @property
    def sender_host(self) -> str | None:
        """The host of the sender that gets without metadata ask."""
        return self._sender_host

    @sender_host.setter
    def sender_host(self, host: str | None) -> None:
        self.update_sender_info(host, self._sender_zmq_port)

    @property
    def sender_zmq_port(self) -> int | None:
        """The port of that sender."""
        return self._sender_zmq_port

    @sender_zmq_port.setter
    def sender_zmq_port(self, port: int | None) -> None:
        self.update_sender_info(self._sender_host, port)

    def update_sender_info(
        self,
        sender_host: str | None,
        sender_zmq_port: int | None,
        sender_rank: int | None = None,
    ) -> None:
        """Say where gets without metadata ask from now on; with a rank, where that rank is."""
        port = None
        if sender_zmq_port is not None and sender_zmq_port != 0:
            port = arguments.port("sender_zmq_port", sender_zmq_port)
        if sender_host is not None:
            sender_host = arguments.utf8("sender_host", sender_host)
        if sender_rank is not None:
            rank = arguments.integer("sender_rank", sender_rank)
            if not sender_host or port is None:
                raise InvalidArgument(f"the sender of rank {rank} needs a host and a port")
            self._sender_ranks[rank] = (sender_host, port)
            return
        self._sender_host, self._sender_zmq_port = sender_host or None, port
        if self._core is not None and port is not None and self._sender_known():
            self._shared.update_sender(str(self._sender_host), port)

    def sender_metadata(self, sender_rank: int) -> dict[str, Any]:
        """Return the metadata, for ``get``, of a sender that was named by its rank."""
        place = self._sender_ranks.get(arguments.integer("sender_rank", sender_rank))
        if place is None:
            raise SenderUnknown(
                f"nobody has said where rank {sender_rank} of the sender is; known are "
                f"{sorted(self._sender_ranks)}. Call update_sender_info(host, port, sender_rank)."
            )
        return {"source_host": place[0], "source_port": place[1]}

    def get_connection_info(self) -> dict[str, Any]:
        """Return where this connector is reached."""
        return {
            "host": self.host,
            "zmq_port": self.zmq_port,
            "rpc_port": self.rpc_port,
            "can_put": self.can_put,
        }

    # State.

    def health(self) -> dict[str, Any]:
        """Return ``status`` (healthy, unhealthy) and the counters; see docs/connectors/pull.md."""
        core = self._core
        if core is None or core.closed:
            return {"status": "unhealthy", "error": "Connector is closed"}
        found = {"status": "healthy", **core.health()}
        found.update(protocol=self.protocol, pool_device=self.pool_device)
        return found

    def metrics_text(self) -> str:
        """Counters and histograms as Prometheus text: of the connector and of its engine."""
        return "" if self._core is None else self._core.metrics_text()

    def close(self, timeout: _core.Timeout = 5) -> None:
        """Take back all payloads, wait for those who read them, end what waits. Idempotent."""
        timeout = _core.seconds(timeout, "timeout")
        if getattr(self, "_core", None) is None:
            return
        self._core = None
        try:
            self._shared.leave(timeout)
        except Error as error:
            self._logger.warning("YuanrongTransferEngineConnector: closing: %s", error)

    def _key(self, name: str, key: object, from_stage: object, to_stage: object) -> str:
        return self._make_key(arguments.text(name, key), *self._edge(from_stage, to_stage))

    def _open(self, call: str) -> _core.PullConnector:
        core = self._core
        if core is None or core.closed:
            raise ConnectorClosed(
                f"Cannot {call} data: YuanrongTransferEngineConnector is closed", "closed"
            )
        return core

    def _offer(
        self,
        core: _core.PullConnector,
        key: str,
        data: Any,
        readers: int,
        ttl: _core.Timeout | None,
    ) -> tuple[str, str, dict[str, Any] | None]:
        if not isinstance(data, _core.PullBuffer) and hasattr(data, "release"):
            data = getattr(data, "tensor", data)  # Another connector's buffer.
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(data, torch.Tensor):
            return self._offer_tensor(core, key, data, readers, ttl)
        if isinstance(data, memoryview) and not data.c_contiguous:
            data = data.tobytes()
        if isinstance(data, _core.PullBuffer) and self._plane is not None:
            self._plane.synchronize()  # What fills it may still run on the device.
        if isinstance(data, bytes | bytearray | memoryview | _core.PullBuffer):
            return core.put(key, data, readers, ttl)
        plan = serializer.plan(data, self._wire, checksum=self._checksum)
        return core.put_plan(key, plan, readers, ttl)

    def _offer_tensor(
        self,
        core: _core.PullConnector,
        key: str,
        data: Any,
        readers: int,
        ttl: _core.Timeout | None,
    ) -> tuple[str, str, dict[str, Any] | None]:
        tensor = data.detach()
        if (
            tensor.is_meta
            or tensor.is_sparse
            or tensor.is_quantized
            or tensor.layout.__repr__() != "torch.strided"
        ):
            serializer.plan(data)  # Raises, naming what it is.
        tensor = tensor.resolve_conj().resolve_neg().contiguous()
        if self._plane is None:
            return core.put(key, tensor.cpu(), readers, ttl)
        if tensor.nbytes == 0:
            return core.put(key, b"", readers, ttl)
        reason, message, buffer = core.allocate(tensor.nbytes)
        if buffer is None:
            return reason, message, None
        self._plane.write(buffer.address, tensor)
        return core.put(key, buffer, readers, ttl)

    def _get(
        self, key: str, metadata: Mapping[str, Any] | None, wait: float, timeout: float | None
    ) -> _Pulled | None:
        core = self._open("get")
        self._expect_sender(core, bool(metadata))
        try:
            outcome = core.get(key, metadata or self._place(), wait, timeout)
        except InvalidArgument as error:  # What the metadata says cannot be.
            core.refuse_get(False)
            self._logger.error("transfer_engine get failed for %s: %s", _shown(key), str(error))
            return None
        return self._result(key, outcome)

    def _expect_sender(self, core: _core.PullConnector, has_metadata: bool) -> None:
        if has_metadata or self._sender_known():
            return
        core.refuse_get(False)
        raise SenderUnknown(
            "get(metadata=None) requires sender_host and sender_zmq_port to be resolved. "
            "Call update_sender_info(host, port) before polling."
        )

    def _results(
        self, keys: Sequence[str], outcomes: Sequence[tuple[str, str, _core.Pulled | None]]
    ) -> list[_Pulled | None]:
        lines: Counter[str] = Counter()
        results: list[_Pulled | None] = []
        for key, outcome in zip(keys, outcomes, strict=True):
            reason, _, pulled = outcome
            if pulled is None and reason not in _NOT_YET:
                lines[reason] += 1
                if lines[reason] > LINES_OF_CALL:
                    results.append(None)
                    continue
            results.append(self._result(key, outcome))
        for reason, count in lines.items():
            if count > LINES_OF_CALL:
                self._logger.error(
                    "transfer_engine get failed for %d further keys of the same call (%s)",
                    count - LINES_OF_CALL,
                    reason,
                )
        return results

    def _place(self) -> dict[str, Any] | None:
        """Where to ask without metadata; None: where the core does."""
        if not self._shared.was_shared:
            return None
        return {"source_host": self._sender_host, "source_port": self._sender_zmq_port}

    def _result(self, key: str, outcome: tuple[str, str, _core.Pulled | None]) -> _Pulled | None:
        reason, message, pulled = outcome
        if pulled is not None:
            return self._received(key, *pulled)
        if reason not in _NOT_YET:
            self._logger.error(
                "transfer_engine get failed for %s: %s (%s)", _shown(key), message, reason
            )
        return None

    def _received(
        self,
        key: str,
        buffer: _core.PullBuffer,
        is_fast_path: bool,
        times: tuple[float, float, float, float],
    ) -> _Pulled | None:
        query, alloc, read, total = times
        managed = ManagedBuffer(buffer, self._plane)
        size = managed.size
        if is_fast_path:
            self._logger.info(
                "[YR GET] %s: query=%.1fms, alloc=%.1fms, read=%.1fms, total=%.1fms, %.1f MB/s "
                "(fast_path, zero-copy)",
                key, query * 1e3, alloc * 1e3, read * 1e3, total * 1e3, _rate(size, total),
            )  # fmt: skip
            return managed, size
        started = time.perf_counter()
        try:
            with managed:
                raw = managed if self._plane is None else managed.to_bytes()
                value = serializer.decode(raw, copy=True)
        except Exception as error:  # noqa: BLE001 - whatever a payload makes decoders raise
            core = self._core
            if core is not None:
                core.refuse_get(True)
            self._logger.error("transfer_engine get failed for %s: %s", _shown(key), str(error))
            return None
        copy = time.perf_counter() - started
        total += copy
        self._logger.info(
            "[YR GET] %s: query=%.1fms, alloc=%.1fms, read=%.1fms, copy=%.1fms, total=%.1fms, "
            "%.1f MB/s",
            key, query * 1e3, alloc * 1e3, read * 1e3, copy * 1e3, total * 1e3, _rate(size, total),
        )  # fmt: skip
        return value, size

    def _sender_known(self) -> bool:
        host = self._sender_host
        return (
            host is not None
            and host.lower() not in _UNKNOWN_HOSTS
            and self._sender_zmq_port is not None
        )


def _shown(key: str) -> str:
    return arguments.shown(key[:_MOST_LOGGED])


def _rate(size: int, seconds: float) -> float:
    return size / 1024 / 1024 / seconds if seconds > 0 else 0.0
