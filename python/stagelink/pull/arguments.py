"""Arguments as callers give them: what cannot be is refused by name and value before it is used."""

from __future__ import annotations

import contextlib
import math
import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from ..errors import InvalidArgument

UTF8 = "text that has UTF-8, without halves of surrogate pairs"
_MOST_SHOWN = 120
_LARGEST = 2**63 - 1


def complaint(name: str, value: object, expected: str) -> str:
    """Return what is wrong with an argument."""
    return f"{name} = {brief(value)}: expected {expected}"


def brief(value: object) -> str:
    """Return what Python shows of a value, not more than a line can hold."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def refuse(name: str, value: object, expected: str) -> NoReturn:
    """Raise ``InvalidArgument``."""
    raise InvalidArgument(complaint(name, value, expected))


def text(name: str, value: object) -> str:
    """Return a text. Whether it has UTF-8 is seen where it is needed: :func:`has_utf8`."""
    if not isinstance(value, str):
        refuse(name, value, "text")
    return value


def has_utf8(value: str) -> bool:
    """Whether a text can be sent: not with half a surrogate pair, which JSON can bring in."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def utf8(name: str, value: object) -> str:
    """Return a text that has UTF-8."""
    if not has_utf8(text(name, value)):
        refuse(name, value, UTF8)
    return str(value)


def shown(value: str) -> str:
    """Return a text for a log, which is in UTF-8."""
    return value.encode("utf-8", "backslashreplace").decode()


def stage(name: str, value: object) -> str:
    """Return the name of a stage, which may be given as its number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        refuse(name, value, "a stage: text or a number")
    return value


def integer(name: str, value: Any, lowest: int = 0, highest: int = _LARGEST) -> int:
    """Return an integer, of NumPy too, within both bounds."""
    try:
        number = operator.index(value)
    except TypeError:
        number = lowest - 1
    if not lowest <= number <= highest:
        bounds = f"{lowest} or more" if highest == _LARGEST else f"{lowest} to {highest}"
        refuse(name, value, f"an integer, {bounds}")
    return number


def integers(name: str, values: object) -> list[int]:
    """Return integers, none negative; several thousand are quick."""
    try:
        numbers = list(map(operator.index, values))  # type: ignore[call-overload]
    except TypeError:
        return [integer(f"{name}[{at}]", one) for at, one in enumerate(items(name, values))]
    if numbers and not 0 <= min(numbers) <= max(numbers) <= _LARGEST:
        at = next(at for at, one in enumerate(numbers) if not 0 <= one <= _LARGEST)
        integer(f"{name}[{at}]", numbers[at])
    return numbers


def port(name: str, value: Any) -> int:
    """Return a port that something can be reached at."""
    return integer(name, value, 1, 65535)


def flag(name: str, value: object) -> bool:
    """Return true or false, and nothing that only looks like it."""
    if not isinstance(value, bool):
        refuse(name, value, "true or false")
    return value


def seconds(name: str, value: Any, *, positive: bool = False) -> float:
    """Return a finite number of seconds, not negative."""
    bounds = "more than 0" if positive else "0 or more"
    expected = f"a finite number of seconds, {bounds}"
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        refuse(name, value, expected)
    return number


def left_until(deadline: Any) -> float:
    """Return the seconds until a ``time.monotonic()``; 0: it is over."""
    end = deadline if type(deadline) is float else math.nan
    if end is not deadline and not isinstance(deadline, str | bytes | bool):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            end = float(deadline)
    if not math.isfinite(end):
        refuse("deadline", deadline, "a finite time of time.monotonic()")
    return max(0.0, end - time.monotonic())


def mapping(name: str, value: object) -> Mapping[Any, Any]:
    """Return a dictionary or what is like one."""
    if not isinstance(value, Mapping):
        refuse(name, value, "a dictionary")
    return value


def items(name: str, value: object) -> list[Any]:
    """Return what a list, or anything like one, holds; a text is none."""
    if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        refuse(name, value, "a list")
    return list(value)


def sequence(name: str, value: object) -> Sequence[Any]:
    """Return a list, or anything like one, as it is; a text is none."""
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Sequence):
        refuse(name, value, "a list")
    return value
