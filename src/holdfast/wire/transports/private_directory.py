"""
A private directory for the socket of a server that outlives its connection.

Its name is random, so no other user can create it first. A client that gets the name later opens
the directory, and checks the owner and mode of the descriptor. All else uses that descriptor, so
neither a symbolic link nor a well-timed exchange leads elsewhere.

A server holds a lock on its directory as long as it or its guardian lives. A directory that can be
locked is abandoned, and the next server that ends removes it.
"""

import fcntl
import os
import socket
import stat
from contextlib import suppress

from holdfast.base.errors import HoldfastError

__all__ = [
    "SOCKET",
    "PrivateDirectory",
    "UnusableDirectory",
    "listen_privately",
    "remove_abandoned",
]

SOCKET = "socket"
"""The name of the socket in its directory."""

# The parent directory for a user without a runtime directory.
_SHARED = "/tmp"  # noqa: S108 - the directory made in it has a random name and the mode 0700

_ATTEMPTS = 10

# Connections that may wait to be accepted.
_BACKLOG = 128

# Characters that mean the same to every shell: the path travels in command lines.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-")


class UnusableDirectory(HoldfastError):
    """A directory is missing, or not private to its user; the text names it."""


class PrivateDirectory:
    """An open directory of this user with the mode 0700."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def make(cls) -> "PrivateDirectory":
        """
        Create a directory and lock it.

        The lock is inherited by `os.fork` and is held until every copy is closed.

        Raises:
            UnusableDirectory: It cannot be created.
        """
        base = _base()
        for _ in range(_ATTEMPTS):
            path = f"{base}/{_prefix()}{os.urandom(8).hex()}"
            try:
                os.mkdir(path, 0o700)
            except OSError as error:
                raise UnusableDirectory(
                    f"cannot create a directory in {base}: {error.strerror}"
                ) from error
            folder = cls.open(path)
            # Just before the lock, the directory looks like an abandoned one.
            if folder.try_lock() and folder.is_in_place():
                return folder
            folder.close()
        raise UnusableDirectory(
            f"cannot create a directory in {base}: another process removes it each time"
        )

    @classmethod
    def open(cls, path: str) -> "PrivateDirectory":
        """
        Open an existing directory.

        Raises:
            UnusableDirectory: It is missing, or not private to this user.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except NotADirectoryError:
            # O_NOFOLLOW reports a symbolic link like this, too.
            raise UnusableDirectory(f"{path} is not a directory, or is a symbolic link") from None
        except OSError as error:
            raise UnusableDirectory(f"cannot open {path}: {error.strerror}") from error
        about = os.fstat(descriptor)
        if about.st_uid != os.geteuid():
            os.close(descriptor)
            raise UnusableDirectory(f"{path} belongs to another user (uid {about.st_uid})")
        if about.st_mode & 0o077:
            os.close(descriptor)
            mode = stat.S_IMODE(about.st_mode)
            raise UnusableDirectory(f"{path} is open to other users (mode {mode:04o})")
        return cls(path, descriptor)

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._descriptor

    def entry(self, name: str) -> str:
        """
        Return a path to an entry of this very directory, whatever is at its path now.

        It is short enough for the address of a socket, however long the directory's own path is.
        """
        return f"/proc/self/fd/{self._descriptor}/{name}"

    def remove(self) -> None:
        """Remove the directory and the socket in it, unless it is gone."""
        with suppress(OSError):
            os.unlink(SOCKET, dir_fd=self._descriptor)
        if self.is_in_place():
            with suppress(OSError):
                os.rmdir(self.path)

    def close(self) -> None:
        """Close the descriptor; files on the disk stay."""
        os.close(self._descriptor)

    def try_lock(self) -> bool:
        """Lock the directory; return False if its server is alive."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_in_place(self) -> bool:
        """Return True if its path still leads to it."""
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False


def remove_abandoned() -> None:
    """Remove directories whose servers were killed before they could do so."""
    base = _base()
    with suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            if not entry.name.startswith(_prefix()):
                continue
            try:
                folder = PrivateDirectory.open(entry.path)
            except UnusableDirectory:
                # Not ours, despite its name.
                continue
            if folder.try_lock():
                folder.remove()
            folder.close()


def _prefix() -> str:
    return f"holdfast-{os.geteuid()}-"


def _base() -> str:
    """Return the user's runtime directory if it is one, else the directory for all users."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and _PLAIN.issuperset(runtime):
        with suppress(OSError):
            about = os.stat(runtime)
            # After `su`, the variable still names the directory of the previous user.
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
        OSError: The address is not available.
    """
    # The mode must be right from the start, so the umask sets it. Nothing else runs between the two
    # calls.
    before = os.umask(0o177)
    try:
        listening.bind(path)
        # Until it listens, another server would take it for an abandoned one.
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    finally:
        os.umask(before)
