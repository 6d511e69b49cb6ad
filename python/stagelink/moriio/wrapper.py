"""``MoRIIOWrapper``: the IO engine, the notifications and the transfers of one rank."""

from __future__ import annotations

import ctypes
import importlib.util
import pathlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _core, errors
from ..pull.log_limit import quiet_logger
from .data import (
    HandshakeError,
    MoRIIOError,
    MoRIIOTransferAck,
    TransferBatchState,
    TransferError,
    host_role,
    host_type,
)
from .views import Allocations, Inbox

logger = quiet_logger("stagelink.moriio")

DEFAULT_TRANSFER_TIMEOUT = 30.0
_POLL_SECONDS = 0.001  # Of statuses that cannot be waited for.


def find_zmq() -> str:
    """Empty where the system has libzmq, else the path of the one inside pyzmq, if it is there."""
    try:
        ctypes.CDLL("libzmq.so.5")
        return ""
    except OSError:
        spec = importlib.util.find_spec("zmq")
    for place in spec.submodule_search_locations or () if spec is not None else ():
        for path in sorted(pathlib.Path(place).parent.glob("pyzmq.libs/libzmq*.so*")):
            return str(path)
    return ""


class MoRIIOWrapper:
    """Notifications are received and sent by threads in C++; no message of a peer ends them.

    Thread-safety: all methods may be called at the same time. `lock` is for the caller's own use:
    no method takes it.
    """

    def __init__(
        self,
        moriio_engine: Any = None,
        tp_rank: int = 0,
        dp_rank: int = 0,
        transfer_timeout: float = DEFAULT_TRANSFER_TIMEOUT,
        *,
        role: str | None = None,
        bind_host: str | None = None,
        zmq_library: str | None = None,
    ) -> None:
        """`role`: producer or consumer; None: as vLLM has set it, else both. `bind_host`: where to
        listen, "*" for every address; None: at the engine's own address."""
        self.tp_rank = tp_rank
        self.dp_rank = dp_rank
        self.moriio_engine = moriio_engine
        self.remote_memory_metadata: Any = None
        self.local_memory_registered = False
        self.local_memory_metadata: Any = None
        self.transfer_status: list[Any] = []
        self.remote_engine_ip: str | None = None
        self.notify_port: int | None = None
        self.lock = threading.Lock()
        self.sessions: list[Any] = []
        self.paths: dict[str, Any] = {}  # Always empty: sockets are the sender thread's.
        self._transfer_timeout = transfer_timeout
        self._role = role
        self._bind_host = bind_host
        self._zmq_library = zmq_library
        self._made: _core.MoriioControl | None = None
        self._make_lock = threading.Lock()
        self._built: dict[tuple[bytes, bytes], Any] = {}
        self._acks: Inbox[MoRIIOTransferAck] = Inbox(self._arrived_acks)
        self._completions: Inbox[str] = Inbox(lambda: self.control.take_completions())
        self._allocations = Allocations(lambda: self.control)
        self.notify_address: tuple[str, int] | None = None

    @property
    def control(self) -> _core.MoriioControl:
        """The part in C++, made when it is first needed."""
        with self._make_lock:
            if self._made is None:
                library = find_zmq() if self._zmq_library is None else self._zmq_library
                role = self._role or host_role() or "any"
                self._made = _core.MoriioControl(role, zmq_library=library)
            return self._made

    # The IO engine.

    def set_moriio_engine(self, moriio_engine: Any) -> None:
        assert moriio_engine is not None, "the engine must not be None"
        self.moriio_engine = moriio_engine

    def set_backend_type(
        self,
        backend_type: Any,
        qp_per_transfer: int = 1,
        post_batch_size: int = -1,
        num_workers: int = 1,
    ) -> None:
        config: Any
        if backend_type == _core.BackendType.XGMI:
            config = _core.XgmiBackendConfig()
        else:
            polling = _core.PollCqMode.POLLING
            config = _core.RdmaBackendConfig(
                qp_per_transfer, post_batch_size, num_workers, polling, enable_notification=False
            )
        self._engine().create_backend(backend_type, config)

    def get_agent_metadata(self) -> bytes:
        return bytes(self._engine().get_engine_desc().pack())

    def register_remote_engine(self, remote_packed_engine_metadata: bytes) -> str:
        desc = _core.EngineDesc.unpack(remote_packed_engine_metadata)
        self._engine().register_remote_engine(desc)
        return desc.key

    def register_local_tensor(self, tensor: Any) -> bytes:
        engine = self._engine()
        try:
            self.local_memory_metadata = engine.register_torch_tensor(tensor)
            packed = bytes(self.local_memory_metadata.pack())
        except Exception as error:
            raise _error("MoRIIOError", MoRIIOError, f"memory cannot be registered: {error}") from (
                error
            )
        self.local_memory_registered = True
        return packed

    def get_unpack_memory_metadata(self, packed_memory_metadata: bytes) -> Any:
        return _core.MemoryDesc.unpack(packed_memory_metadata)

    def build_session(self, local_memory_metadata: Any, remote_memory_metadata: Any) -> Any:
        """One session for each pair of memories, however often it is asked for: the layers of a
        shared cache have one, and are moved in one batch."""
        engine = self._engine()
        try:
            pair = (bytes(local_memory_metadata.pack()), bytes(remote_memory_metadata.pack()))
        except AttributeError:
            return engine.create_session(local_memory_metadata, remote_memory_metadata)
        session = self._built.get(pair)
        if session is None or not session.alive():
            session = engine.create_session(local_memory_metadata, remote_memory_metadata)
            if session is None:
                text = "no session between the two memories; the log says why"
                raise _error("MoRIIOError", MoRIIOError, text)
            if len(self._built) >= 4096:
                self._built.clear()
            self._built[pair] = session
        return session

    def read_remote_data(
        self,
        transfer_size_byte: Any,
        local_offset: Any = 0,
        remote_offset: Any = 0,
        session: Any = None,
    ) -> Any:
        uid = self._registered_engine().allocate_transfer_uid()
        return session.batch_read(local_offset, remote_offset, transfer_size_byte, uid)

    def write_remote_data(
        self,
        transfer_size_byte: Any,
        local_offset: Any = 0,
        remote_offset: Any = 0,
        session: Any = None,
    ) -> Any:
        uid = self._registered_engine().allocate_transfer_uid()
        return session.batch_write(local_offset, remote_offset, transfer_size_byte, uid)

    def write_remote_data_single(
        self,
        transfer_size_byte: int,
        local_offset: int = 0,
        remote_offset: int = 0,
        sess_idx: int = 0,
    ) -> Any:
        uid = self._registered_engine().allocate_transfer_uid()
        session = self.sessions[sess_idx]
        return session.write(local_offset, remote_offset, transfer_size_byte, uid)

    def poll_transfer_batch(self, transfer_statuses: Sequence[Any]) -> Any:
        states = host_type("TransferBatchState", TransferBatchState)
        if any(status.Failed() for status in transfer_statuses):
            return states.FAILED
        done = all(status.Succeeded() for status in transfer_statuses)
        return states.DONE if done else states.PENDING

    def waiting_for_transfer_complete(self, transfer_statuses: Sequence[Any] | None = None) -> None:
        """Returns when all have succeeded. Raises TransferError as soon as one has failed, or at
        the transfer timeout."""
        if transfer_statuses is None:
            with self.lock:
                transfer_statuses, self.transfer_status = self.transfer_status, []
        statuses = list(transfer_statuses)
        self._wait(statuses, time.monotonic() + self._transfer_timeout)
        errors_ = [
            f"{status.Message()} (code={status.Code()})"
            if status.Failed()
            else f"timed out after {self._transfer_timeout:g} s (transfer_timeout)"
            for status in statuses
            if not status.Succeeded()
        ]
        if errors_:
            text = f"{len(errors_)}/{len(statuses)} transfers failed:\n" + "\n".join(errors_)
            raise _error("TransferError", TransferError, text)

    def _wait(self, statuses: list[Any], deadline: float) -> None:
        """Until one has failed, all have succeeded, or the deadline."""
        ours = all(isinstance(status, _core.TransferStatus) for status in statuses)
        pending = host_type("TransferBatchState", TransferBatchState).PENDING
        while self.poll_transfer_batch(statuses) is pending:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if ours:
                running = next(status for status in statuses if status.InProgress())
                # In pieces: another one may fail meanwhile.
                running.WaitFor(max(1, int(1000 * min(left, 0.02))))
            else:
                time.sleep(_POLL_SECONDS)

    # Notifications.

    def async_wait_reqid(self) -> None:
        """Starts the listener, once. Raises if the port cannot be bound."""
        assert self.notify_port is not None, "notify_port must be set first"
        if self.notify_address is not None:
            return
        host = self._bind_host or self._engine_host()
        try:
            self.notify_address = self.control.listen(
                host, int(self.notify_port), allow_wildcard=self._bind_host is not None
            )
        except errors.Error as error:
            raise _error("HandshakeError", HandshakeError, str(error)) from error
        logger.info("Listening for notifications at %s:%d", *self.notify_address)

    def send_notify(
        self,
        req_ids: str | Sequence[str],
        remote_ip: str | None,
        remote_port: int | str | None,
        message_type: str | None = None,
        message_fields: Mapping[str, Any] | None = None,
    ) -> None:
        """Never waits for the peer. What cannot be delivered in five seconds is logged and
        counted."""
        if not remote_ip or not remote_port:
            logger.warning("Notification without remote_ip or remote_port is not sent")
            return
        fields = dict(message_fields or {})
        size = int(fields.pop("consumer_tp_size", 1))
        if fields:
            text = f"{message_type}: fields that no peer knows: {', '.join(sorted(fields))}"
            raise _error("MoRIIOError", MoRIIOError, text)
        host = remote_ip.removeprefix("[").removesuffix("]")
        for req_id in [req_ids] if isinstance(req_ids, str) else req_ids:
            if not isinstance(req_id, str):
                logger.warning("Notification of %r is not sent: not a str", req_id)
                continue
            try:
                self.control.notify(
                    host, int(remote_port), req_id, message_type, consumer_tp_size=size
                )
            except errors.Error as error:
                raise _error("MoRIIOError", MoRIIOError, str(error)) from error

    def pop_finished_req_ids(self) -> list[Any]:
        """Releases since the last call, each of them: several ranks may release one transfer."""
        return self._acks.drain()

    def pop_finished_write_req_ids(self) -> set[str]:
        return set(self._completions.drain())

    def pop_failed_write_req_ids(self) -> dict[str, str]:
        """Writes that the producer gave up, with the reason. vLLM 0.32 has no such message."""
        events = self.control.take_events()
        return {name: f"{reason}: {text}" for kind, name, reason, text in events if reason != "ok"}

    def shutdown(self) -> None:
        """Stops the listener and the sender and joins their threads. Idempotent."""
        with self._make_lock:
            made = self._made
        if made is not None:
            made.close()
        self._built.clear()

    # What vLLM's worker and writer reach for.

    @property
    def notify_thread(self) -> Any:
        """Not None once the listener runs."""
        return self.notify_address

    @property
    def done_req_ids(self) -> Inbox[MoRIIOTransferAck]:
        return self._acks

    @done_req_ids.setter
    def done_req_ids(self, acks: Sequence[MoRIIOTransferAck]) -> None:
        self._acks.drain()
        self._acks.extend(acks)

    @property
    def done_write_cache_req_ids(self) -> Inbox[str]:
        return self._completions

    @done_write_cache_req_ids.setter
    def done_write_cache_req_ids(self, names: Sequence[str]) -> None:
        self._completions.drain()
        self._completions.extend(names)

    @property
    def done_remote_allocate_req_dict(self) -> Allocations:
        return self._allocations

    def _is_transfer_terminal_locked(self, transfer_id: str) -> bool:
        return self.control.ended(transfer_id)

    def _mark_transfer_terminal_locked(self, transfer_id: str) -> None:
        self.control.mark_ended(transfer_id)

    def _handle_message(self, msg: bytes) -> None:
        """As if the frame had come to the notify port; one that is wrong is counted."""
        self.control.handle_frame(msg)

    def _arrived_acks(self) -> list[MoRIIOTransferAck]:
        ack = host_type("MoRIIOTransferAck", MoRIIOTransferAck)
        return [ack(name, size) for name, size in self.control.take_acks()]

    def _engine(self) -> Any:
        assert self.moriio_engine is not None, "set_moriio_engine() must be called first"
        return self.moriio_engine

    def _registered_engine(self) -> Any:
        assert self.local_memory_registered, "register_local_tensor() must be called first"
        return self._engine()

    def _engine_host(self) -> str:
        if self.moriio_engine is None:
            return "127.0.0.1"
        return str(self.moriio_engine.get_engine_desc().host)


def _error(name: str, own: type[MoRIIOError], text: str) -> Exception:
    error = host_type(name, own)(text)
    assert isinstance(error, Exception)
    return error
