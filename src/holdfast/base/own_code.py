"""
Paths that the code of this process comes from.

Each sandbox makes them read-only. A command could otherwise edit a module that this process imports
later, or one that the next start imports, and its code would run outside the sandbox.
"""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from types import ModuleType
from typing import NamedTuple

__all__ = ["CodePaths", "code_paths", "note_program", "programs"]


class CodePaths(NamedTuple):
    """Paths of code, absolute and as this process uses them: links are not resolved."""

    installed: tuple[str, ...]
    """Programs and libraries of the interpreter and of Holdfast."""
    whole: tuple[str, ...]
    """
    Installations as a whole, including files that no module comes from, such as `pyvenv.cfg`, and
    packages from elsewhere. A workspace may be below one of them.
    """
    searched: tuple[str, ...]
    """
    Entries of `sys.path` outside the installations: a script's directory, `PYTHONPATH`. Also
    directories in `.pth` files that were missing at the start: the next start may find them.
    """
    loaded: tuple[str, ...]
    """Files of other modules that come from none of `installed`."""
    made: tuple[str, ...]
    """Directories among the others that sandboxes create if missing, since Python searches them."""


# Other programs that this process runs outside sandboxes. Replaced as a whole, never changed:
# threads read it.
_programs: tuple[str, ...] = ()


def note_program(path: str) -> None:
    """Count a program as code of this process: it runs outside sandboxes."""
    global _programs
    if path not in _programs:
        _programs = (*_programs, path)


def programs() -> tuple[str, ...]:
    """Return the programs that `note_program` was called with."""
    return _programs


def code_paths() -> CodePaths:
    """Return the paths of the modules that are loaded now, or could be loaded next."""
    prefixes = _unique(sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    entries = _unique(*_absolute(sys.path))
    entries = _unique(*entries, *(path for entry in entries for path in _named_in(entry)))
    # Read at each start of the interpreter.
    made = tuple(path for path in (_user_site(), sys.pycache_prefix) if path)
    installed = _unique(
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        *(f"{prefix}/{name}" for prefix in prefixes for name in ("bin", "lib", "lib64")),
        *(entry for entry in entries if _is_below(entry, prefixes)),
        *made,
        # A link in a directory of programs may lead to an interpreter elsewhere.
        *(path for path in (sys.executable, getattr(sys, "_base_executable", "")) if path),
        *_programs,
    )
    searched = tuple(entry for entry in entries if not _is_below(entry, installed))
    elsewhere = [path for path in _places() if not _is_below(path, installed)]
    files = _unique(*(path for path in elsewhere if path.endswith(_FILES)))
    packages = _unique(*(path for path in elsewhere if not path.endswith(_FILES)))
    # Compiled modules take the place of their sources.
    caches = (f"{os.path.dirname(path)}/__pycache__" for path in files if path.endswith(".py"))
    return CodePaths(installed, (*prefixes, *packages), searched, files, _unique(*made, *caches))


def _user_site() -> str | None:
    """Return the user's directory of packages, if the interpreter reads it at each start."""
    site = sys.modules.get("site")
    path = getattr(site, "USER_SITE", None)
    enabled = getattr(site, "ENABLE_USER_SITE", None)
    return path if enabled and isinstance(path, str) and path.startswith("/") else None


# Directories of packages, in which the interpreter reads `.pth` files at each start.
_SITES = ("site-packages", "dist-packages")

# Largest number of such files, and bytes of each, that are read.
_MOST_PTH, _LARGEST_PTH = 256, 64 << 10


def _named_in(entry: str) -> Iterable[str]:
    """Return the directories that `.pth` files of an entry of `sys.path` name."""
    if os.path.basename(entry) not in _SITES:
        return ()
    try:
        return _read_pth(entry, os.stat(entry).st_mtime_ns)
    except OSError:
        return ()


@lru_cache(maxsize=16)
def _read_pth(folder: str, changed: int) -> tuple[str, ...]:
    """Return the directories; `changed` is part of the cache key: installations may add some."""
    found: list[str] = []
    names = sorted(name for name in os.listdir(folder) if name.endswith(".pth"))
    for name in names[:_MOST_PTH]:
        with suppress(OSError, ValueError), open(f"{folder}/{name}", encoding="utf-8") as file:
            found += [
                os.path.abspath(os.path.join(folder, line.rstrip()))
                for line in file.read(_LARGEST_PTH).splitlines()
                # As `site` reads them: without comments, and lines that are executed.
                if line.strip() and not line.startswith(("#", "import ", "import\t"))
            ]
    return _unique(*found)


# Names of files that are modules. All others are packages, or scripts, which have nothing below.
_FILES = (".py", ".pyc", ".so")


def _places() -> list[str]:
    """Return the directories of loaded packages, and the files of other modules."""
    found: list[str] = []
    # A copy: another thread may import something meanwhile.
    for name, module in list(sys.modules.items()):
        if "." in name or not isinstance(module, ModuleType):
            continue
        below = getattr(module, "__path__", None)
        # A module may set these attributes to anything.
        listed = below if isinstance(below, Iterable) else ()
        places = [getattr(module, "__file__", None)] if below is None else list(listed)
        # Names such as `<stdin>` are not paths.
        found += (one for one in places if isinstance(one, str) and one.startswith("/"))
    return found


def _absolute(paths: Iterable[str]) -> list[str]:
    """Return absolute paths; relative ones are left out if the working directory is gone."""
    found: list[str] = []
    for path in paths:
        with suppress(FileNotFoundError):
            found.append(os.path.abspath(path))
    return found


def _unique(*paths: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path.rstrip("/") for path in paths if path.rstrip("/")))


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
