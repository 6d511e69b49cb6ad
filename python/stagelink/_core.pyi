"""The engine of stagelink; use it through the package `stagelink`."""

from collections.abc import Sequence
import os
import types
from typing import Literal, SupportsIndex, TypeAlias, TypedDict

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

class TransportState(TypedDict):
    available: bool
    detail: str

class Capabilities(TypedDict):
    version: str
    protocol: str
    transports: dict[str, TransportState]

version: str = '0.1.0'

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
