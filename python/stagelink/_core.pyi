"""The engine of stagelink; use it through the package `stagelink`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import enum
import os
import types
from typing import (
    Any,
    Literal,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    overload
)

from typing_extensions import Buffer, Self

import stagelink.errors


Access: TypeAlias = Literal["ro", "rw"]
Effort: TypeAlias = Literal["off", "try", "require"]
Phase: TypeAlias = Literal["running", "succeeded", "failed"]
PeerPhase: TypeAlias = Literal["connected", "unreachable", "lost"]
Size: TypeAlias = int | str
"""Bytes, or text with a unit: "64MiB"."""
Timeout: TypeAlias = float | str
"""Seconds, or text with a unit: "500ms"."""
Indices: TypeAlias = SupportsIndex | Sequence[SupportsIndex] | Buffer
"""One integer, a sequence of them, or an array: contiguous uint64 and int64 are used in place."""
RemoteRegions: TypeAlias = RegionDesc | Buffer | Sequence[RegionDesc | Buffer]
KvRoute: TypeAlias = tuple[int, tuple[int, int, int], tuple[int, int, int]]
"""The other side's rank; the shares (first, count, of) of our heads and of its own."""
Pulled: TypeAlias = tuple[PullBuffer, bool, tuple[float, float, float, float]]
"""The buffer, whether it holds raw bytes, seconds of query, allocation, read and everything."""

EmbeddingPlace: TypeAlias = tuple[int, Sequence[int], str, str, int]
"""nbytes, shape, dtype, producer_zmq and generation of an embedding at its producer."""

class TransportState(TypedDict):
    available: bool
    detail: str

class Capabilities(TypedDict):
    version: str
    protocol: str
    transports: dict[str, TransportState]

version: str = '0.1.0'

def seconds(value: Timeout, name: str) -> float:
    """A duration as seconds, or InvalidArgument that names it."""

def scopes() -> dict[str, str]:
    """Every error code and its scope."""

def reasons() -> dict[str, str]:
    """Every reason and the code it belongs to."""

def capabilities() -> Capabilities:
    """
    What this build can do on this machine: each transport, and why it is not available.
    """

class Notification:
    """
    A message from a peer. One that was sent after a transfer arrives when the bytes of that transfer are in place, or with the reason why they are not.
    """

    @property
    def source(self) -> str:
        """Instance id of the sender."""

    @property
    def source_name(self) -> str:
        """The sender's engine name."""

    @property
    def payload(self) -> bytes: ...

    @property
    def outcome(self) -> str:
        """"ok", or the reason for which the transfer before it failed."""

    def __repr__(self) -> str: ...

class RegionDesc:
    """
    What a peer needs to reach a region. A value: compare it, pack it, send it.
    """

    @staticmethod
    def unpack(blob: Buffer) -> RegionDesc:
        """
        Raises Corrupt for bytes that are no descriptor, Incompatible for another version.
        """

    def pack(self) -> bytes: ...

    @property
    def instance(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def generation(self) -> int: ...

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def shareable(self) -> bool: ...

    @property
    def access(self) -> Access: ...

    def __eq__(self, other: object) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

class Region:
    """
    Memory registered with an engine. Has the buffer protocol: memoryview(region), numpy.asarray(region). A context manager that deregisters.
    """

    def descriptor(self) -> bytes:
        """What a peer needs to reach this region."""

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def access(self) -> Access:
        """What peers may do: "ro" or "rw"."""

    def deregister(self, timeout: Timeout | None = None) -> None:
        """
        Ends the registration. After it no peer touches the memory any more. Raises Busy if a peer is still inside at the timeout; call again to go on waiting.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: types.TracebackType | None) -> None: ...

    def __repr__(self) -> str: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Transfer:
    """The handle of a submitted batch. Dropping it lets the transfer run on."""

    def wait(self, timeout: Timeout | None = None) -> None:
        """
        Returns when all bytes are in place; raises what went wrong otherwise. In both cases nothing touches the local memory any more. Past the timeout (default: the deadline given at submission) the transfer is cancelled and TimedOut raised.
        """

    def poll(self, timeout: Timeout = 0) -> Phase:
        """
        The phase, after copying for at most `timeout`. Never cancels, never raises the outcome.
        """

    def cancel(self) -> Phase:
        """
        Ends the transfer. When it returns, nothing touches the local memory any more. The phase tells whether it had succeeded before.
        """

    @property
    def phase(self) -> Phase: ...

    @property
    def error(self) -> stagelink.errors.Error | None:
        """Why it failed, as the exception that wait() raises; else None."""

    @property
    def nbytes(self) -> int: ...

    def __repr__(self) -> str: ...

class Session:
    """A peer, local regions and remote regions, prepared for transfers."""

    def read(self, local_offsets: Indices, remote_offsets: Indices, sizes: Indices, local_regions: Indices | None = None, remote_regions: Indices | None = None, timeout: Timeout | None = None) -> Transfer:
        """
        Starts copying sizes[i] bytes from remote_offsets[i] of remote region remote_regions[i] to local_offsets[i] of local region local_regions[i], for all i, and returns. All or nothing: a range out of bounds refuses the batch before a byte moves. An int is one range; sizes and region indices may be one int for all ranges. Without region indices all ranges lie in region 0. In a session BY_ADDRESS, remote offsets are addresses in the peer.
        """

    def write(self, local_offsets: Indices, remote_offsets: Indices, sizes: Indices, local_regions: Indices | None = None, remote_regions: Indices | None = None, timeout: Timeout | None = None) -> Transfer:
        """As read(), from local to remote."""

    def read_strided(self, local_offset: int, remote_offset: int, nbytes: int, count: int, local_stride: int, remote_stride: int, local_region: int = 0, remote_region: int = 0, timeout: Timeout | None = None) -> Transfer:
        """Reads `count` pieces of `nbytes`, a stride apart on each side."""

    def write_strided(self, local_offset: int, remote_offset: int, nbytes: int, count: int, local_stride: int, remote_stride: int, local_region: int = 0, remote_region: int = 0, timeout: Timeout | None = None) -> Transfer:
        """Writes `count` pieces of `nbytes`, a stride apart on each side."""

    def explain(self) -> str:
        """
        One line for each remote region: the transport that serves it, and why it was chosen.
        """

class ByAddress:
    def __repr__(self) -> str: ...

BY_ADDRESS: ByAddress = ...

class Peer:
    """
    Another engine, connected: one life of one process. After PeerLost, connect again.
    """

    def session(self, local: Region | Sequence[Region], remote: RemoteRegions | ByAddress) -> Session:
        """
        Prepares transfers between local regions and regions of the peer (RegionDesc, packed or not), or, with remote=BY_ADDRESS, whatever the peer has registered.
        """

    def notify(self, payload: Buffer, after: Transfer | None = None) -> None:
        """
        Sends a message; with `after`, one that arrives only once that transfer has ended.
        """

    def close(self) -> None:
        """Ends the connection and its sessions."""

    @property
    def instance(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def phase(self) -> PeerPhase: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: types.TracebackType | None) -> None: ...

    def __repr__(self) -> str: ...

class Engine:
    """
    The endpoint of one process. A context manager that closes. All methods may run at the same time, and release the interpreter lock while they wait or copy.
    """

    def __init__(self, config: str | os.PathLike[str] | None = None, *, name: str | None = None, bind: str | None = None, interface: str | None = None, advertise: str | None = None, runtime_dir: str | None = None, secret_file: str | None = None, transports: Sequence[str] | None = None, inline_bytes: Size | None = None, slice_bytes: Size | None = None, copy_threads: int | None = None, streaming_min_bytes: Size | None = None, cma_min_run: Size | None = None, allow_ptrace: bool | None = None, stream_stripes: int | None = None, stripe_min_bytes: Size | None = None, checksum: bool | None = None, max_regions: int | None = None, max_peers: int | None = None, max_transfers: int | None = None, max_ranges: int | None = None, max_notification_bytes: Size | None = None, connect_timeout: Timeout | None = None, transfer_timeout: Timeout | None = None, deregister_timeout: Timeout | None = None, heartbeat_interval: Timeout | None = None, heartbeat_misses: int | None = None, pin: Effort | None = None, huge_pages: Effort | None = None, prefault: Effort | None = None, numa_node: int | None = None, fault_seed: int | None = None, fault_drop_ppm: int | None = None, fault_delay_ppm: int | None = None, fault_cut_ppm: int | None = None, fault_flip_ppm: int | None = None) -> None:
        """
        Options come, in rising order of precedence, from defaults, the file `config`, the environment (STAGELINK_...), and the keywords.
        """

    def allocate(self, size: Size, access: Access = 'rw', pin: Effort | None = None, huge_pages: Effort | None = None, prefault: Effort | None = None, numa_node: int | None = None) -> Region:
        """
        Memory that peers on this host map and copy directly. Zeroed. `access` is what peers may do; the rest overrides the engine's options.
        """

    def register(self, memory: object, access: Access = 'rw') -> Region:
        """
        Makes existing memory reachable: an array, a tensor of the host's memory, anything with the buffer protocol, or (address, nbytes). The region keeps the object alive until it is deregistered.
        """

    def connect(self, target: Buffer | str, timeout: Timeout | None = None) -> Peer:
        """Connects to an engine by its descriptor() or its "host:port"."""

    def notifications(self, timeout: Timeout = 0, max: int = 256) -> list[Notification]:
        """
        Messages that have arrived, at most `max`, oldest first for each peer. Waits for the first one; an empty list means that none came.
        """

    def fileno(self) -> int:
        """
        A descriptor that is readable while notifications wait, for event loops. The engine owns it.
        """

    def descriptor(self) -> bytes:
        """What a peer passes to connect()."""

    @property
    def address(self) -> str:
        """"host:port", as told to peers."""

    @property
    def name(self) -> str: ...

    @property
    def instance(self) -> str:
        """The id of this life of this engine, 32 hex digits."""

    def metrics_text(self) -> str:
        """All counters, in the text format of Prometheus."""

    def __repr__(self) -> str: ...

    def close(self, timeout: Timeout | None = None) -> None:
        """
        Ends all transfers, tells the peers, gives everything back. May be called again. Raises Busy, naming what still holds memory.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: types.TracebackType | None) -> None: ...

