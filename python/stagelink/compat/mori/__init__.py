"""Stands in for ``mori``: programs written for ``mori.io`` run on stagelink's engine.

``enable()`` puts this package into ``sys.modules`` as ``mori``. Nothing happens on import alone.
"""

import importlib.util
import sys

from stagelink import __version__

from ...pull.log_limit import quiet_logger
from . import io

__all__ = ["__version__", "enable", "io"]

_logger = quiet_logger(__name__)


def enable(replace: bool = False) -> bool:
    """Make ``import mori`` and ``import mori.io`` mean this package, in this process.

    An installed mori is left in place, unless ``replace`` is true. Returns whether ``mori`` is
    this package now; when it is not, a warning is logged that says so.
    """
    here = sys.modules[__name__]
    if sys.modules.get("mori") is here:
        return True
    if _another_is_there():
        if not replace:
            _logger.warning(
                "mori is installed and stays in use; enable(replace=True) puts stagelink in its "
                "place"
            )
            return False
        _logger.warning("stagelink takes the place of the mori that is installed")
        for name in [name for name in sys.modules if name.split(".")[0] == "mori"]:
            del sys.modules[name]
    sys.modules["mori"] = here
    sys.modules["mori.io"] = io
    return True


def _another_is_there() -> bool:
    if "mori" in sys.modules:
        return True
    try:
        return importlib.util.find_spec("mori") is not None
    except (ImportError, ValueError):
        return False
