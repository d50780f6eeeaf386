"""Rules that keep code and settings of Holdfast read-only, whatever a profile says."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from holdfast.base.errors import CannotEnforce
from holdfast.engine.sandbox.policy.disk import RememberedDisk, trace
from holdfast.engine.sandbox.policy.exhausted import raise_exhausted
from holdfast.engine.sandbox.policy.own_paths import OwnPath
from holdfast.engine.sandbox.policy.policy import Rule, parent_of, rule_above

__all__ = ["keep_own", "keep_own_links"]


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
