"""
Removes what a launcher made in the wrong place.

Bubblewrap makes each path that it mounts something on, if it is missing, and follows links on
the way. A command in another sandbox may put a link in the place of a directory just then. As
a rule the sandbox is found to be wrong, and nothing runs in it (see `mount_check`). But an empty
directory or file is left where the link led to, perhaps outside of what any command may write.
"""

import fcntl
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from holdfast.sandbox.bubblewrap.mount_check import Planned

__all__ = ["remove_strays"]

_COARSE = 0.02
"""Seconds that the clock of a file system may be behind."""

_MOST_LINKS = 256
"""Links that are looked at in one directory."""

_LISTS = 4
"""Times that a directory is listed."""

_LAUNCHERS_OWN = ("/oldroot", "/newroot")
"""The names of the machine and of the sandbox while it is built: a link may lead there."""

_FILE_MODES = (0o444,)
_FOLDER_MODES = (0o755, 0o700)
"""The modes that bubblewrap makes things with. Few others make a file they cannot write to."""

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def remove_strays(
    planned: Sequence[Planned], since: float, led: Iterable[tuple[str, str]] = ()
) -> None:
    """
    Look where the paths of a sandbox may have led while it was built, and clean up there.

    Only what is empty, made since then as the launcher makes it, and in use by no sandbox is
    removed: who makes a link chooses the place, and must not have others' files removed.

    Args:
        planned: All its mounts.
        since: When the launcher was started, in seconds since the epoch.
        led: Directories that are known to have led elsewhere, each with where that is.
    """
    paths = [path for path, _ in planned]
    known = set(paths)
    for directory, where in {*led, *_links(paths)}:
        inside = directory + "/"
        below = [path.removeprefix(inside) for path in paths if path.startswith(inside)]
        for rest in sorted(below, key=len, reverse=True):  # what is inside another goes first
            while rest:
                stray = f"{where}/{rest}"
                if stray in known or not _remove(stray, since - _COARSE):
                    break
                rest = rest.rpartition("/")[0]


def _links(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """
    The directories on the way to these, each with every place that it may have been a link to.

    Who exchanges a directory with a link has the link beside it, if not in its place.
    """
    above = {path[:at] for path in paths for at, char in enumerate(path) if char == "/" and at}
    for parent in {os.path.dirname(path) for path in above}:
        # Of two names that are exchanged meanwhile, a list may show the link at neither.
        places = {place for _ in range(_LISTS) for place in _where_links_lead(parent)}
        if places:
            for directory in above:
                if os.path.dirname(directory) == parent:
                    yield from ((directory, place) for place in places)


def _where_links_lead(parent: str) -> Iterator[str]:
    with suppress(OSError), os.scandir(parent) as entries:
        links = 0
        for entry in entries:
            if entry.is_symlink() and links < _MOST_LINKS:
                links += 1
                said = os.path.normpath(os.path.join(parent, os.readlink(entry.path)))
                for own in _LAUNCHERS_OWN:
                    said = said.removeprefix(own) or "/"
                yield os.path.realpath(said)


def _remove(path: str, since: float) -> bool:
    """Remove something empty and new. Returns whether it was."""
    removed = False
    with suppress(OSError):  # it is not there, not empty, or not ours
        status = os.lstat(path)
        directory = stat.S_ISDIR(status.st_mode)
        empty = directory or (stat.S_ISREG(status.st_mode) and status.st_size == 0)
        modes = _FOLDER_MODES if directory else _FILE_MODES
        if (
            not empty
            or status.st_mode & 0o777 not in modes
            or status.st_ctime < since
            or status.st_uid != os.geteuid()
        ):
            return False
        fd = os.open(path, _OPEN)
        try:
            # What another sandbox needs is locked by whoever made it.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), status):
                (os.rmdir if directory else os.unlink)(path)
                removed = True
        finally:
            os.close(fd)
    return removed
