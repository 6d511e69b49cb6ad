"""What engines that address memory by absolute addresses have in common, on stagelink."""

import bisect

import stagelink as sl


class AddressedEngine:
    """Local memory is named by its address and found among the registrations; remote memory is the
    peer's business: its engine finds the registration that holds each range."""

    def __init__(self) -> None:
        self.engine: sl.Engine | None = None
        self._regions: dict[int, sl.Region] = {}
        self._sessions: dict[str, sl.Session] = {}
        self._starts: list[int] = []

    def open(self, host_port: str) -> None:
        self.engine = sl.Engine(bind=host_port)

    def register(self, address: int, size: int) -> None:
        assert self.engine is not None
        self._regions[address] = self.engine.register((address, size))
        self._regions_changed()

    def unregister(self, address: int) -> None:
        region = self._regions[address]
        self._regions_changed()
        region.deregister()
        del self._regions[address]
        self._regions_changed()

    def move(
        self, write: bool, target: str, local: list[int], remote: list[int], sizes: list[int]
    ) -> None:
        session = self._session(target)
        indices = [bisect.bisect_right(self._starts, address) - 1 for address in local]
        if -1 in indices:
            raise sl.NotRegistered(f"local address {local[indices.index(-1)]:#x}")
        offsets = [address - self._starts[i] for address, i in zip(local, indices, strict=True)]
        start = session.write if write else session.read
        start(offsets, remote, sizes, local_regions=indices).wait()

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()

    def overlaps(self, address: int, size: int) -> bool:
        return any(
            start < address + size and address < start + region.nbytes
            for start, region in self._regions.items()
        )

    def _regions_changed(self) -> None:
        self._sessions.clear()
        self._starts = sorted(self._regions)

    def _session(self, target: str) -> sl.Session:
        assert self.engine is not None
        if target not in self._sessions:
            local = [self._regions[start] for start in self._starts]
            peer = self.engine.connect(target)
            self._sessions[target] = peer.session(local=local, remote=sl.BY_ADDRESS)
        return self._sessions[target]
