"""
Removes mount points that bubblewrap created in the wrong directory.

Bubblewrap creates missing mount points, and follows symbolic links on the way. A command in another
sandbox may replace a directory by a link at that moment. `mount_check` finds the wrong mount, and
no command runs in the sandbox. But an empty directory or file is left where the link led to,
perhaps where no command may write.
"""

import fcntl
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import product

from holdfast.engine.sandbox.bubblewrap.mount_check import Planned

__all__ = ["remove_strays"]

# Seconds that time stamps of files may be behind the clock: they advance with the timer tick.
_COARSE = 0.02

# Most links to check in one directory, so that a command cannot make this slow.
_MAX_LINKS = 256

# Times to list a directory whose entries may be exchanged at the same time.
_LISTS = 4

# Bubblewrap's names of the host's and the sandbox's root while it builds. A link may contain them.
_LAUNCHERS_OWN = ("/oldroot", "/newroot")

# Modes of the files and directories that bubblewrap creates. Hardly any other program creates
# a file that it cannot write to.
_FILE_MODES = (0o444,)
_FOLDER_MODES = (0o755, 0o700)

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def remove_strays(
    planned: Sequence[Planned], since: float, led: Iterable[tuple[str, str]] = ()
) -> None:
    """
    Remove the stray mount points of a sandbox that failed the mount check.

    Only a file that is empty, newer than `since`, looks like one of bubblewrap's and is not in use
    is removed. The command that made the link chose the directory, and must not be able to remove
    files of others.

    Args:
        planned: All mounts of the sandbox.
        since: Start of bubblewrap, in seconds since the epoch.
        led: Directories that are known to have led elsewhere, each with that other path.
    """
    # Paths of the plan itself are never removed here: `mount_points` owns them.
    paths = [path for path, _ in planned]
    known = set(paths)
    for directory, where in {*led, *_links(paths, since - _COARSE)}:
        inside = directory + "/"
        below = [path.removeprefix(inside) for path in paths if path.startswith(inside)]
        # Longest paths first: a directory has to be empty before it can be removed.
        for rest in sorted(below, key=len, reverse=True):
            while rest:
                stray = f"{where}/{rest}"
                if stray in known or not _remove(stray, since - _COARSE):
                    break
                rest = rest.rpartition("/")[0]


def _links(paths: Sequence[str], since: float) -> Iterator[tuple[str, str]]:
    """
    Yield the directories above these paths, each with every path that it may have led to.

    A process that exchanges a directory and a link has the link next to it, or in its place. A
    directory is listed for the former only if something in it was renamed since then.
    """
    above = {path[:at] for path in paths for at, char in enumerate(path) if char == "/" and at}
    for parent in {os.path.dirname(path) for path in above}:
        exchangeable = [path for path in above if os.path.dirname(path) == parent]
        # Read before the time: a link may be older than the start and still exist. If it is gone
        # now, that was a change.
        targets = {target for path in exchangeable for target in _where_link_leads(path)}
        if _changed(parent, since):
            # If two names are exchanged during one listing, it may show the link at neither.
            targets.update(target for _ in range(_LISTS) for target in _where_links_lead(parent))
        yield from product(exchangeable, targets)


def _changed(directory: str, since: float) -> bool:
    """Return True if an entry of a directory was made, renamed or removed since then."""
    with suppress(OSError):
        # ctime, since the owner of the directory can set its mtime.
        return os.stat(directory).st_ctime >= since
    return False


def _where_links_lead(parent: str) -> Iterator[str]:
    """Yield the targets of the links in a directory."""
    with suppress(OSError), os.scandir(parent) as entries:
        links = 0
        for entry in entries:
            if entry.is_symlink() and links < _MAX_LINKS:
                links += 1
                yield from _where_link_leads(entry.path)


def _where_link_leads(path: str) -> Iterator[str]:
    """Yield the target of a link; nothing if the path is not a link."""
    # EINVAL: it is not a link.
    with suppress(OSError):
        said = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        for own in _LAUNCHERS_OWN:
            said = said.removeprefix(own) or "/"
        yield os.path.realpath(said)


def _remove(path: str, since: float) -> bool:
    """Remove an empty and new file or directory; return True if it was removed."""
    removed = False
    # It may be missing, not empty, or another user's.
    with suppress(OSError):
        status = os.lstat(path)
        directory = stat.S_ISDIR(status.st_mode)
        empty = directory or (stat.S_ISREG(status.st_mode) and status.st_size == 0)
        modes = _FOLDER_MODES if directory else _FILE_MODES
        if (
            not empty
            or status.st_mode & 0o777 not in modes
            # ctime, since a command can set the mtime of its files.
            or status.st_ctime < since
            or status.st_uid != os.geteuid()
        ):
            return False
        fd = os.open(path, _OPEN)
        try:
            # Servers hold a shared lock on the mount points of their sandboxes.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The same file that was checked, and not one that has replaced it.
            if os.path.samestat(os.fstat(fd), status):
                (os.rmdir if directory else os.unlink)(path)
                removed = True
        finally:
            os.close(fd)
    return removed
