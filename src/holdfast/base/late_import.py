"""
Modules that are imported when one of their names is first used.

For what most programs never need: an extra, or a part that takes long to load. `late_module`
returns a stand-in for a module. Both branches name it, so that type checkers and import-linter see
it too:

    if TYPE_CHECKING:
        import difflib
    else:
        # Only needed after a mistake, and every command would pay for it.
        difflib = late_module("difflib")
A string `package.module:name` stands for one name of a module; `scripts/checks/source.py` checks
that it exists.
"""

import _thread
import os
import sys
from importlib import import_module

# Not `typing.TYPE_CHECKING`: loading `typing` would make every guardian larger.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

__all__ = ["distrust", "drop_script_entry", "late_module", "late_names", "load"]


class _LateModule:
    """Stand-in for a module."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, name: str) -> object:
        # Cache the module, since some are used in every request, but not its names: tests replace
        # those, and whole modules too.
        module = self._module
        if module is None or sys.modules.get(self._name) is not module:
            module = self._module = _import_ours(self._name)
        return getattr(module, name)


def late_module(name: str) -> object:
    """Return a stand-in; reading one of its names imports the module, or raises `ImportError`."""
    return _LateModule(name)


def load(path: str) -> "Any":
    """
    Import a module and return one of its names, given as `package.module:name`.

    Raises:
        ImportError: The module is not installed.
    """
    module, _, name = path.partition(":")
    return getattr(_import_ours(module), name)


def late_names(package: "dict[str, Any]", names: "Mapping[str, str]") -> "Callable[[str], object]":
    """
    Return the `__getattr__` of a package that loads its names when they are first used.

    Args:
        package: The `globals()` of its `__init__.py`.
        names: Maps each name to its place, in the form that `load` takes; a module has no colon.
    """

    def get(name: str) -> object:
        path = names.get(name)
        if path is None:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value: object = load(path) if ":" in path else _import_ours(path)
        package[name] = value
        return value

    return get


class _TrustedFirst:
    """
    Finder that looks for top-level modules in the trusted entries of `sys.path` first.

    A sandboxed command may create modules in the others. Those are searched last, and not at all
    for an import that Holdfast makes by `late_module`.
    """

    def __init__(self, path_finder: "Any") -> None:
        self.distrusted: frozenset[str] = frozenset()
        self._find_on_path = path_finder.find_spec
        # Threads that run an import of ours, with their number of nested calls.
        self.ours: dict[int, int] = {}

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if path is not None:
            return None
        # Relative entries, such as the empty one, depend on the working directory.
        trusted = [
            entry for entry in sys.path if entry.startswith("/") and entry not in self.distrusted
        ]
        found: ModuleSpec | None = self._find_on_path(name, trusted, target)
        # A directory without `__init__.py`: the other entries may have the real module.
        if found is not None and found.loader is not None:
            return found
        if _thread.get_ident() in self.ours:
            if found is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return found
        return None


_finder: _TrustedFirst | None = None


def distrust(entries: "Iterable[str]") -> None:
    """Search entries of `sys.path` after all others from now on: sandboxes can write to them."""
    global _finder
    if _finder is None:
        # Insert ours just before Python's own, so that builtin modules still come first.
        at = next((i for i, one in enumerate(sys.meta_path) if _is_path_finder(one)), None)
        if at is None:
            return
        _finder = _TrustedFirst(sys.meta_path[at])
        sys.meta_path.insert(at, _finder)
    found = frozenset(entries)
    # In the spelling of `sys.path`, which may have a slash at the end. Relative ones are not
    # trusted in any case.
    spelled = {entry for entry in sys.path if entry.rstrip("/") in found}
    if not spelled <= _finder.distrusted:
        _finder.distrusted |= spelled


def _is_path_finder(finder: object) -> bool:
    return getattr(finder, "__name__", "") == "PathFinder"


def _import_ours(name: str) -> "ModuleType":
    if _finder is None:
        return import_module(name)
    thread = _thread.get_ident()
    ours = _finder.ours
    ours[thread] = ours.get(thread, 0) + 1
    try:
        return import_module(name)
    finally:
        ours[thread] -= 1
        if not ours[thread]:
            del ours[thread]


def drop_script_entry() -> None:
    """
    Remove the directory of the script or the working directory from `sys.path`, as `-P` does.

    For the commands of Holdfast, whose working directory is often one that a sandbox makes
    writable.
    """
    if not sys.path or sys.flags.safe_path:
        return
    first = os.path.realpath(sys.path[0]) if sys.path[0] else ""
    # A checkout may be run in place.
    if first == os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))):
        return
    # A wrapper may have put another directory first.
    script = os.path.dirname(os.path.realpath(sys.argv[0])) if sys.argv else ""
    if not first or first in (script, _working_directory()):
        del sys.path[0]


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""