class ObjectPiece:
    """Memory of an object that is being put; see ObjectWriter.pieces()."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class ObjectWriter:
    """
    An object that is being put. A context manager that aborts what is not sealed.
    """

    def pieces(self) -> list[memoryview]:
        """
        The object's memory, in order: one writable piece, but for what a store must split. Write nothing after seal().
        """

    def append(self, data: object) -> None:
        """Copies bytes, an array or a tensor behind what was appended before."""

    def seal(self) -> None:
        """
        Publishes the object: gets find it from now on, and who waits for it is woken.
        """

    def abort(self) -> None:
        """Gives the memory back. May be called again."""

    @property
    def size(self) -> int: ...

    @property
    def generation(self) -> int:
        """That of the put, once it is sealed; 0 before."""

    def __enter__(self) -> Self: ...

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: types.TracebackType | None) -> None: ...

class ObjectView:
    """
    A lease on a sealed object: its bytes stay as they are until it is released. Has the buffer protocol, read-only: memoryview(view), numpy.frombuffer(view). A context manager that releases.
    """

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int: ...

    @property
    def generation(self) -> int: ...

    @property
    def address(self) -> int: ...

    def check(self) -> None:
        """Raises if the bytes can no longer be trusted to stay."""

    def release(self) -> None:
        """Ends the lease, as soon as no buffer looks at it. May be called again."""

    def __bytes__(self) -> bytes: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: types.TracebackType | None) -> None: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...

class ObjectStore:
    """
    Sealed bytes under keys, shared by the processes that open the same store. A context manager that closes. All methods may run at the same time, and release the interpreter lock while they wait or copy.
    """

    def __init__(self, config: str | os.PathLike[str] | None = None, *, backend: str | None = None, eviction: str | None = None, ttl: Timeout | None = None, name: str | None = None, directory: str | None = None, capacity: Size | None = None, max_objects: int | None = None, keep: bool | None = None, lock_timeout: Timeout | None = None, host: str | None = None, port: int | None = None, connect_timeout: Timeout | None = None, request_timeout: Timeout | None = None, exclusive_connection: bool | None = None, cross_node_connection: bool | None = None, write_mode: str | None = None, chunk_bytes: Size | None = None, health_interval: Timeout | None = None, etcd_address: str | None = None, ring: str | None = None, ring_timeout: Timeout | None = None, tenant_id: str | None = None, access_key_file: str | None = None, secret_key_file: str | None = None, client_public_key_file: str | None = None, client_private_key_file: str | None = None, server_public_key_file: str | None = None, token_file: str | None = None, sdk_path: str | None = None) -> None:
        """
        Options come, in rising order of precedence, from defaults, section `store` of the file `config`, the environment (STAGELINK_STORE_...), and the keywords.
        """

    def create(self, key: str | Buffer, size: Size, timeout: Timeout = 5, ttl: Timeout | None = None) -> ObjectWriter:
        """
        Begins a put. Waits up to `timeout` for space. `ttl`: how long the object lives; None for the store's default, 0 for ever.
        """

    def put(self, key: str | Buffer, data: object, timeout: Timeout = 5, ttl: Timeout | None = None) -> int:
        """
        Copies bytes, an array or a tensor into the store. Gives the generation of the put.
        """

    def get(self, key: str | Buffer, timeout: Timeout = 0) -> ObjectView:
        """
        The object, without a copy. Waits up to `timeout` for its put; looks once with 0. Raises NotFound, TimedOut, Superseded and others.
        """

    def get_many(self, keys: Iterable[str | Buffer], timeout: Timeout = 0) -> list[ObjectView | BaseException]:
        """
        One answer a key, in order: a view, or the exception that get() would raise. The deadline is common.
        """

    def exists(self, key: str | Buffer) -> bool: ...

    def erase(self, key: str | Buffer, generation: int = 0) -> None:
        """
        Also if there is none. With a generation, only that one is erased. Views stay.
        """

    def expire(self, key: str | Buffer, ttl: Timeout | None) -> None:
        """The object goes `ttl` from now; None: never. Raises NotFound."""

    def usage(self) -> dict[str, int]: ...

    def check(self) -> None:
        """Raises if operations fail just now. Does not wait for the store."""

    def metrics_text(self) -> str:
        """All counters, in the text format of Prometheus."""

    @property
    def name(self) -> str: ...

    def __repr__(self) -> str: ...

    def close(self, timeout: Timeout = 5) -> None:
        """Ends what waits. Views stay valid. May be called again."""

    def __enter__(self) -> Self: ...

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: types.TracebackType | None) -> None: ...

def moriio_decode_notify(frame: Buffer) -> dict[str, Any]:
    """
    A notification as its keys; `type` is remote_blocks, write_done, write_failed, release, renew or legacy. Raises Corrupt, naming the key.
    """

def moriio_encode_notify(message: dict[str, Any]) -> bytes: ...

def moriio_decode_agent_metadata(frame: Buffer) -> dict[str, Any]: ...

def moriio_encode_agent_metadata(metadata: dict[str, Any]) -> bytes: ...

def moriio_decode_layer_map(frame: Buffer) -> dict[str, list[bytes]]: ...

def moriio_encode_layer_map(layers: dict[str, list[bytes]]) -> bytes: ...

def moriio_decode_heartbeat(frame: Buffer) -> dict[str, Any]: ...

def moriio_encode_heartbeat(heartbeat: dict[str, Any]) -> bytes: ...

def moriio_parse_zmq_address(text: str) -> tuple[str, int, int]:
    """
    Host, handshake port and notify port of `host:IP,handshake:PORT,notify:PORT`.
    """

def moriio_parse_request_id(request_id: str) -> tuple[tuple[str, int, int], tuple[str, int, int]]:
    """The addresses of prefill and decode. Raises NotFound if it holds none."""

def moriio_format_request_id(prefill: tuple[str, int, int], decode: tuple[str, int, int], unique: str) -> str: ...

def moriio_rank_port(base: int, dp_local: int, tp: int, tp_size: int) -> int:
    """Port of a rank of the engine whose base port and TP size are given."""

def moriio_remote_tp_rank(local_rank: int, local_size: int, remote_size: int) -> int: ...

def moriio_expected_ack_count(producer_size: int, consumer_size: int) -> int: ...

def moriio_options(extra: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """
    kv_connector_extra_config as values by key, timeouts in seconds, and what to log once. Raises InvalidArgument, naming the key.
    """

class BlockGeometry:
    """Where the bytes of a block lie in the cache of one layer."""

    @staticmethod
    def find(shape: Sequence[int], strides: Sequence[int], element_bytes: int, *, block_size: int, num_kv_heads: int = 0, head_size: int = 0, num_states: int = 0, content_bytes: int = 0, mla: bool = False, layout: str = "auto", axes: str = "auto", opaque: bool = False) -> BlockGeometry:
        """
        Sizes and strides in elements; 0 is not known. Raises Incompatible ("layout mismatch") where the tensor fits no layout or can be read in two ways.
        """

    def with_num_blocks(self, num_blocks: int) -> BlockGeometry:
        """That of a peer whose cache differs in the number of blocks alone."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_stride(self) -> int:
        """Bytes between two blocks."""

    @property
    def layout(self) -> str: ...

    @property
    def block_len(self) -> int: ...

    @property
    def extent(self) -> int:
        """Bytes that a registration must cover."""

    def __repr__(self) -> str: ...

