"""
Makes device nodes for the sandboxes of a server that runs as root.

Bubblewrap binds the host's `/dev/null` and a few other nodes into each sandbox. The mounts have to
be writable, since no device can be opened on bubblewrap's read-only mounts. A command with the uid
of the nodes' owner could change their mode and times for the whole machine. Commands of root have
no capabilities but still uid 0. So their sandboxes get nodes that belong to the user `nobody`,
created once in a directory that only root can enter.
"""

import fcntl
import os
import stat
from collections.abc import Iterable
from contextlib import suppress

__all__ = [
    "DEVICES",
    "OwnDevices",
    "hidden_by_own_devices",
    "may_make_devices",
    "need_devices",
    "remove_unused_devices",
]

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
"""Names of the device nodes that bubblewrap binds from the host."""

# Directories that stay where our directory replaces `/dev`: terminals are opened by their name, and
# commands that may write everything share memory with others.
_KEPT = ("pts", "shm")

# Prefix of the directory's name in `/dev`.
_FOLDER = ".holdfast-"

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_NOBODY = 65534


def need_devices(dev: str = "/dev") -> bool:
    """Return True if a command of this user could change the metadata of the machine's devices."""
    for name in DEVICES:
        # A missing node is not in a sandbox either.
        with suppress(OSError):
            path = f"{dev}/{name}"
            # On a read-only mount no user can change metadata.
            writable = not os.statvfs(path).f_flag & os.ST_RDONLY
            if writable and os.stat(path).st_uid == os.geteuid():
                return True
    return False


class OwnDevices:
    """
    Directory with a node for each of `DEVICES`, until `close`.

    A lock (`flock`) on the directory shows that it is in use. A directory without a lock was left
    behind by a process that was killed.
    """

    def __init__(self, dev: str = "/dev") -> None:
        """
        Make the nodes, after removing directories that killed processes left behind.

        Raises:
            OSError: The kernel refuses, as in most containers.
        """
        remove_unused_devices(dev)
        self.folder, self._lock = _make_folder(dev)
        self.kept = tuple(name for name in _KEPT if os.path.isdir(f"{dev}/{name}"))
        """Names of the empty directories in it, mount points for those of `/dev`."""
        try:
            for name in self.kept:
                os.mkdir(f"{self.folder}/{name}")
            for name in DEVICES:
                path = f"{self.folder}/{name}"
                os.mknod(path, stat.S_IFCHR | 0o600, os.stat(f"{dev}/{name}").st_rdev)
                os.chown(path, _NOBODY, _NOBODY)
                # Not by `mknod`, which applies the umask to the mode.
                os.chmod(path, 0o666)  # noqa: S103 (as those of the machine)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the directory, then release its lock."""
        _remove(self.folder)
        os.close(self._lock)


def hidden_by_own_devices(paths: Iterable[str]) -> bool:
    """Return True if one of the paths is missing where our directory replaces `/dev`."""
    for path in paths:
        parts = path.split("/", 3)
        if parts[1:2] == ["dev"] and parts[2:3] != ["shm"]:
            return True
    return False


def may_make_devices(dev: str = "/dev") -> bool:
    """Try to make the nodes and return True on success: root in a container may not."""
    try:
        OwnDevices(dev).close()
    except OSError:
        return False
    return not os.statvfs(dev).f_flag & os.ST_NODEV


def _make_folder(dev: str) -> tuple[str, int]:
    """Make a directory and return its path and a descriptor that holds a lock on it."""
    while True:
        folder = f"{dev}/{_FOLDER}{os.urandom(8).hex()}"
        os.mkdir(folder, 0o700)
        # Before the lock is taken, another server may remove the directory as unused. The
        # link count is 0 in that case.
        with suppress(FileNotFoundError):
            lock = os.open(folder, _OPEN)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:
                return folder, lock
            os.close(lock)


def remove_unused_devices(dev: str = "/dev") -> None:
    """Remove directories of processes that ended without removing theirs."""
    try:
        names = os.listdir(dev)
    except OSError:
        return
    for name in names:
        if name.startswith(_FOLDER):
            # EWOULDBLOCK: it is in use. ENOENT: another server has removed it.
            with suppress(OSError):
                lock = os.open(f"{dev}/{name}", _OPEN)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(f"{dev}/{name}")
                finally:
                    os.close(lock)


def _remove(folder: str) -> None:
    # Only the known names: anything else in the directory makes `rmdir` fail, and stays.
    for name in DEVICES:
        with suppress(FileNotFoundError):
            os.unlink(f"{folder}/{name}")
    for name in _KEPT:
        with suppress(FileNotFoundError):
            os.rmdir(f"{folder}/{name}")
    os.rmdir(folder)
