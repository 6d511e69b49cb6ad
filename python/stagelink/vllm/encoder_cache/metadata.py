"""What the two halves of the connector tell each other in a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.ec_transfer.ec_connector.base import (
    ECConnectorMetadata,
    ECConnectorWorkerMetadata,
)

Place = tuple[int, tuple[int, ...], str, str, int]
"""nbytes, shape, dtype, producer_zmq and generation."""


@dataclass
class ECMooncakeLoadSpec:
    """One embedding that workers are to get. ``num_token`` is the encoder's own count."""

    mm_hash: str
    num_token: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    producer_zmq: str
    generation: int = 0

    @property
    def place(self) -> Place:
        return (self.nbytes, self.shape, self.dtype, self.producer_zmq, self.generation)


@dataclass
class ECMooncakePushSpec:
    """One embedding that a consumer is to get as soon as it has been made."""

    transfer_id: str
    consumer_zmq: str
    mm_hash: str
    nbytes: int
    shape: tuple[int, ...]
    dtype: str


@dataclass
class ECMooncakeConnectorMetadata(ECConnectorMetadata):
    """Orders of the scheduler for one step."""

    loads: list[ECMooncakeLoadSpec] = field(default_factory=list)
    wanted: set[str] = field(default_factory=set)  # By requests of a producer.
    pushes: list[ECMooncakePushSpec] = field(default_factory=list)

    def add_load(self, spec: ECMooncakeLoadSpec) -> None:
        self.loads.append(spec)


@dataclass
class ECMooncakeWorkerMetadata(ECConnectorWorkerMetadata):
    """What a producer could not keep, the transfers that did not reach their consumer, and whether
    there are some that consumers have not got yet."""

    failed_saves: set[str] = field(default_factory=set)
    failed_pushes: set[str] = field(default_factory=set)
    has_pushes: bool = False

    def aggregate(self, other: ECConnectorWorkerMetadata) -> ECMooncakeWorkerMetadata:
        assert isinstance(other, ECMooncakeWorkerMetadata)
        return ECMooncakeWorkerMetadata(
            self.failed_saves | other.failed_saves,
            self.failed_pushes | other.failed_pushes,
            self.has_pushes or other.has_pushes,
        )
