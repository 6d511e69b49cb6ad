"""Payloads drawn from a seed: everything that OmniSerializer can write."""

import dataclasses
import datetime
import decimal
import enum
import random
import uuid
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from typing import Any

import attrs
import msgspec
import numpy as np
import torch
from PIL import Image

TORCH_TYPES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64 bfloat16 "
    "complex32 complex64 complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
    "float8_e8m0fnu"
).split()
NUMPY_TYPES = "|b1 |u1 |i1 <u2 >u2 <i4 >i8 <f2 <f4 >f8 <f16 <c8 <c16 <U3 |S5 <M8[ns] <m8[s]".split()
IMAGE_MODES = "L RGB RGBA CMYK YCbCr LA HSV".split()
INTEGERS = [
    0,
    *(
        s * (1 << n) + d
        for n in (5, 7, 8, 15, 16, 31, 32, 63)
        for s in (1, -1)
        for d in (-1, 0, 1)
        if -(2**63) <= s * (1 << n) + d < 2**64
    ),
]


class Colour(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    TWO = 2


Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Small:
    a: Any = 1
    _b: Any = None


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any = 1
    b: Any = 2


Wide = dataclasses.make_dataclass("Wide", [(f"f{i}", Any, None) for i in range(20)])


@attrs.define
class Attr:
    a: Any = 1
    b: Any = None


class Omitting(msgspec.Struct, omit_defaults=True, kw_only=True):
    a: Any = None
    b: Any = 0
    items: list[Any] = []
    table: dict[str, Any] = {}
    needed: Any


class Tagged(msgspec.Struct, tag=True, rename="camel"):
    one_name: Any = 1
    other: Any = msgspec.UNSET


class Listed(msgspec.Struct, array_like=True, tag=3):
    a: Any = 1
    b: Any = 2


WideStruct = msgspec.defstruct(
    "WideStruct", [(f"f{i}", Any, None) for i in range(17)], omit_defaults=True
)


def tensor(rng: random.Random) -> torch.Tensor:
    kind = getattr(torch, rng.choice(TORCH_TYPES))
    shape = [rng.choice((0, 1, 2, 3, 7)) for _ in range(rng.randrange(4))]
    count = int(np.prod(shape)) * torch.empty((), dtype=kind).element_size()
    raw = torch.tensor(list(rng.randbytes(count)), dtype=torch.uint8)
    if kind == torch.bool:
        raw &= 1
    made = raw.view(kind).reshape(shape) if count else torch.empty(shape, dtype=kind)
    if made.dim() > 1 and rng.random() < 0.4:
        made = made.transpose(0, made.dim() - 1)
    if made.dim() > 0 and made.shape[0] > 1 and rng.random() < 0.3:
        made = made[::2]
    return made


def array(rng: random.Random) -> np.ndarray[Any, Any]:
    kind = np.dtype(rng.choice(NUMPY_TYPES))
    shape = [rng.choice((0, 1, 2, 3, 5)) for _ in range(rng.randrange(4))]
    count = int(np.prod(shape))
    if kind.kind == "U":
        made = np.array([chr(rng.randrange(32, 0x3000)) * 2 for _ in range(count)], kind)
    else:
        made = np.frombuffer(rng.randbytes(count * kind.itemsize), kind, count)
    made = made.reshape(shape)
    if made.ndim and rng.random() < 0.4:
        made = made.T[::-1]
    return made


def image(rng: random.Random) -> Image.Image:
    size = (rng.randrange(1, 6), rng.randrange(1, 6))
    mode = rng.choice(IMAGE_MODES)
    bands = len(Image.new(mode, (1, 1)).getbands())
    return Image.frombytes(mode, size, rng.randbytes(size[0] * size[1] * bands))


def text(rng: random.Random) -> str:
    length = rng.choice((0, 1, 31, 32, 255, 256, 5000))
    return "".join(chr(rng.choice((65, 0xE9, 0x4E2D, 0x1F600))) for _ in range(length))


def moment(rng: random.Random) -> datetime.datetime:
    zone = rng.choice((None, datetime.timezone.utc, datetime.timezone(datetime.timedelta(hours=2))))
    micros = rng.choice((0, 1, 999_999))
    return datetime.datetime(rng.randrange(1900, 2600), 1, 2, 3, 4, 5, micros, tzinfo=zone)


LEAVES: list[Callable[[random.Random], Any]] = [
    lambda rng: rng.choice((None, True, False)),
    lambda rng: rng.choice(INTEGERS),
    lambda rng: rng.choice((0.0, -0.0, 1.5, float("inf"), float("nan"), 5e-324)),
    text,
    lambda rng: rng.randbytes(rng.choice((0, 1, 255, 256, 5000))),
    lambda rng: bytearray(rng.randbytes(3)),
    lambda rng: memoryview(rng.randbytes(5000)),
    tensor,
    tensor,
    array,
    array,
    image,
    lambda rng: slice(rng.randrange(5), None, 2),
    moment,
    lambda rng: datetime.date(2026, 1, rng.randrange(1, 28)),
    lambda rng: datetime.time(1, 2, 3, rng.choice((0, 5000))),
    lambda rng: datetime.timedelta(
        rng.randrange(-3, 3), rng.randrange(-99, 90000), rng.randrange(9)
    ),
    lambda rng: uuid.UUID(int=rng.getrandbits(128)),
    lambda rng: decimal.Decimal(rng.randrange(1000)) / 8,
    lambda rng: rng.choice((Colour.RED, Number.TWO)),
    lambda rng: torch.Size([2, 3]),
]
KEYS: list[Callable[[random.Random], Any]] = [
    lambda rng: rng.choice(("a", "hidden", "dtype", "finished", "é", "n" * 300)),
    lambda rng: rng.choice(INTEGERS),
    lambda rng: rng.choice((None, True, 1.5, b"k", (1, (2, "x")), Colour.RED)),
]


def draw(rng: random.Random, depth: int = 4) -> Any:
    """A value of at most this depth."""
    if depth == 0 or rng.random() < 0.35:
        return rng.choice(LEAVES)(rng)

    def inner() -> Any:
        return draw(rng, depth - 1)

    def some() -> list[Any]:
        return [inner() for _ in range(rng.choice((0, 1, 2, 3, 17)))]

    def table() -> dict[Any, Any]:
        keys = [rng.choice(KEYS)(rng) for _ in range(rng.choice((0, 1, 3, 17)))]
        return {key: inner() for key in keys}

    makers: list[Callable[[], Any]] = [
        some,
        lambda: tuple(some()),
        lambda: {rng.choice(INTEGERS)},
        lambda: frozenset((text(rng),)),
        table,
        table,
        lambda: OrderedDict(table()),
        lambda: defaultdict(list, table()),
        lambda: Point(inner(), inner()),
        lambda: Small(inner(), inner()),
        lambda: Slotted(inner()),
        lambda: Wide(f3=inner()),
        lambda: Attr(inner()),
        lambda: Omitting(needed=inner(), b=inner(), items=rng.choice(([], [1]))),
        lambda: Tagged(inner(), rng.choice((1, msgspec.UNSET))),
        lambda: Listed(inner()),
        lambda: WideStruct(f3=inner()),
    ]
    return rng.choice(makers)()


def difference(one: Any, other: Any, place: str = "$") -> str | None:
    """Where two decoded values differ, in type or in any bit; None if nowhere."""
    if type(one) is not type(other):
        return f"{place}: {type(one)} and {type(other)}"
    if isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        same = same and one.reshape(-1).view(torch.uint8).equal(other.reshape(-1).view(torch.uint8))
        return None if same else f"{place}: {one} and {other}"
    if isinstance(one, np.ndarray):
        same = one.dtype == other.dtype and one.shape == other.shape
        return None if same and one.tobytes() == other.tobytes() else f"{place}: {one}, {other}"
    if isinstance(one, Image.Image):
        same = one.mode == other.mode and one.size == other.size
        return None if same and one.tobytes() == other.tobytes() else f"{place}: {one}, {other}"
    if isinstance(one, dict):
        if list(one) != list(other):
            return f"{place}: keys {list(one)} and {list(other)}"
        pairs = ((one[key], other[key], f"{place}[{key!r}]") for key in one)
        return next(filter(None, (difference(*pair) for pair in pairs)), None)
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return f"{place}: {len(one)} and {len(other)} entries"
        triples = ((a, b, f"{place}[{i}]") for i, (a, b) in enumerate(zip(one, other, strict=True)))
        return next(filter(None, (difference(*triple) for triple in triples)), None)
    return None if repr(one) == repr(other) else f"{place}: {one!r} and {other!r}"
