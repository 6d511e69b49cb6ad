"""Puts a module where programs import another library's from."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from ..pull.log_limit import quiet_logger

__all__ = ["stand_in"]

_logger = quiet_logger(__name__)


def stand_in(here: ModuleType, package: str, name: str) -> bool:
    """Make ``package.name`` mean ``here``, unless the package is installed.

    Returns whether it does now; when it does not, a warning is logged that says so.
    """
    whole = f"{package}.{name}"
    if sys.modules.get(whole) is here:
        return True
    if package in sys.modules or importlib.util.find_spec(package) is not None:
        _logger.warning(
            "a package `%s` is installed and stays in use; stagelink leaves it alone", package
        )
        return False
    made = ModuleType(package, f"Holds stagelink's stand-in for {whole}.")
    made.__path__ = []
    setattr(made, name, here)
    sys.modules[package] = made
    sys.modules[whole] = here
    return True
