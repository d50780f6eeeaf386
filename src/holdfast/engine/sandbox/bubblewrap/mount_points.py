"""
Makes and removes the mount points that sandboxes need on the host's disk.

A mount needs a mount point. So a name that must not be created, such as a missing `.git`, exists
as an empty directory or file while a command runs [sandbox.targets]. The server makes it before
the first command that relies on it, and removes it after the last. A file that existed before,
or that is no longer empty, is never touched.

Each mount point has an extended attribute as a mark, where the file system supports that. Its
users hold a shared lock (`flock`) on it. By these a server recognises a mount point that another
server uses, or that a killed server left behind. The last user removes it.
"""

import errno
import fcntl
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from holdfast.engine.linux.daemon_threads import DaemonThreads
from holdfast.engine.linux.kernel_cache import is_on_this_machine

__all__ = ["MountPoints", "close_in_background"]

# Extended attribute of the mount points that a Holdfast server made.
_MARK = "user.holdfast.mount-target"

# O_NONBLOCK: another process may have put a FIFO there, and opening that would wait for a writer.
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PASS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# Attempts to make and lock a mount point that other servers remove in between.
_TRIES = 20

# Threads that remove mount points on network file systems, including those that hang.
_MAX_REMOVING = 64

# Seconds between two attempts, for a server that holds the exclusive lock to remove it.
_PAUSE = 0.0005


