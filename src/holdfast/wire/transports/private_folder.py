"""
A folder that only its user can enter, for the socket of a server that outlives its connection.

Its name is random, so nobody can make it first. Whoever gets the name later opens the folder,
and checks owner and mode of the descriptor. All else goes by that descriptor. So neither a
symbolic link nor an exchange at the wrong moment leads elsewhere.

A server holds a lock on its folder as long as it or its guardian lives. A folder that
can be locked belongs to nobody any more, and is removed by the next server that ends.
"""

import fcntl
import os
import socket
import stat
from contextlib import suppress

from holdfast.base.errors import HoldfastError

__all__ = ["SOCKET", "PrivateFolder", "UnusableFolder", "listen_privately", "remove_abandoned"]

SOCKET = "socket"
"""The name of the socket in its folder."""

# The parent of the folder for a user without a runtime directory.
_SHARED = "/tmp"  # noqa: S108 - the folder made in it has a random name and the mode 0700

_ATTEMPTS = 10

# Connections that may wait to be accepted.
_BACKLOG = 128

# Letters of a path that mean the same to every shell: the path travels in command lines.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-")


class UnusableFolder(HoldfastError):
    """A folder is missing, or not only its user's; the text names it."""


class PrivateFolder:
    """An open folder of this user with the mode 0700."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def make(cls) -> "PrivateFolder":
        """
        Make one and lock it.

        The lock is inherited by `os.fork` and is held until every copy is closed.

        Raises:
            UnusableFolder: It cannot be made.
        """
        base = _base()
        for _ in range(_ATTEMPTS):
            path = f"{base}/{_prefix()}{os.urandom(8).hex()}"
            try:
                os.mkdir(path, 0o700)
            except OSError as error:
                raise UnusableFolder(f"cannot make a folder in {base}: {error.strerror}") from error
            folder = cls.open(path)
            # In the moment before the lock the folder looks like one that was left over.
            if folder.try_lock() and folder.is_in_place():
                return folder
            folder.close()
        raise UnusableFolder(f"cannot make a folder in {base}: somebody removes it each time")

    @classmethod
    def open(cls, path: str) -> "PrivateFolder":
        """
        Open one that exists.

        Raises:
            UnusableFolder: It is not there, or not only this user's.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except NotADirectoryError:
            # O_NOFOLLOW reports a symbolic link like this, too.
            raise UnusableFolder(f"{path} is no folder, or a symbolic link") from None
        except OSError as error:
            raise UnusableFolder(f"cannot open {path}: {error.strerror}") from error
        about = os.fstat(descriptor)
        if about.st_uid != os.geteuid():
            os.close(descriptor)
            raise UnusableFolder(f"{path} belongs to another user (uid {about.st_uid})")
        if about.st_mode & 0o077:
            os.close(descriptor)
            mode = stat.S_IMODE(about.st_mode)
            raise UnusableFolder(f"{path} is open to other users (mode {mode:04o})")
        return cls(path, descriptor)

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._descriptor

    def entry(self, name: str) -> str:
        """
        Return a path to something in this very folder, whatever is at its path by now.

        It is short enough for the address of a socket, however long the folder's own is.
        """
        return f"/proc/self/fd/{self._descriptor}/{name}"

    def remove(self) -> None:
        """Remove the folder and the socket in it; harmless when it is gone."""
        with suppress(OSError):
            os.unlink(SOCKET, dir_fd=self._descriptor)
        if self.is_in_place():
            with suppress(OSError):
                os.rmdir(self.path)

    def close(self) -> None:
        """Let go of it; what is on the disk stays."""
        os.close(self._descriptor)

    def try_lock(self) -> bool:
        """Lock it, unless the server that it belongs to lives."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_in_place(self) -> bool:
        """Return True if it is still what its path leads to."""
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False


def remove_abandoned() -> None:
    """Remove folders whose servers were killed before they could do so."""
    base = _base()
    with suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            if not entry.name.startswith(_prefix()):
                continue
            try:
                folder = PrivateFolder.open(entry.path)
            except UnusableFolder:
                # Not ours, whatever its name is.
                continue
            if folder.try_lock():
                folder.remove()
            folder.close()


def _prefix() -> str:
    return f"holdfast-{os.geteuid()}-"


def _base() -> str:
    """Return the user's runtime directory if it is one, else the folder for all users."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and _PLAIN.issuperset(runtime):
        with suppress(OSError):
            about = os.stat(runtime)
            # One of another user is left over in the variables of whoever used `su`.
            if (
                stat.S_ISDIR(about.st_mode)
                and about.st_uid == os.geteuid()
                and not about.st_mode & 0o022
                and os.access(runtime, os.W_OK | os.X_OK)
            ):
                return runtime.rstrip("/") or "/"
    return _SHARED


def listen_privately(listening: socket.socket, path: str) -> None:
    """
    Bind a socket to a file of mode 0600 and listen; the socket is closed if that fails.

    Raises:
        OSError: The address cannot be had.
    """
    # The mode must be right from the first moment, so it is set by the mask and not by a change
    # afterwards. Nothing else runs between the two calls.
    before = os.umask(0o177)
    try:
        listening.bind(path)
        # Until it listens, another server would take it for one that is gone.
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    finally:
        os.umask(before)
