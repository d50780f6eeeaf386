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

from holdfast.base.errors import CannotEnforce
from holdfast.base.own_code import CodePaths, code_paths, programs
from holdfast.base.own_files import OwnFiles, own_files
from holdfast.engine.sandbox.policy.disk import HOST, RememberedDisk, trace
from holdfast.engine.sandbox.policy.exhausted import raise_exhausted
from holdfast.engine.sandbox.policy.policy import Rule, parent_of, rule_above

__all__ = ["Below", "OwnPath", "OwnPaths", "keep_own", "keep_own_links", "own_paths", "settings_at"]

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


# -- rules that keep them read-only, whatever a profile says


def keep_own(
    rules: dict[str, Rule], paths: Iterable[OwnPath], disk: RememberedDisk, *, makes: bool
) -> None:
    """
    Add a read-only rule for each path that the rules make writable.

    Args:
        rules: Rules of the entries, to be changed.
        paths: The paths of Holdfast.
        disk: File system to look at.
        makes: True to create missing directories, where a command could create them.
    """
    for own in paths:
        at = rules.get(own.path)
        if own.below == "nothing":
            for path in [path for path in rules if path.startswith(f"{own.path}/")]:
                if rules[path].access == "write":
                    rules[path] = rules[path]._replace(access="read", why=own.why)
        elif own.below == "named or itself" and at is not None and at.access == "write":
            # A script's directory that is the workspace: what is loaded from it has its own rule.
            continue
        # Most paths are not writable anyway, and then the disk need not be asked.
        over = at or rule_above(rules, own.path)
        if over is not None and over.access == "write":
            # A missing directory could only be kept missing by a mount on its first missing
            # parent, as `~/.config`, which commands may need.
            if makes and own.is_made and _make_folder(own.path):
                disk.forget_missing(own.path)
            kind = trace(own.path, disk).kind
            rules[own.path] = Rule(own.path, "read", kind, own.why)


def keep_own_links(rules: dict[str, Rule], paths: Iterable[OwnPath], disk: RememberedDisk) -> None:
    """
    Make the directories read-only that have a link to code or settings in them.

    By another link, a command could lead this process or the next one elsewhere. No mount can
    keep a link in place.

    Raises:
        CannotEnforce: An entry makes such a directory writable by name, most often a workspace.
    """
    for own in paths:
        for link in own.links:
            over = rule_above(rules, link)
            if over is None or over.access != "write":
                continue
            folder = parent_of(link)
            # As `/home`, which is a link on some systems, in a writable `/`.
            if not disk.can_create(folder):
                continue
            if folder in rules:
                raise CannotEnforce(_LINKS[own.why].format(link=link, path=own.path))
            rules[folder] = Rule(folder, "read", "directory", own.why)


_LINKS: Final = {
    "code": "cannot keep the code of this server read-only because it was started through writable"
    " symlink {link}: start it from {path}",
    "settings": "cannot keep the settings of Holdfast read-only because they are behind writable"
    " symlink {link}: name {path} instead, for example in HOLDFAST_HOME",
}

# Directories on the way to those of Holdfast and of Python that may be created.
_PYTHON: Final = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_MADE: Final = frozenset(
    (".cache", ".config", ".local", "holdfast", "lib", "share", "state", _PYTHON)
)


def _make_folder(path: str) -> bool:
    """Create a directory; return False if it exists, or cannot or must not be created."""
    missing: list[str] = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    # A missing home or mount point is left alone: the first missing directory is then covered.
    if not missing or any(os.path.basename(one) not in _MADE for one in missing[1:]):
        return False
    try:
        for one in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(one, 0o700)
    except OSError as error:
        raise_exhausted(error)
        return False
    return True
