"""
Modules that are imported when one of their names is first used.

For what most programs never need: an extra, or a part that takes long to load. Both branches name
the same module, so that type checkers and import-linter see it too:

    if TYPE_CHECKING:
        import difflib
    else:
        # Only needed after a mistake, and every command would pay for it.
        difflib = late_module("difflib")
"""

import sys
from importlib import import_module
from types import ModuleType

__all__ = ["late_module"]


class _LateModule:
    """Stand-in for a module."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, name: str) -> object:
        # Remembered, as some are used in every request. Its names are not: tests replace them,
        # and whole modules too.
        module = self._module
        if module is None or sys.modules.get(self._name) is not module:
            module = self._module = import_module(self._name)
        return getattr(module, name)


def late_module(name: str) -> object:
    """Return a stand-in; reading one of its names imports the module, or raises `ImportError`."""
    return _LateModule(name)