class RunTemplate:
    """How any block of ours corresponds to any block of theirs."""

    @staticmethod
    def of(local: BlockGeometry, remote: BlockGeometry, heads: tuple[int, int, int] | None = None) -> RunTemplate:
        """
        Whole blocks, or heads: (first of ours, first of theirs, how many). Raises Incompatible, naming the field.
        """

    @staticmethod
    def of_states(local: tuple[int, int, Sequence[tuple[int, int]]], remote: tuple[int, int, Sequence[tuple[int, int]]]) -> RunTemplate:
        """
        State of a mamba or KDA layer: (slots, bytes between them, [(offset, bytes)]).
        """

    @property
    def block_bytes(self) -> int: ...

    @property
    def runs(self) -> list[tuple[int, int, int]]: ...

def plan_blocks(layout: RunTemplate, local: Indices, remote: Indices, *, local_base: int = 0, remote_base: int = 0, max_run_bytes: Size = "1GiB", skip_null_block: bool = True) -> tuple[Buffer, Buffer, Buffer]:
    """
    Local offsets, remote offsets and sizes of block pairs as NumPy arrays of uint64, neighbours merged. Block 0 is never moved. Raises OutOfBounds, naming list and id.
    """

def head_routes_to(heads: int, source_size: int, destination_size: int, rank: int) -> list[tuple[int, tuple[int, int, int]]]:
    """
    From which source ranks a destination rank takes its KV heads: (rank, (first of ours, first of theirs, how many)).
    """

def head_routes_from(heads: int, source_size: int, destination_size: int, rank: int) -> list[tuple[int, tuple[int, int, int]]]:
    """The same pairs as a source rank sees them."""

def compat_differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """
    One line for each field that must be equal and is not: "field: ours X, theirs Y".
    """

def compat_hash(description: Mapping[str, str]) -> str: ...

class BackendType(enum.IntEnum):
    """RDMA stands for the best way to each peer, TCP for tcp alone."""

    Unknown = 0

    XGMI = 1

    RDMA = 2

    TCP = 3

    FABRIC = 4

class MemoryLocationType(enum.IntEnum):
    Unknown = 0

    CPU = 1

    GPU = 2

class PollCqMode(enum.IntEnum):
    """Without effect: nothing polls here."""

    POLLING = 0

    EVENT = 1

class StatusCode(enum.IntEnum):
    SUCCESS = 0

    INIT = 1

    IN_PROGRESS = 2

    ERR_INVALID_ARGS = 11

    ERR_NOT_FOUND = 12

    ERR_RDMA_OP = 13

    ERR_BAD_STATE = 14

    ERR_GPU_OP = 15

