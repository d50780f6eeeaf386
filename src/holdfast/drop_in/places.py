"""Where the launcher, the socket and the lock are: in folders that only the user may enter."""

import hashlib
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast._version import __version__

__all__ = ["Places", "UnusablePlace", "find_places", "make_private"]


class UnusablePlace(Exception):
    """A folder cannot be used; the text names it and says why."""


@dataclass(frozen=True, slots=True)
class Places:
    """The files of `holdfast-sh` for one user and one installation."""

    launcher: Path
    """
    The program that agents call.

    Claude Code takes a shell only if its path has `bash` or `zsh` in it, so this one has.
    """
    socket: Path
    lock: Path


def find_places(environ: Mapping[str, str]) -> Places:
    """
    Find the places, and make the folders that are missing.

    `HOLDFAST_SH_HOME` names another folder for all of it.

    Raises:
        UnusablePlace: A folder is not private, or cannot be made.
    """
    home = environ.get("HOLDFAST_SH_HOME", "")
    if home:
        if not os.path.isabs(home):
            raise UnusablePlace(f"HOLDFAST_SH_HOME is {home!r}, it must be a full path")
        folder = make_private(Path(home))
        runtime = folder
    else:
        folder = make_private(_cache(environ) / "holdfast" / "bash")
        runtime = make_private(_runtime(environ) or folder)
    name = f"server-{_installation()}"
    return Places(folder / "holdfast-sh", runtime / f"{name}.sock", runtime / f"{name}.lock")


def _installation() -> str:
    """Stands for this version in this place: servers of others are none of ours."""
    here = f"{__version__}\0{sys.executable}\0{os.path.dirname(__file__)}"
    return hashlib.sha256(os.fsencode(here)).hexdigest()[:12]


def _cache(environ: Mapping[str, str]) -> Path:
    given = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given)
    return Path(environ.get("HOME") or os.path.expanduser("~")) / ".cache"


def _runtime(environ: Mapping[str, str]) -> Path | None:
    """Return our folder in the user's runtime directory, if that is one."""
    given = environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.isabs(given):
        return None
    try:
        about = os.stat(given)
    except OSError:
        return None
    # One of another user is left over in the variables of whoever used `su`.
    if about.st_uid != os.geteuid() or about.st_mode & 0o077:
        return None
    return Path(given) / "holdfast-sh"


def make_private(folder: Path) -> Path:
    """
    Return a folder that only this user may enter; make it if it is missing.

    Raises:
        UnusablePlace: It is not private, or cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.lstat()
    except OSError as error:
        raise UnusablePlace(f"{folder}: {error.strerror}") from error
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        raise UnusablePlace(f"{folder}: not a folder of this user")
    if about.st_mode & 0o077:
        raise UnusablePlace(f"{folder}: others may enter it; chmod it to 0700")
    return folder
