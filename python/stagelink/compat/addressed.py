"""An engine whose memory is named by addresses, as those of other libraries are."""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from collections.abc import Sequence

import stagelink as sl

__all__ = ["AddressedEngine"]

_MAX_SESSIONS = 256


class AddressedEngine:
    """Moves bytes between addresses of this process and of peers, which are named ``host:port``.

    Local addresses are looked up among the registrations of this engine, remote ones by the peer
    among its own: whatever lies outside is refused there.

    All methods may be called from any thread at the same time.
    """

    def __init__(self, bind: str, transports: Sequence[str] | None = None) -> None:
        """Listen at ``bind``. Raises as :class:`stagelink.Engine` does."""
        self.engine = sl.Engine(bind=bind, transports=transports)
        self._lock = threading.Lock()
        self._regions: dict[int, sl.Region] = {}
        self._starts: list[int] = []
        self._epoch = 0
        self._sessions: OrderedDict[str, sl.Session] = OrderedDict()

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self.engine.address.rsplit(":", 1)[1])

    def register(self, address: int, size: int) -> None:
        """Make memory reachable. Raises ``InvalidArgument`` where it overlaps with another."""
        with self._lock:
            at = bisect.bisect_left(self._starts, address + size)
            for start in self._starts[max(0, at - 1) : at]:
                if start + self._regions[start].nbytes > address:
                    raise sl.InvalidArgument(
                        f"{size} bytes at {address:#x} overlap with the "
                        f"{self._regions[start].nbytes} registered at {start:#x}"
                    )
            self._regions[address] = self.engine.register((address, size))
            self._changed()

    def unregister(self, address: int) -> None:
        """Take it back; the address is that of the registration. Raises ``NotRegistered``."""
        with self._lock:
            region = self._regions.get(address)
            if region is None:
                raise sl.NotRegistered(f"nothing is registered at {address:#x}")
            region.deregister()
            del self._regions[address]
            self._changed()

    def read(
        self,
        target: str,
        local: Sequence[int],
        remote: Sequence[int],
        sizes: Sequence[int],
        timeout: float | None = None,
    ) -> None:
        """Read ranges of the peer at ``target`` and wait for them. Raises by cause."""
        self._move("read", target, local, remote, sizes, timeout)

    def write(
        self,
        target: str,
        local: Sequence[int],
        remote: Sequence[int],
        sizes: Sequence[int],
        timeout: float | None = None,
    ) -> None:
        """Write ranges to the peer at ``target`` and wait for them. Raises by cause."""
        self._move("write", target, local, remote, sizes, timeout)

    def close(self) -> None:
        """End what runs and give everything back. Idempotent."""
        self.engine.close()
        with self._lock:
            self._regions.clear()
            self._changed()

    def _move(
        self,
        kind: str,
        target: str,
        local: Sequence[int],
        remote: Sequence[int],
        sizes: Sequence[int],
        timeout: float | None,
    ) -> None:
        for last in (False, True):
            session, starts, cached = self._session(target)
            regions = [bisect.bisect_right(starts, address) - 1 for address in local]
            if -1 in regions:
                wrong = local[regions.index(-1)]
                raise sl.NotRegistered(f"no registration holds the local address {wrong:#x}")
            offsets = [
                address - starts[region] for address, region in zip(local, regions, strict=True)
            ]
            start = session.read if kind == "read" else session.write
            try:
                start(offsets, remote, sizes, local_regions=regions, timeout=timeout).wait()
                return
            except (sl.PeerLost, sl.Unreachable, sl.InvalidState):
                self._drop(target, session)
                # Another process may listen there by now; a fresh session would have met it.
                if last or not cached:
                    raise

    def _session(self, target: str) -> tuple[sl.Session, list[int], bool]:
        with self._lock:
            known = self._sessions.get(target)
            if known is not None:
                self._sessions.move_to_end(target)
                return known, self._starts, True
            epoch, starts = self._epoch, self._starts
            local = [self._regions[start] for start in starts]
        if not local:
            raise sl.NotRegistered("no memory is registered here")
        made = self.engine.connect(target).session(local=local, remote=sl.BY_ADDRESS)
        with self._lock:
            if epoch == self._epoch:
                self._sessions[target] = made
                if len(self._sessions) > _MAX_SESSIONS:
                    self._sessions.popitem(last=False)
        return made, starts, False

    def _drop(self, target: str, session: sl.Session) -> None:
        with self._lock:
            if self._sessions.get(target) is session:
                del self._sessions[target]

    def _changed(self) -> None:
        """Sessions know the registrations of their time: new ones are needed."""
        self._epoch += 1
        self._sessions.clear()
        self._starts = sorted(self._regions)