class _MountPoint:
    """Mount point that at least one sandbox of this process uses."""

    __slots__ = ("_folder", "_name", "_ours", "fd", "is_local", "users")

    def __init__(
        self, path: str, kind: Literal["directory", "file"], folder: int, *, is_local: bool
    ) -> None:
        """
        Args:
            path: Absolute path of the mount point.
            kind: Kind of file to make if it is missing.
            folder: Descriptor of its directory, which the caller closes.
            is_local: False if the directory is on a network file system.

        Raises:
            OSError: It can neither be created nor locked.
        """
        self.users = 0
        self.fd: int | None = None
        """Open descriptor with a shared lock; `None` if this user may not open the file."""
        # True if a server made the file, so that it may be removed.
        self._ours = False
        self._name = os.path.basename(path)
        # By descriptor, not by path: the directory may be renamed later, or replaced by a link
        # that leads elsewhere.
        self._folder = os.dup(folder)
        self.is_local = is_local
        """False on a network file system, where any call may hang."""
        try:
            self._make_sure(kind)
        except OSError as error:
            if self._ours and self.fd is None:
                self._unmake()
            self._close()
            raise OSError(error.errno, error.strerror, path) from error
        self._mark()

    def _unmake(self) -> None:
        """Remove the file that was created but cannot be opened: its directory is closed."""

        def remove() -> None:
            there = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
            _remove(self._folder, self._name, there)

        with suppress(OSError):
            _as_owner(self._folder, remove)

    def _make_sure(self, kind: Literal["directory", "file"]) -> None:
        """Create the file if it is missing, and take a shared lock on it."""
        for last in [False] * (_TRIES - 1) + [True]:
            self._ours |= _make(self._folder, self._name, kind)
            try:
                self.fd = os.open(self._name, _OPEN, dir_fd=self._folder)
                fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                # A link count of 0: it was removed between `open` and `flock`.
                if os.fstat(self.fd).st_nlink:
                    return
            except PermissionError:
                if not self._ours:
                    # It existed before, so it will not be removed and needs no lock.
                    return
                raise
            except (FileNotFoundError, BlockingIOError):
                if last:
                    raise
                time.sleep(_PAUSE)
            # Another server removed it, or holds the exclusive lock to do so.
            if self.fd is not None:
                os.close(self.fd)
                self.fd = None
        raise FileNotFoundError(errno.ENOENT, "it is removed again and again")

    def _mark(self) -> None:
        """Set the mark on a new file; on an existing one, look for another server's mark."""
        if self.fd is not None:
            with suppress(OSError):
                if self._ours:
                    os.setxattr(self.fd, _MARK, b"")
                else:
                    os.getxattr(self.fd, _MARK)
                    self._ours = True

    def remove(self) -> int | None:
        """
        Remove the file, if a server made it, no one else uses it and it is still empty.

        Returns:
            The descriptor of the removed file, which the caller closes; None otherwise.
        """
        removed = None
        if self.fd is not None and self._ours:
            # It may be in use, not empty, or gone.
            with suppress(OSError):
                # The exclusive lock fails as long as another server has a shared one.
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _remove(self._folder, self._name, os.fstat(self.fd)):
                    removed, self.fd = self.fd, None
        self._close()
        return removed

    def _close(self) -> None:
        os.close(self._folder)
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class MountPoints:
    """
    All mount points that sandboxes of this process use, with their numbers of users.

    A mount point is in use between `reserve` and `release`. A second command that starts
    meanwhile becomes a user, too: removing a mount point detaches the mounts on it in every
    sandbox.
    """

    def __init__(self) -> None:
        self._points: dict[str, _MountPoint] = {}
        # Number of sandboxes that are being planned. A plan may rely on a mount point that it has
        # seen on disk, so unused ones are only removed when the planning is over.
        self._planning = 0
        self._unused: set[str] = set()

    def __len__(self) -> int:
        return len(self._points)

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Remove no mount point in this block; build the policy and call `reserve` in it."""
        self._planning += 1
        try:
            yield
        finally:
            self._planning -= 1
            if not self._planning:
                unused, self._unused = self._unused, set()
                self._forget(unused)

    def reserve(self, targets: Iterable[tuple[str, Literal["directory", "file"]]]) -> None:
        """
        Create and lock the mount points of a sandbox; each is missing, or empty.

        Raises:
            OSError: One cannot be created or locked; none of them is reserved then.
        """
        had: list[str] = []
        # Most are in the same directory, which takes one call per component to open.
        folders: dict[str, tuple[int, bool]] = {}
        try:
            for path, kind in targets:
                point = self._points.get(path)
                if point is None:
                    name = os.path.dirname(path)
                    if name not in folders:
                        fd = _open_folder(name)
                        folders[name] = fd, is_on_this_machine(fd)
                    fd, is_local = folders[name]
                    point = self._points[path] = _MountPoint(path, kind, fd, is_local=is_local)
                point.users += 1
                had.append(path)
        except BaseException:
            self.release(had)
            raise
        finally:
            for fd, _ in folders.values():
                os.close(fd)

    def release(self, paths: Collection[str]) -> None:
        """Release one reservation of the mount points; the last release removes them."""
        for path in paths:
            self._points[path].users -= 1
        # A plan that is being made may have seen these files as existing ones.
        if self._planning:
            self._unused.update(paths)
        else:
            self._forget(paths)

    def _forget(self, paths: Iterable[str]) -> None:
        removed: list[int] = []
        # Longest paths first: a directory has to be empty before it can be removed.
        for path in sorted(paths, key=len, reverse=True):
            point = self._points[path]
            if point.users == 0:
                del self._points[path]
                if not point.is_local:
                    _remove_in_thread(point)
                    continue
                fd = point.remove()
                if fd is not None:
                    removed.append(fd)
        if removed:
            close_in_background(removed)


_removing = DaemonThreads("holdfast-mount-point", _MAX_REMOVING, kept=0)


def _remove_in_thread(point: _MountPoint) -> None:
    """Remove a mount point in a thread; leave it if too many threads hang."""

    def remove() -> None:
        fd = point.remove()
        if fd is not None:
            os.close(fd)

    # It keeps its mark, so the next server that uses it removes it.
    with suppress(RuntimeError):
        _removing.start(remove)


def _open_folder(path: str) -> int:
    """Return a descriptor of a directory; a symbolic link on the way is an error."""
    # Component by component, since O_NOFOLLOW only affects the last one.
    fd = os.open("/", _PASS)
    for part in path.split("/"):
        if part:
            try:
                below = os.open(part, _PASS, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
    return fd


def _make(folder: int, name: str, kind: Literal["directory", "file"]) -> bool:
    """Create a mount point; return False if the name exists."""

    def make() -> None:
        if kind == "directory":
            os.mkdir(name, 0o755, dir_fd=folder)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(name, flags, 0o644, dir_fd=folder))

    try:
        _as_owner(folder, make)
    except FileExistsError:
        return False
    return True


def _remove(folder: int, name: str, known: os.stat_result) -> bool:
    """Remove an empty directory or file if it is still the known one; return True if so."""
    # Another process may have replaced the file since it was opened.
    there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if (known.st_dev, known.st_ino) != (there.st_dev, there.st_ino):
        return False
    if stat.S_ISDIR(there.st_mode):
        # The kernel refuses to remove a directory that is not empty.
        _as_owner(folder, lambda: os.rmdir(name, dir_fd=folder))
    elif stat.S_ISREG(there.st_mode) and there.st_size == 0:
        _as_owner(folder, lambda: os.unlink(name, dir_fd=folder))
    else:
        return False
    return True


def _as_owner(folder: int, change: Callable[[], None]) -> None:
    """
    Change a directory, with a chmod before and after if its mode forbids that to its owner.

    Otherwise a command could chmod the directory itself and create the name.
    """
    try:
        change()
    except PermissionError:
        status = os.fstat(folder)
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid != os.geteuid() or mode & stat.S_IRWXU == stat.S_IRWXU:
            raise
        # By `/proc`, since `fchmod` refuses an O_PATH descriptor.
        path = f"/proc/self/fd/{folder}"
        os.chmod(path, mode | stat.S_IRWXU)
        try:
            change()
        finally:
            os.chmod(path, mode)


# -- closing

# Seconds before the first close, so that a busy server starts its next command first.
_REST = 0.003

# Most lists of descriptors to wait for the thread; beyond that, the caller closes its own.
_MAX_WAITING = 64

_unclosed: deque[list[int]] = deque()
_closer = DaemonThreads("holdfast-closer", 1)


def close_in_background(descriptors: list[int]) -> None:
    """
    Take over descriptors of removed mount points and close them within milliseconds.

    The kernel frees a removed directory when its last descriptor is closed, and may wait for the
    disk then. For the eight mount points of a usual command, this takes a tenth of the time of
    the whole command. Without the thread, the next start on the event loop would wait for it.
    """
    if len(_unclosed) >= _MAX_WAITING:
        _close_all(descriptors)
        return
    _unclosed.append(descriptors)
    try:
        _closer.start(_close_waiting, may_wait=True)
    except RuntimeError:
        # The system cannot start a thread now.
        _close_waiting()


def _close_waiting() -> None:
    # Those that arrived during the pause of others need none.
    if _unclosed:
        time.sleep(_REST)
    with suppress(IndexError):
        while True:
            _close_all(_unclosed.popleft())


def _close_all(descriptors: list[int]) -> None:
    for fd in descriptors:
        # The kernel closes a descriptor even if it reports an error.
        with suppress(OSError):
            os.close(fd)
