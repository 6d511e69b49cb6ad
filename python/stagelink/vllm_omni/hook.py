"""Runs something when a module is imported, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["when_imported"]

Action = Callable[[ModuleType], None]


def when_imported(name: str, action: Action) -> None:
    """Call ``action`` with the module: now if it is imported, else right after it has been.

    The same action for the same module is called once.
    """
    module = sys.modules.get(name)
    if module is not None and not _is_loading(module):
        action(module)
        return
    for finder in sys.meta_path:
        if isinstance(finder, _Finder) and finder.name == name and finder.action is action:
            return
    sys.meta_path.insert(0, _Finder(name, action))


def _is_loading(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module by asking the others, and lets its loader call the action."""

    def __init__(self, name: str, action: Action) -> None:
        self.name = name
        self.action = action
        self._asking = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads by another loader, then calls the action."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        self._finder.action(module)
