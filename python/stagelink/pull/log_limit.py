"""Logs that a flood of failures does not fill, and whose own faults fail nothing."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

__all__ = ["LINES_OF_CALL", "LineLimit", "QuietLogger", "limited", "quiet_logger"]

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter

# Lines for the failures of one call that have one reason, as in C++.
LINES_OF_CALL = 5
_LINES = 20
_SECONDS = 10.0
_FORMS = 256


class QuietLogger(_Adapter):
    """A logger that never raises: a handler or a filter of the host that does fails no transfer."""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Write a line, if it can be."""
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # The line is our caller's.
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception:  # noqa: BLE001, S110 - there is no log to say it in.
            pass


def quiet_logger(name: str) -> QuietLogger:
    """Return the logger of that name."""
    return QuietLogger(logging.getLogger(name), {})


class LineLimit(logging.Filter):
    """Lets 20 warnings or errors of one form pass in 10 seconds; the next says how many did not.

    What is below a warning always passes. Without a lock, which a forked child could find taken:
    threads that log at the same moment may let a line more or less pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[str, tuple[float, int]] = {}

    def forget(self) -> None:
        """Begin anew with all forms."""
        self._windows.clear()

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether the line is written."""
        if record.levelno < logging.WARNING:
            return True
        form = str(record.msg)[:200]
        now = time.monotonic()
        begin, lines = self._windows.get(form, (now, 0))
        if now - begin >= _SECONDS:
            if lines > _LINES:
                text = record.getMessage()
                record.msg = f"{text} ({lines - _LINES} further lines like this were left out)"
                record.args = None
            begin, lines = now, 0
        if len(self._windows) >= _FORMS and form not in self._windows:
            self._windows.clear()
        self._windows[form] = (begin, lines + 1)
        return lines < _LINES


def limited(name: str) -> QuietLogger:
    """Return the logger of that name, with a limit if it had none."""
    found = quiet_logger(name)
    if not any(isinstance(known, LineLimit) for known in found.logger.filters):
        found.logger.addFilter(LineLimit())
    return found
