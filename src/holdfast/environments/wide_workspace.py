"""
Workspaces wider than a project: `/`, a home directory, or a parent of one.

An agent that is started in such a directory could write all of it. Programs that use their working
directory as the workspace therefore check it here, and accept such a directory only if it is named.
"""

import os
import pwd
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from holdfast.engine.sandbox.policy.policy import parent_of

__all__ = ["unnamed_text", "wide_path", "wide_workspace"]


def unnamed_text(folder: str, said: str) -> str:
    """Return the error for a workspace that is wider than a project and was not named."""
    return (
        f"the workspace would be {folder}, {said}, and commands could write all of it;"
        f" choose a directory with --cwd DIR, or confirm it with --cwd {folder}"
    )


def wide_workspace(folder: str, environ: Mapping[str, str]) -> str | None:
    """
    Return what makes a local directory wider than a project, or None.

    Another mount of such a directory counts as well.

    Args:
        folder: The directory.
        environ: Variables; `HOME` may differ from the home in the user database.
    """
    real = os.path.realpath(folder)
    found = (home for home in _homes(real, environ) if home.startswith("/"))
    homes = [os.path.realpath(home) for home in found]
    said = wide_path(real, homes)
    if said is not None:
        return said
    for home in homes:
        for path in ("/", *_upwards(home)):
            if _is_same(real, path):
                return wide_path(path, homes)
    return None


def wide_path(folder: str, homes: Iterable[str]) -> str | None:
    """
    Return what makes a path wider than a project, or None.

    Args:
        folder: An absolute path without links.
        homes: Home directories, as such paths.
    """
    if folder == "/":
        return "the whole file system"
    if folder == "/home":
        return "the home directories of this machine"
    for home in homes:
        if folder == home:
            return "a home directory"
        if home.startswith(f"{folder}/"):
            return f"a directory above the home {home}"
    return None


def _homes(folder: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the home of this user, and that of the directory's owner."""
    yield environ.get("HOME", "")
    users = [os.geteuid()]
    # The caller reports a missing directory.
    with suppress(OSError):
        users.append(os.stat(folder).st_uid)
    for user in dict.fromkeys(users):
        try:
            yield pwd.getpwuid(user).pw_dir
        except KeyError:
            # A container may have users without an entry.
            continue


def _upwards(path: str) -> Iterator[str]:
    """Yield a path and its parents, except `/`."""
    while path != "/":
        yield path
        path = parent_of(path)


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