class EngineDesc:
    """
    Where an IO engine can be reached. A value: compare it, pack it, send it.
    """

    @property
    def key(self) -> str: ...

    @property
    def node_id(self) -> str: ...

    @property
    def hostname(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def pid(self) -> int: ...

    def __repr__(self) -> str: ...

    def pack(self) -> bytes: ...

    @staticmethod
    def unpack(blob: Buffer) -> EngineDesc:
        """Raises Corrupt, naming the field."""

    def __eq__(self, other: object) -> bool: ...

    def __hash__(self) -> int: ...

class MemoryDesc:
    """Memory that peers may reach. A value: compare it, pack it, send it."""

    @property
    def engine_key(self) -> str: ...

    @property
    def id(self) -> int: ...

    @property
    def device_id(self) -> int: ...

    @property
    def device_bus_id(self) -> str: ...

    @property
    def numa_node(self) -> int: ...

    @property
    def data(self) -> int:
        """The address in the owner's process."""

    @property
    def size(self) -> int: ...

    @property
    def loc(self) -> MemoryLocationType: ...

    @property
    def ipc_handle(self) -> bytes: ...

    def __repr__(self) -> str: ...

    def pack(self) -> bytes: ...

    @staticmethod
    def unpack(blob: Buffer) -> MemoryDesc:
        """Raises Corrupt, naming the field."""

    def __eq__(self, other: object) -> bool: ...

    def __hash__(self) -> int: ...

class IOEngineConfig:
    """
    Where an engine listens. An empty host is what option `bind` says (127.0.0.1); port 0 takes any free one. `options`: further options of stagelink.Engine by name.
    """

    def __init__(self, host: str = '', port: int = 0, options: Mapping[str, object] | None = None) -> None: ...

    @property
    def host(self) -> str: ...

    @host.setter
    def host(self, arg: str, /) -> None: ...

    @property
    def port(self) -> int: ...

    @port.setter
    def port(self, arg: int, /) -> None: ...

class RdmaBackendConfig:
    """
    mori's settings. `enable_notification` is obeyed; the others are kept and have no effect, because there are no queue pairs.
    """

    def __init__(self, qp_per_transfer: int = 1, post_batch_size: int = -1, num_worker_threads: int = -1, poll_cq_mode: PollCqMode = ..., enable_notification: bool = True, notif_per_qp: int = 1024, enable_transfer_chunking: bool = False, chunk_bytes: int = 65536, max_chunks_per_transfer: int = 64, num_nics_per_transfer: int = 1) -> None: ...

    @property
    def qp_per_transfer(self) -> int: ...

    @qp_per_transfer.setter
    def qp_per_transfer(self, arg: int, /) -> None: ...

    @property
    def post_batch_size(self) -> int: ...

    @post_batch_size.setter
    def post_batch_size(self, arg: int, /) -> None: ...

    @property
    def num_worker_threads(self) -> int: ...

    @num_worker_threads.setter
    def num_worker_threads(self, arg: int, /) -> None: ...

    @property
    def poll_cq_mode(self) -> PollCqMode: ...

    @poll_cq_mode.setter
    def poll_cq_mode(self, mode: PollCqMode, /) -> None: ...

    @property
    def enable_notification(self) -> bool: ...

    @enable_notification.setter
    def enable_notification(self, arg: bool, /) -> None: ...

    @property
    def notif_per_qp(self) -> int: ...

    @notif_per_qp.setter
    def notif_per_qp(self, arg: int, /) -> None: ...

    @property
    def enable_transfer_chunking(self) -> bool: ...

    @enable_transfer_chunking.setter
    def enable_transfer_chunking(self, arg: bool, /) -> None: ...

    @property
    def chunk_bytes(self) -> int: ...

    @chunk_bytes.setter
    def chunk_bytes(self, arg: int, /) -> None: ...

    @property
    def max_chunks_per_transfer(self) -> int: ...

    @max_chunks_per_transfer.setter
    def max_chunks_per_transfer(self, arg: int, /) -> None: ...

    @property
    def num_nics_per_transfer(self) -> int: ...

    @num_nics_per_transfer.setter
    def num_nics_per_transfer(self, arg: int, /) -> None: ...

    @property
    def max_send_wr(self) -> int: ...

    @max_send_wr.setter
    def max_send_wr(self, arg: int, /) -> None: ...

    @property
    def max_cqe_num(self) -> int: ...

    @max_cqe_num.setter
    def max_cqe_num(self, arg: int, /) -> None: ...

    @property
    def max_msg_sge(self) -> int: ...

    @max_msg_sge.setter
    def max_msg_sge(self, arg: int, /) -> None: ...

class XgmiBackendConfig:
    """
    mori's settings for copies between GPUs of one host. create_backend() refuses them by name.
    """

    def __init__(self, num_streams: int = 64, num_events: int = 64) -> None: ...

    @property
    def num_streams(self) -> int: ...

    @num_streams.setter
    def num_streams(self, arg: int, /) -> None: ...

    @property
    def num_events(self) -> int: ...

    @num_events.setter
    def num_events(self, arg: int, /) -> None: ...

class FabricBackendConfig:
    """
    mori's settings for copies over a GPU fabric. create_backend() refuses them by name.
    """

    def __init__(self, num_streams: int = 64, num_events: int = 64) -> None: ...

    @property
    def num_streams(self) -> int: ...

    @num_streams.setter
    def num_streams(self, arg: int, /) -> None: ...

    @property
    def num_events(self) -> int: ...

    @num_events.setter
    def num_events(self, arg: int, /) -> None: ...

def set_log_level(level: str) -> None:
    """
    Of this process, for all of stagelink: trace debug info warning error critical off.
    """

class TransferStatus:
    """What became of a transfer. Dropping it lets the transfer run on."""

    def __init__(self) -> None: ...

    def Code(self) -> StatusCode: ...

    def Message(self) -> str:
        """Why it failed; else empty."""

    def Init(self) -> bool: ...

    def InProgress(self) -> bool: ...

    def Succeeded(self) -> bool: ...

    def Failed(self) -> bool: ...

    def Update(self, code: StatusCode, message: str) -> None:
        """Sets both, unless there is an error already. Wakes waiters."""

    def SetCode(self, code: StatusCode) -> None:
        """Whatever it was. Wakes waiters."""

    def SetMessage(self, message: str) -> None: ...

    def Wait(self) -> None:
        """Returns when the transfer is over: look at Code() then."""

    def WaitFor(self, timeout_ms: int = -1) -> StatusCode:
        """
        The code, which is IN_PROGRESS if the transfer goes on after the timeout. A negative timeout is none.
        """

    def Cancel(self) -> StatusCode:
        """
        Ends the transfer. When it returns, nothing touches the local memory any more; the code tells whether it had succeeded before. Not part of mori.
        """

    def __repr__(self) -> str: ...

class IOEngineSession:
    """One local and one remote memory, prepared for transfers."""

    def read(self, local_offset: int, remote_offset: int, size: int, transfer_uid: int) -> TransferStatus:
        """Starts reading one range."""

    def write(self, local_offset: int, remote_offset: int, size: int, transfer_uid: int) -> TransferStatus:
        """Starts writing one range."""

    def batch_read(self, local_offsets: Indices, remote_offsets: Indices, sizes: Indices, transfer_uid: int) -> TransferStatus:
        """
        Starts reading sizes[i] bytes at remote_offsets[i] to local_offsets[i], for all i, under one status. What is refused ("SQ full", "length out of range") is a status that has failed on return, and no byte has moved.
        """

    def batch_write(self, local_offsets: Indices, remote_offsets: Indices, sizes: Indices, transfer_uid: int) -> TransferStatus:
        """As batch_read(), from local to remote."""

    def allocate_transfer_uid(self) -> int: ...

    def alive(self) -> bool:
        """The peer answers, and what the session stands on is still registered."""

    def explain(self) -> str:
        """The transport that serves it, and why it was chosen. Not part of mori."""

class TransportBackendConfig:
    """
    Our own choice of transports, by preference: shm cma unix tcp. Not part of mori.
    """

    def __init__(self, transports: Sequence[str], enable_notification: bool = True) -> None: ...

class IOEngine:
    """
    mori's IOEngine over stagelink's engine. All methods may run at the same time, and release the interpreter lock while they wait or copy.
    """

    def __init__(self, key: str, config: IOEngineConfig = ...) -> None: ...

    def get_engine_desc(self) -> EngineDesc:
        """Where this engine can be reached."""

    def create_backend(self, type: BackendType, config: RdmaBackendConfig | TransportBackendConfig | XgmiBackendConfig | FabricBackendConfig | None = None) -> None:
        """
        RDMA takes the best way to each peer, TCP takes tcp alone. XGMI and FABRIC raise NotImplementedError.
        """

    def remove_backend(self, type: BackendType) -> None:
        """Its sessions fail from now on."""

    def register_remote_engine(self, engine_desc: EngineDesc) -> None:
        """Known from now on; connected when first needed."""

    def deregister_remote_engine(self, engine_desc: EngineDesc) -> None:
        """Ends its sessions."""

    def allocate(self, size: Size, pin: Effort | None = None, huge_pages: Effort | None = None) -> IOMemory:
        """
        Zeroed memory that peers on this host map and copy directly. What is registered inside it is reached that way. Not part of mori.
        """

    def register_memory(self, ptr: int, size: int, device_id: int = -1, loc: MemoryLocationType = ...) -> MemoryDesc:
        """Memory of the caller, who keeps it valid until it is deregistered."""

    def register_torch_tensor(self, tensor: object) -> MemoryDesc:
        """
        The tensor is kept until it is deregistered. RuntimeError unless it is contiguous, KeyError for a device that is neither cpu nor cuda.
        """

    def deregister_memory(self, mem_desc: MemoryDesc) -> None:
        """
        After it no peer reaches the memory any more; memory inside an allocation stays reachable as long as that lives. Raises Busy while a peer is inside: call again.
        """

    def read(self, local: MemoryDesc, local_offset: int, remote: MemoryDesc, remote_offset: int, size: int, transfer_uid: int) -> TransferStatus:
        """Starts reading one range."""

    def write(self, local: MemoryDesc, local_offset: int, remote: MemoryDesc, remote_offset: int, size: int, transfer_uid: int) -> TransferStatus:
        """Starts writing one range."""

    @overload
    def batch_read(self, local: MemoryDesc, local_offsets: Indices, remote: MemoryDesc, remote_offsets: Indices, sizes: Indices, transfer_uids: int) -> TransferStatus:
        """
        As IOEngineSession.batch_read(), with a session that the engine makes and keeps.
        """

    @overload
    def batch_read(self, local: Sequence[MemoryDesc], local_offsets: Sequence[Indices], remote: Sequence[MemoryDesc], remote_offsets: Sequence[Indices], sizes: Sequence[Indices], transfer_uids: Sequence[int]) -> list[TransferStatus]:
        """Lists of equal length: one transfer, and one status, for each index."""

    @overload
    def batch_write(self, local: MemoryDesc, local_offsets: Indices, remote: MemoryDesc, remote_offsets: Indices, sizes: Indices, transfer_uids: int) -> TransferStatus:
        """As batch_read(), from local to remote."""

    @overload
    def batch_write(self, local: Sequence[MemoryDesc], local_offsets: Sequence[Indices], remote: Sequence[MemoryDesc], remote_offsets: Sequence[Indices], sizes: Sequence[Indices], transfer_uids: Sequence[int]) -> list[TransferStatus]:
        """Lists of equal length: one transfer, and one status, for each index."""

    def create_session(self, local: MemoryDesc, remote: MemoryDesc) -> IOEngineSession | None:
        """
        None if there is no backend, or the remote memory cannot be reached; the log says why.
        """

    def allocate_transfer_uid(self) -> int: ...

    def pop_inbound_transfer_status(self, remote_key: str, transfer_uid: int) -> TransferStatus | None:
        """
        How a transfer ended that a peer has begun: once for each, then None again.
        """

    @staticmethod
    def wait_all(statuses: Sequence[TransferStatus], timeout_ms: int = -1) -> StatusCode:
        """
        The first error there is, though another is still in progress; SUCCESS when all have succeeded; IN_PROGRESS after the timeout.
        """

    def metrics_text(self) -> str:
        """All counters, in the text format of Prometheus. Not part of mori."""

    def close(self, timeout: Timeout | None = None) -> None:
        """
        Ends all transfers and gives everything back. May be called again. Not part of mori.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: types.TracebackType | None) -> None: ...

    Session: TypeAlias = IOEngineSession

class IOMemory:
    """
    Memory of IOEngine.allocate(). Has the buffer protocol: torch.frombuffer(memory, dtype=...), numpy.asarray(memory). Lives as long as it, a view of it or a registration in it.
    """

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...

class PeerAddress:
    """Another engine of a connector, as a request speaks of it."""

    def __init__(self, host: str, hosts: Sequence[str], ports: tuple[int, int], tp_size: int, dp: tuple[int, int]) -> None:
        """
        `ports`: base of handshakes, base of notifications. `tp_size`: 0 for as ours. `dp`: global data parallel rank, ranks in one pod.
        """

class CacheLayer:
    """One layer of a KV cache."""

    def __init__(self, name: str, place: tuple[int, int], base: int, shape: Sequence[int], strides: Sequence[int], element_bytes: int) -> None:
        """`place`: index of its group, index of its memory. Strides in elements."""

    def describe(self, block_size: int, kv_heads: int, head_size: int, content_bytes: int, mla: bool, opaque: bool) -> None:
        """What the engine knows of the layer apart from the tensor."""

class ConnectorRank:
    """
    The data plane of one rank of a MoRIIO connector: whole requests, by block ids.
    """

    def __init__(self, engine: IOEngine, **options: object) -> None: ...

    def serve(self, memories: Sequence[MemoryDesc], layers: Sequence[CacheLayer], about: dict[str, object]) -> None:
        """
        Listens for handshakes and notifications; the ports are bound when it returns.
        """

    def connect(self, places: Sequence[tuple[str, int]], timeout: Timeout) -> list[tuple[str, str] | None]:
        """Shakes hands with each; None, or reason and text of the failure."""

    def producers(self, peer: PeerAddress) -> list[tuple[str, int]]:
        """Handshake places of the ranks that this rank takes from."""

    def linked(self, places: Sequence[tuple[str, int]]) -> bool: ...

    def take_wanted(self) -> list[tuple[str, int]]:
        """Places for which writes wait; each is given once."""

    def refuse_link(self, place: tuple[str, int], reason: str, text: str) -> None:
        """Writes to that place fail."""

    def read(self, transfer_id: str, peer: PeerAddress, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], timeout: Timeout) -> tuple[str, str] | None:
        """Starts pulling blocks: for each group, ours and the peer's."""

    def wait_read(self, transfer_id: str, timeout: Timeout) -> tuple[str, str] | None: ...

    def cancel_read(self, transfer_id: str, timeout: Timeout) -> tuple[str, str] | None: ...

    def receive(self, transfer_id: str, peer: PeerAddress, request_id: str, token: str, spans: Sequence[tuple[int, Sequence[int]]]) -> tuple[str, str] | None:
        """
        Tells the peer where its blocks go: for each group the first index, and the blocks.
        """

    def producers_alive(self, peer: PeerAddress) -> bool: ...

    def end_received(self, transfer_id: str, reason: str, text: str) -> bool:
        """The end of a load that did not begin, or that nobody reports any more."""

    def release(self, transfer_id: str, peer: PeerAddress, token: str = '') -> tuple[str, str] | None:
        """Tells the peer that its blocks are not wanted (any more)."""

    def offer(self, transfer_id: str, token: str, releases: int) -> tuple[str, str] | None:
        """
        Blocks wait for readers: for `releases` of them, or (0) as many as they say.
        """

    def end_offer(self, transfer_id: str, reason: str, text: str) -> bool: ...

    def start_write(self, transfer_id: str, request_id: str, peer: PeerAddress, token: str) -> tuple[str, str] | None: ...

    def add_chunk(self, transfer_id: str, spans: Sequence[tuple[int, Sequence[int]]], last: bool) -> int:
        """Blocks that follow those before; the number of the chunk."""

    def write_layer(self, transfer_id: str, chunk: int, layer: int, event: object | None = None) -> tuple[str, str] | None:
        """
        The layer's blocks of a chunk are complete, or will be when the event is over.
        """

    def seal(self, transfer_id: str) -> None: ...

    def abort_write(self, transfer_id: str, why: str, timeout: Timeout = 0) -> bool:
        """
        No more is written, and the peer is told. True if nothing reads the blocks any more; waits for that if asked to.
        """

    def take_events(self) -> list[tuple[str, str, tuple[str, str] | None, int, int]]:
        """
        Kind, transfer id, failure, bytes and ranges of each transfer that has ended.
        """

    @property
    def incarnation(self) -> str: ...

    @property
    def bytes_moved(self) -> int: ...

    def metrics_text(self) -> str: ...

    def close(self) -> None:
        """Stops what runs. May be called again."""

class MoriioControl:
    """
    Notifications of one rank: listener, senders and the table of transfers.
    """

    def __init__(self, role: str = 'any', *, tp_size: int = 0, zmq_library: str = '', notify_timeout: Timeout = 5, unmatched_timeout: Timeout = 120) -> None:
        """
        ZeroMQ is loaded from `zmq_library`, or by its name, when it is first needed.
        """

    def listen(self, host: str, port: int, *, allow_wildcard: bool = False) -> tuple[str, int]:
        """Starts the notify listener; the bound (host, port)."""

    def notify(self, host: str, port: int, transfer_id: str, type: str | None = None, *, consumer_tp_size: int = 1, wait: bool = False) -> None:
        """
        Sends one notification; a bare id without a type. Unless told to wait it returns at once, and a failure is logged and counted.
        """

    def handle_frame(self, frame: Buffer) -> None:
        """As if the frame had come to the notify port."""

    def rejects(self) -> dict[str, int]:
        """Messages that were not acted upon, by reason."""

    def metrics_text(self) -> str: ...

    @property
    def incarnation(self) -> str: ...

    def close(self) -> None:
        """Stops the listener and joins its thread."""

    def allocation(self, transfer_id: str) -> tuple[str, list[int], int] | None:
        """(request id, block ids, decode rank) of remote_blocks, or None."""

    def set_allocation(self, transfer_id: str, request_id: str, block_ids: Sequence[int], decode_rank: int) -> None:
        """As if remote_blocks had come."""

    def drop_allocation(self, transfer_id: str) -> bool: ...

    def allocated(self) -> list[str]:
        """Ids of the transfers whose blocks are known."""

    def take_acks(self) -> list[tuple[str, int]]:
        """Releases since the last call: (id, consumer_tp_size)."""

    def take_completions(self) -> list[str]:
        """Ids of the writes that have been reported done since the last call."""

    def take_events(self) -> list[tuple[str, str, str, str]]:
        """(kind, id, reason, message) of what the other two do not tell."""

    def add_ack(self, transfer_id: str, consumer_tp_size: int = 1) -> None: ...

    def ended(self, transfer_id: str) -> bool: ...

    def mark_ended(self, transfer_id: str) -> None:
        """Late messages of it are ignored from now on."""

class MoriioPush:
    """
    Writes layers of transfers to where the consumer says, and tells it when all is there.
    """

    def __init__(self, control: MoriioControl, host: object, *, tp_rank: int = 0, defer_timeout: Timeout = 60, transfer_timeout: Timeout = 30) -> None:
        """
        `host` has consumer_of(), plan() and post(); they are called by the writer's thread.
        """

    def schedule(self, task: object, request_id: str, transfer_id: str, layer_name: str, age: Timeout = 0) -> bool:
        """
        `task` is what the host gets again; its `event` is None or has synchronize(). False if that layer is scheduled already or the transfer has ended.
        """

    def is_scheduled(self, transfer_id: str, layer_name: str) -> bool: ...

    def seal_pending(self) -> None:
        """
        What is scheduled so far is all there is of these transfers. Never waits.
        """

    def abort(self, transfer_id: str, timeout: Timeout = 5) -> None:
        """
        When it returns nothing of the transfer touches memory any more. Raises TimedOut, and goes on.
        """

    def state(self, transfer_id: str) -> str: ...

    @property
    def active(self) -> int: ...

    @property
    def batches_posted(self) -> int: ...

    @property
    def bytes_written(self) -> int: ...

    def close(self) -> None:
        """Aborts what is under way and joins the thread."""

def omni_load_config(path: str, platform: str = '') -> str:
    """A pipeline's configuration as JSON: stages, edges, ports."""

def omni_read_config(json: str, name: str, platform: str = '') -> str:
    """The same of a text."""

def omni_stage(json: str, stage: str) -> str:
    """What one stage is given of a configuration's edges, as JSON."""

def omni_resolve_connector(json: str, stage_id: int, role: str, purpose: str, local_rank: int, replica: int) -> str:
    """A connector's name and extra for one worker, as JSON."""

def omni_connector_port(base: int, purpose: str, from_stage: int, local_rank: int, replica: int) -> int:
    """The port of a transfer engine's sender."""

class StoreConnector:
    """The core of stagelink.connectors.YuanrongConnector."""

    def __init__(self, extra: str) -> None: ...

    @property
    def options(self) -> dict[str, Any]: ...

    def put(self, from_stage: str, to_stage: str, id: str, plan: EncodePlan) -> bool:
        """
        Write a payload's plan into the store. False: it was not put; why is counted.
        """

    def get(self, from_stage: str, to_stage: str, id: str, timeout: float | str) -> ObjectView | None:
        """
        The payload, or None; why is counted. End it with `consumed` or `spoiled`.
        """

    def consumed(self, from_stage: str, to_stage: str, id: str, view: ObjectView, decoding: float) -> None:
        """The payload was decoded, in so many seconds."""

    def spoiled(self, from_stage: str, to_stage: str, id: str, view: ObjectView, decoding: float, why: str) -> None:
        """The payload cannot be decoded."""

    def cleanup(self, id: str, from_stage: str | None = None, to_stage: str | None = None) -> None: ...

    def reap_consumed(self) -> int: ...

    def refuse(self, from_stage: str, to_stage: str, id: str, why: str) -> None:
        """Count and log a put whose payload has no form."""

    def refuse_get(self, why: str) -> None:
        """Count and log a get whose key cannot be."""

    def outcomes(self) -> list[tuple[str, str, int, int]]:
        """(reason, code, puts, gets) of whatever came to pass."""

    @property
    def put_bytes(self) -> int: ...

    @property
    def get_bytes(self) -> int: ...

    @property
    def unconsumed(self) -> int: ...

    def check_health(self) -> str:
        """Empty, or why the store does not work just now."""

    def metrics_text(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    def close(self, timeout: float | str = 5) -> None: ...

def store_connector_options_text() -> str:
    """The reference of a connector's options, in Markdown."""

class EncodePlan:
    """An object that is ready to be written. It holds what it is made of."""

    @property
    def nbytes(self) -> int: ...

    def write_into(self, target: Buffer | Sequence[Buffer]) -> None:
        """
        Fill a buffer, or several in a row, of exactly `nbytes`. Each byte is copied once.
        """

    def to_bytes(self) -> bytes:
        """The payload as bytes."""

def plan_payload(object: object, wire: str, checksum: bool, reduce: Callable[[Any], tuple[str, Any] | None]) -> EncodePlan:
    """See stagelink.serializer."""

def decode_payload(buffer: Buffer, copy: bool, revive: Callable[[dict[Any, Any]], Any] | None) -> Any:
    """See stagelink.serializer."""

class EncoderCacheRegistry:
    """Tells consumers over HTTP who has an embedding."""

    def __init__(self, host: str = '127.0.0.1', port: int = 9018, secret_file: str = '') -> None: ...

    def publish(self, mm_hash: str, place: EmbeddingPlace) -> None: ...

    def unpublish(self, mm_hash: str) -> int:
        """How many entries it had."""

    @property
    def address(self) -> str: ...

    def metrics_text(self) -> str: ...

    def close(self) -> None: ...

class EncoderCacheProducer:
    """Keeps embeddings where consumers read them."""

    def __init__(self, extra: str) -> None: ...

    def push(self, transfer_id: str, consumer_zmq: str, mm_hash: str, info: tuple[int, Sequence[int], str]) -> bool:
        """
        Announce (nbytes, shape, dtype) to its consumer, which gets it once it is saved. Never waits. False: it is among the failures. InvalidState: closed, or ec_mode is pull.
        """

    def give_up(self, mm_hash: str, why: str) -> None:
        """It will not be saved: tell who was promised it."""

    def cancel_push(self, transfer_id: str) -> None:
        """Nobody wants it any more."""

    def take_push_failures(self) -> list[tuple[str, str, str]]:
        """transfer_id, mm_hash and why, since the last look."""

    def save(self, mm_hash: str, shape: Sequence[int], dtype: str, data: Any) -> bool:
        """Copy and publish. False: it was not saved; why is logged and counted."""

    def has(self, mm_hash: str) -> bool: ...

    def evict(self, mm_hash: str) -> bool: ...

    def flush(self, timeout: Timeout = 5) -> None:
        """Until the registry has been told of all that was saved."""

    @property
    def producer_zmq(self) -> str: ...

    @property
    def registry_url(self) -> str: ...

    @property
    def usage(self) -> dict[str, Any]: ...

    def metrics_text(self) -> str: ...

    def close(self, timeout: Timeout = 5) -> None: ...

class EncoderCacheFetcher:
    """Finds embeddings and brings them here in the background."""

    def __init__(self, extra: str, readers: int) -> None: ...

    def want(self, mm_hash: str) -> None:
        """Seek it from now on; never waits."""

    def expect(self, mm_hash: str, transfer_id: str) -> None:
        """A producer was told to push it under this transfer; never waits."""

    def refuse(self, transfer_id: str) -> None:
        """Its request needs no push."""

    def look(self, mm_hash: str) -> tuple[str, str, EmbeddingPlace | None]:
        """State, why it is missing, and where a ready one lies."""

    def drop(self, mm_hash: str) -> None:
        """Nobody wants it any more."""

    def handed_on(self, mm_hash: str) -> None:
        """The workers will get it; forget it here."""

    @property
    def consumer_zmq(self) -> str: ...

    def count_fallback(self) -> None: ...

    @property
    def usage(self) -> dict[str, Any]: ...

    def metrics_text(self) -> str: ...

    def close(self, timeout: Timeout = 5) -> None: ...

class EncoderCacheConsumer:
    """Reads embeddings into given memory."""

    def __init__(self, extra: str) -> None: ...

    def load(self, items: list[tuple[str, list[EmbeddingPlace], Any]], timeout: Timeout | None = None, handed_on: bool = False) -> list[tuple[str, str] | None]:
        """
        (mm_hash, places, memory) of each, all at once; for each None, or why not.
        """

    @property
    def usage(self) -> dict[str, Any]: ...

    def metrics_text(self) -> str: ...

    def close(self, timeout: Timeout = 5) -> None: ...

def encoder_cache_options_text() -> str:
    """The reference of the connector's options, in Markdown."""

class KvLayers:
    """The KV cache of a model. It holds the tensors."""

    def __len__(self) -> int: ...

def kv_layers(layers: Sequence[Any], block_size: int, mla: bool = False, layout: str = 'auto') -> KvLayers: ...

def kv_block_axis(shape: Sequence[int], block_size: int, mla: bool = False, layout: str = 'auto') -> int: ...

class KvPlan:
    """
    The payload of one request, ready to be written. Each byte is copied once.
    """

    @property
    def nbytes(self) -> int: ...

    @property
    def data_offset(self) -> int: ...

    def write_into(self, target: Any) -> None:
        """Fill memory of exactly `nbytes`."""

    def to_bytes(self) -> bytes: ...

    def runs(self, limit: int = 4096) -> list[tuple[int, int]]:
        """Address and size of what the payload is made of, in order."""

def kv_plan(layers: KvLayers, request_id: str, block_ids: Sequence[int], seq_len: int, metadata: str, heads: tuple[int, int, int] | None = None, align: int = 64, positions: Sequence[int] = ()) -> KvPlan: ...

class KvMerge:
    """What a receiver makes of the payloads of one request."""

    @property
    def nbytes(self) -> int: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def tensors(self) -> list[tuple[bool, int, str, tuple[int, ...], int, int]]:
        """Of the final memory: (value, layer, dtype, shape, offset, nbytes)."""

    @property
    def metadata(self) -> list[str]:
        """JSON, of each payload."""

    @property
    def block_ids(self) -> list[list[int]]: ...

    def place(self, part: int, payload: Any, target: Any) -> None:
        """Copy what a payload has to where it belongs in the final memory."""

def kv_merge(payloads: Sequence[Any], routes: Sequence[KvRoute], request_id: str, to_rank: int, kv_heads: int = 0) -> KvMerge: ...

class KvRankMap:
    """Which ranks of a stage hand their heads to which."""

    def __init__(self, from_tp: int, to_tp: int, kv_heads: int = 0, mla: bool = False) -> None: ...

    def sends(self, from_rank: int) -> list[KvRoute]: ...

    def gets(self, to_rank: int) -> list[KvRoute]: ...

    @property
    def payloads(self) -> int: ...

    @property
    def fan(self) -> str: ...

    @property
    def lines(self) -> list[str]: ...

    def key(self, request_id: str, from_stage: str, to_stage: str, from_rank: int, to_rank: int) -> str: ...

def kv_stated_rank(rank: int, tp_size: int, side: str) -> int: ...

class KvStraightGet:
    """
    Claims on all payloads of a request. Dropped before it is read it leaves them to whoever asks next.
    """

    @property
    def nbytes(self) -> int: ...

    @property
    def payload_bytes(self) -> int: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def tensors(self) -> list[tuple[bool, int, str, tuple[int, ...], int, int]]: ...

    @property
    def metadata(self) -> str: ...

    @property
    def block_ids(self) -> list[int]: ...

    def read(self, target: Any, timeout: Timeout) -> None:
        """Fill memory of `nbytes` with the tensors, once."""

def kv_straight_get(connector: PullConnector, keys: Sequence[str], metadata: list[Mapping[str, Any] | None], routes: Sequence[KvRoute], request_id: str, to_rank: int, kv_heads: int, wait: Timeout) -> tuple[list[tuple[str, str]], KvStraightGet | None]:
    """
    Wait for all payloads and claim them: an outcome for each, and the claims if all are `ok`.
    """

class KvRegisteredCache:
    """A KV cache whose blocks are offered where they lie."""

    def put(self, key: str, plan: KvPlan, ticket: int, timeout: Timeout) -> tuple[str, str, dict[str, Any] | None]:
        """
        (reason, message, metadata). The blocks are read until the ticket is free.
        """

    def take_free(self) -> list[int]:
        """Tickets whose blocks nobody reads any more, since the last call."""

    @property
    def held(self) -> int: ...

    def close(self, timeout: Timeout) -> None:
        """Take back what is offered and wait for its readers. Raises Busy."""

def kv_register(connector: PullConnector, layers: KvLayers) -> KvRegisteredCache: ...

class PullBuffer:
    """
    A piece of a pool. Has the buffer protocol where the pool is memory of the host: memoryview(buffer), numpy.frombuffer(buffer). The memory goes back when it is released, or gone, and nothing looks at it any more.
    """

    def __init__(self, buffer: PullBuffer) -> None:
        """Another share in the same memory."""

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int: ...

    @property
    def address(self) -> int: ...

    @property
    def on_device(self) -> bool:
        """Whether it is memory of a device."""

    @property
    def released(self) -> bool: ...

    def release(self) -> None:
        """
        Give the memory back, as soon as no buffer looks at it. May be called again.
        """

    def __buffer__(self, flags: int, /) -> memoryview: ...

class PullConnector:
    """
    The core of stagelink.connectors.YuanrongTransferEngineConnector. Calls that may fail give (reason, message, value), where the reason is `ok` or why not.
    """

    def __init__(self, extra: str, plane: object | None = None) -> None: ...

    def put(self, key: str, data: object, readers: int = 1, ttl: Timeout | None = None) -> tuple[str, str, dict[str, Any] | None]:
        """
        Offer the bytes of an object. A buffer of this connector's pool is offered as it is.
        """

    def put_plan(self, key: str, plan: EncodePlan, readers: int = 1, ttl: Timeout | None = None) -> tuple[str, str, dict[str, Any] | None]:
        """Write a payload's plan into the pool and offer it."""

    def cleanup(self, key: str) -> bool: ...

    def allocate(self, size: Size, timeout: Timeout | None = None) -> tuple[str, str, PullBuffer | None]: ...

    def get(self, key: str, metadata: Mapping[str, Any] | None, wait: Timeout, timeout: Timeout | None = None) -> tuple[str, str, Pulled | None]:
        """
        Value: the buffer, whether it holds raw bytes, and the seconds of query, allocation, read and everything.
        """

    def get_many(self, keys: Sequence[str], metadata: list[Mapping[str, Any] | None], wait: Timeout, timeout: Timeout | None = None) -> list[tuple[str, str, Pulled | None]]:
        """From several senders at once."""

    def refuse_put(self) -> None:
        """Count a put whose payload has no form."""

    def refuse_get(self, corrupt: bool) -> None:
        """Count a get whose metadata, or whose payload, cannot be."""

    def update_sender(self, host: str, zmq_port: int) -> None: ...

    @property
    def options(self) -> dict[str, Any]: ...

    def health(self) -> dict[str, Any]: ...

    def metrics_text(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    def close(self, timeout: Timeout = 5) -> None: ...

MAX_READERS: int = 1000000

def pull_connector_options_text() -> str:
    """The reference of a pull connector's options, in Markdown."""

def pull_connector_options(extra: str) -> tuple[dict[str, Any], list[str]]:
    """The options that a connector would have, and what was changed."""
