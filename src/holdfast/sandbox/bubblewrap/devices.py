"""
Devices of our own, for the sandboxes of a server that owns those of the machine.

Bubblewrap puts the machine's `/dev/null` and a few others into each sandbox. They have to be
on a writable mount there, since a read-only one of it lets no device be opened. Whoever owns
them can then change their mode and times, for the whole machine: that is root, whose commands
have no privileges but still its name. So root's sandboxes get devices that belong to nobody
inside, made once in a folder that only root can enter.
"""

import fcntl
import os
import stat
from contextlib import suppress

__all__ = [
    "DEVICES",
    "OwnDevices",
    "may_make_devices",
    "need_devices",
    "remove_unused_devices",
]

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
"""The devices that bubblewrap takes from the machine."""

_FOLDER = ".holdfast-"
"""The beginning of the folder's name."""

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_NOBODY = 65534


def need_devices(dev: str = "/dev") -> bool:
    """Return True if a command of this user could change the metadata of the machine's devices."""
    for name in DEVICES:
        with suppress(OSError):  # it is not there, and so not in a sandbox either
            path = f"{dev}/{name}"
            writable = not os.statvfs(path).f_flag & os.ST_RDONLY
            if writable and os.stat(path).st_uid == os.geteuid():
                return True
    return False


class OwnDevices:
    """
    A folder with one of each, until it is closed or this process ends.

    A lock on it tells that it is in use. One without was left by a process that was killed.
    """

    def __init__(self, dev: str = "/dev") -> None:
        """
        Make them; what others left is removed.

        Raises:
            OSError: The kernel refused.
        """
        remove_unused_devices(dev)
        self.folder, self._lock = _make_folder(dev)
        try:
            for name in DEVICES:
                path = f"{self.folder}/{name}"
                os.mknod(path, stat.S_IFCHR | 0o600, os.stat(f"{dev}/{name}").st_rdev)
                os.chown(path, _NOBODY, _NOBODY)
                os.chmod(path, 0o666)  # noqa: S103 (as those of the machine)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove them."""
        _remove(self.folder)
        os.close(self._lock)


def may_make_devices(dev: str = "/dev") -> bool:
    """Return True if they can be made, found out by making them: not every root may."""
    try:
        OwnDevices(dev).close()
    except OSError:
        return False
    return not os.statvfs(dev).f_flag & os.ST_NODEV


def _make_folder(dev: str) -> tuple[str, int]:
    """Make a folder, and hold a lock on it."""
    while True:
        folder = f"{dev}/{_FOLDER}{os.urandom(8).hex()}"
        os.mkdir(folder, 0o700)
        # Before it is locked, others may take it for one that nobody uses.
        with suppress(FileNotFoundError):
            lock = os.open(folder, _OPEN)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:
                return folder, lock
            os.close(lock)


def remove_unused_devices(dev: str = "/dev") -> None:
    """Remove those of processes that have ended without doing so."""
    try:
        names = os.listdir(dev)
    except OSError:
        return
    for name in names:
        if name.startswith(_FOLDER):
            with suppress(OSError):  # somebody uses them, or others were faster
                lock = os.open(f"{dev}/{name}", _OPEN)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(f"{dev}/{name}")
                finally:
                    os.close(lock)


def _remove(folder: str) -> None:
    for name in DEVICES:
        with suppress(FileNotFoundError):
            os.unlink(f"{folder}/{name}")
    os.rmdir(folder)
