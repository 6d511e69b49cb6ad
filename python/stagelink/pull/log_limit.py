"""Logs that a flood of failures does not fill."""

from __future__ import annotations

import logging
import time

__all__ = ["LINES_OF_CALL", "LineLimit", "limited"]

# Lines for the failures of one call that have one reason, as in C++.
LINES_OF_CALL = 5
_LINES = 20
_SECONDS = 10.0
_FORMS = 256


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


def limited(logger: logging.Logger) -> logging.Logger:
    """Return the logger, with a limit if it had none."""
    if not any(isinstance(known, LineLimit) for known in logger.filters):
        logger.addFilter(LineLimit())
    return logger
