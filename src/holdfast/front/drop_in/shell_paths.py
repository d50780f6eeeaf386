"""Paths of the launcher, the socket and the lock, in directories with mode 0700."""

import hashlib
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.own_files import cache_home
from holdfast.base.version import __version__

__all__ = ["ShellPaths", "UnusableShellFolder", "find_shell_paths", "make_private"]


class UnusableShellFolder(Exception):
    """A directory cannot be used; the text names it and says why."""


@dataclass(frozen=True, slots=True)
class ShellPaths:
    """Files of `holdfast-sh` for one user and one installation."""

    launcher: Path
    """
    Executable that agents call.

    Its path contains `bash`, since Claude Code accepts a shell only with `bash` or `zsh` in it.
    """
    socket: Path
    lock: Path


def find_shell_paths(environ: Mapping[str, str]) -> ShellPaths:
    """
    Return the paths, and make missing directories.

    `HOLDFAST_SH_HOME` names another directory for all files.

    Raises:
        UnusableShellFolder: A directory is not private, or cannot be made.
    """
    home = environ.get("HOLDFAST_SH_HOME", "")
    if home:
        if not os.path.isabs(home):
            raise UnusableShellFolder(f"HOLDFAST_SH_HOME is {home!r}, it must be a full path")
        folder = make_private(Path(home))
        runtime = folder
    else:
        folder = make_private(cache_home(environ) / "bash")
        runtime = make_private(_runtime(environ) or folder)
    name = f"server-{_installation()}"
    return ShellPaths(folder / "holdfast-sh", runtime / f"{name}.sock", runtime / f"{name}.lock")


def _installation() -> str:
    """Return a hash of version and paths, so that each installation has its own server."""
    here = f"{__version__}\0{sys.executable}\0{os.path.dirname(__file__)}"
    return hashlib.sha256(os.fsencode(here)).hexdigest()[:12]


def _runtime(environ: Mapping[str, str]) -> Path | None:
    """Return a path in the user's runtime directory, or None if that cannot be used."""
    given = environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.isabs(given):
        return None
    try:
        about = os.stat(given)
    except OSError:
        return None
    # After `su`, the variable still names the directory of the other user.
    if about.st_uid != os.geteuid() or about.st_mode & 0o077:
        return None
    return Path(given) / "holdfast-sh"


def make_private(folder: Path) -> Path:
    """
    Return a directory that only this user may enter; make it if it is missing.

    Raises:
        UnusableShellFolder: The directory is not private, or cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # `lstat`, so that a link to a directory of another user is refused.
        about = folder.lstat()
    except OSError as error:
        raise UnusableShellFolder(
            f"{folder}: {error.strerror}; name another directory in HOLDFAST_SH_HOME"
        ) from error
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        raise UnusableShellFolder(f"{folder}: not a folder of this user")
    if about.st_mode & 0o077:
        raise UnusableShellFolder(f"{folder}: others may enter it; chmod it to 0700")
    return folder
