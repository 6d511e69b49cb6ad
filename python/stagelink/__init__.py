"""Moves the data of disaggregated LLM serving between processes.

An :class:`Engine` is the endpoint of one process. Memory that it allocates or registers is a
:class:`Region`; peers reach it by its descriptor. A :class:`Session` moves batches of byte ranges
between local and remote regions; each batch is one :class:`Transfer`. An :class:`ObjectStore` keeps
sealed bytes under keys for all processes that open it.

Importing this package starts no thread and opens nothing.
"""

from ._core import (
    BY_ADDRESS,
    ByAddress,
    Engine,
    Notification,
    ObjectStore,
    ObjectView,
    ObjectWriter,
    Peer,
    Region,
    RegionDesc,
    Session,
    Transfer,
    capabilities,
)
from ._core import version as __version__
from .errors import (
    AlreadyExists,
    Busy,
    Cancelled,
    Corrupt,
    Error,
    Incompatible,
    InvalidArgument,
    InvalidState,
    Limit,
    NoSpace,
    NotFound,
    NotRegistered,
    PeerLost,
    Permission,
    Superseded,
    TimedOut,
    Unreachable,
)

__all__ = [
    "BY_ADDRESS",
    "AlreadyExists",
    "Busy",
    "ByAddress",
    "Cancelled",
    "Corrupt",
    "Engine",
    "Error",
    "Incompatible",
    "InvalidArgument",
    "InvalidState",
    "Limit",
    "NoSpace",
    "NotFound",
    "NotRegistered",
    "Notification",
    "ObjectStore",
    "ObjectView",
    "ObjectWriter",
    "Peer",
    "PeerLost",
    "Permission",
    "Region",
    "RegionDesc",
    "Session",
    "Superseded",
    "TimedOut",
    "Transfer",
    "Unreachable",
    "__version__",
    "capabilities",
]
