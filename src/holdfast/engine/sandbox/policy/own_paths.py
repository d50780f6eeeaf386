"""
Collects the paths of Holdfast itself that each sandbox on this machine makes read-only.

They are the code that this process runs from (`holdfast.base.own_code`), and the settings and the
state of all commands (`holdfast.base.own_files`). A policy gets them with all links resolved, so
that it asks the disk only about those that its profile would make writable.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final, Literal, NamedTuple

from holdfast.base.own_code import CodePaths, code_paths, programs
from holdfast.base.own_files import OwnFiles, own_files
from holdfast.engine.sandbox.policy.disk import HOST, trace

__all__ = ["Below", "OwnPath", "OwnPaths", "own_paths", "settings_at"]

Below = Literal["nothing", "named", "named or itself"]
"""
Paths that a profile may still make writable.

- `nothing`: neither the path nor anything below it
- `named`: a path below it, if an entry names that path
- `named or itself`: the path as well, if an entry names the path or one below
"""


class OwnPath(NamedTuple):
    """A path to keep read-only."""

    path: str
    """Absolute path without links, as far as it exists."""
    why: Literal["code", "settings"]
    below: Below = "nothing"
    is_made: bool = False
    """True for a directory that is created if a command could otherwise create it."""
    links: tuple[str, ...] = ()
    """Links by which this process finds it."""


class OwnPaths(NamedTuple):
    """All paths of Holdfast to keep read-only."""

    paths: tuple[OwnPath, ...] = ()
    searched: tuple[tuple[str, str], ...] = ()
    """Entries of `sys.path` that a profile may make writable: the real path, and the entry."""


# Most names to check in a directory of settings.
_MOST_ENTRIES: Final = 256

# Seconds after which links are resolved again. A sandboxed command cannot change one of them.
_FRESH: Final = 1.0


class _Collected(NamedTuple):
    until: float
    key: object
    found: OwnPaths


_known: _Collected | None = None


def own_paths(environ: Mapping[str, str]) -> OwnPaths:
    """Return the paths to keep read-only, for a process with these variables."""
    global _known
    files = own_files(environ)
    # The number stands for all modules, of which there are hundreds.
    key = (files, programs(), len(sys.modules), tuple(sys.path))
    now = time.monotonic()
    known = _known
    if known is None or known.key != key or now >= known.until:
        found = _collect(code_paths(), files)
        # The same object as before where nothing changed, which compares faster.
        if known is not None and known.found == found:
            found = known.found
        known = _known = _Collected(now + _FRESH, key, found)
    return known.found


def settings_at(files: OwnFiles) -> tuple[OwnPath, ...]:
    """Return the paths of settings to keep read-only."""
    return (
        *(_own(path, "settings", is_made=True) for path in files.folders),
        *(_own(link, "settings") for path in files.folders for link in _links_in(path)),
        *(_own(path, "settings", below="named or itself") for path in files.around),
        *(_own(path, "settings") for path in files.files),
    )


def _collect(code: CodePaths, files: OwnFiles) -> OwnPaths:
    made = set(code.made)
    every: list[OwnPath] = [
        *(_own(path, "code", is_made=path in made) for path in code.installed),
        *(_own(path, "code", below="named") for path in code.whole),
        *(_own(path, "code", below="named or itself") for path in code.searched),
        *(_own(path, "code") for path in code.loaded),
        *(_own(path, "code", is_made=True) for path in code.made),
        *settings_at(files),
    ]
    searched = tuple((_own(path, "code").path, path) for path in code.searched)
    return OwnPaths(tuple(_merged(every)), searched)


def _links_in(folder: str) -> list[str]:
    """Return the links to settings that are kept elsewhere, as in a repository of dotfiles."""
    found: list[str] = []
    for place in (folder, f"{folder}/rules"):
        with suppress(OSError), os.scandir(place) as entries:
            found += [one.path for one in islice(entries, _MOST_ENTRIES) if one.is_symlink()]
    return found


def _own(
    path: str,
    why: Literal["code", "settings"],
    *,
    below: Below = "nothing",
    is_made: bool = False,
) -> OwnPath:
    found = trace(path, HOST)
    return OwnPath(found.path, why, below, is_made, tuple(link for link, _ in found.links))


def _merged(every: Iterable[OwnPath]) -> Iterable[OwnPath]:
    """Yield the paths without those that another one covers."""
    # Parents first, and of two for one path the stricter one.
    ordered = sorted(set(every), key=lambda own: (own.path, own.below != "nothing"))
    kept: list[OwnPath] = []
    for own in ordered:
        # `/` would be everything, and is not a directory of Holdfast.
        if own.path == "/" and own.below != "named or itself":
            continue
        over = any(
            one.below == "nothing" and f"{own.path}/".startswith(f"{one.path}/") for one in kept
        )
        # The links of a path that is covered still lead to it.
        if not over or set(own.links) - {link for one in kept for link in one.links}:
            kept.append(own)
    return kept
