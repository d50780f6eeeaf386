"""
Starts the children of a root server in separate mount namespaces.

On most machines the mounts are shared: what is mounted somewhere appears in all copies of that
place. Bubblewrap takes over such a tree as a slave, so a file system that is mounted on the
machine while a command runs would appear in its sandbox, writable. In the namespaces made here
all mounts are private, and bubblewrap keeps them so.

Bubblewrap binds nodes of the `/dev` that it finds into each sandbox. Binding other nodes over them
later slows a start by a fifth, since bubblewrap reads the mount table again for each bind. So the
`/dev` of the namespace already has the nodes for sandboxes (see `device_nodes`).

A mount namespace belongs to a thread, and only a thread of our own may change it. Such a thread
never ends: bubblewrap would get its parent-death signal. Every start has a new namespace, a copy
of the machine's: an older one would miss mounts, and keep alive what was unmounted.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from holdfast.engine.linux.daemon_threads import DaemonThreads
from holdfast.engine.linux.proc import umask

__all__ = ["MountNamespace", "mounts_are_private"]

T = TypeVar("T")

_libc = ctypes.CDLL(None, use_errno=True)

# Values of <sched.h> and <sys/mount.h>.
_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000
_MS_NOSUID, _MS_REMOUNT, _MS_BIND, _MS_MOVE = 2, 32, 4096, 8192
_MS_REC, _MS_PRIVATE = 16384, 1 << 18

# The namespace of the main thread, which is the machine's.
_MACHINES_MOUNTS = "/proc/self/ns/mnt"

# A call on a dead mount never returns, and must not stop the calls of other event loops. Each
# caller waits for its call, so there are no more calls than event loops and threads for starts.
_threads = DaemonThreads("holdfast-mounts", 512)

# Directories that each sandbox has itself, so that mounts below the machine's do not show.
_OF_A_SANDBOX = ("/dev", "/proc")


def mounts_are_private(table: str = "/proc/self/mountinfo") -> bool:
    """Return True if new mounts of the machine do not show up in copies of its mounts."""
    with open(table, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            # Mount point and options, then any number of optional fields up to a `-`.
            _, _, _, _, path, _, *rest = line.split(" ")
            optional = rest[: rest.index("-")]
            if any(field.startswith(("shared:", "master:")) for field in optional) and not (
                f"{path}/".startswith(tuple(f"{own}/" for own in _OF_A_SANDBOX))
            ):
                return False
    return True


class MountNamespace:
    """Threads that make each call in a new, private mount namespace."""

    def __init__(self, folder: str | None = None, keep: tuple[str, ...] = ()) -> None:
        """
        Start a thread and make a first namespace, to see whether that works.

        Args:
            folder: Directory that becomes `/dev`, or None.
            keep: Names of directories in `/dev` that stay; each is in `folder` as well.

        Raises:
            OSError: The kernel refuses, as in most containers.
        """
        self._folder = folder
        self._keep = keep
        self.call(lambda: None)

    def call(self, work: Callable[[], T], *, devices: bool = True) -> T:
        """
        Call `work` in a new namespace and return its result; its exception is raised here.

        Args:
            work: Function to call.
            devices: False if `/dev` stays the machine's.

        Raises:
            OSError: The system refuses to make the namespace or a thread.
        """
        done: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            result: T | None = None
            raised: BaseException | None = None
            try:
                result = self._call_inside(work, self._folder if devices else None)
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                raised = error
            done.put((result, raised))

        try:
            _threads.start(run)
        except RuntimeError as full:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from full
        result, error = done.get()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # the result of `work`

    def _call_inside(self, work: Callable[[], T], folder: str | None) -> T:
        # Opened before `work`: if no descriptor is left, nothing has been started yet.
        machines = os.open(_MACHINES_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            mask = umask()
            # A thread that shares its root, cwd and umask with others cannot change its namespace.
            _check(_libc.unshare(_CLONE_FS))
            # The thread's copy is as old as the thread.
            if mask is not None:
                os.umask(mask)
            # Check that a return is permitted: a thread left in there would keep all mounts alive.
            _enter(machines)
            _check(_libc.unshare(_CLONE_NEWNS))
            try:
                # From here on, mounts made in here do not show outside, nor the other way round.
                # What is unmounted outside stays until the last process here has ended.
                _mount(b"none", b"/", _MS_REC | _MS_PRIVATE)
                if folder is not None:
                    self._mount_devices(os.fsencode(folder))
                return work()
            finally:
                # The namespace ends here unless a child is in it.
                _enter(machines)
        finally:
            os.close(machines)

    def _mount_devices(self, folder: bytes) -> None:
        _mount(folder, folder, _MS_BIND)
        # Bubblewrap asks for `nosuid` on each node, and skips the call where it is set.
        _mount(b"none", folder, _MS_REMOUNT | _MS_BIND | _MS_NOSUID)
        for name in map(os.fsencode, self._keep):
            # With the mounts below: a command would write into the directories under them.
            _mount(b"/dev/" + name, folder + b"/" + name, _MS_BIND | _MS_REC)
        _mount(folder, b"/dev", _MS_MOVE)


def _enter(namespace: int) -> None:
    """Enter a mount namespace, given by a descriptor of it."""
    _check(_libc.setns(namespace, _CLONE_NEWNS))


def _mount(source: bytes, target: bytes, flags: int) -> None:
    _check(_libc.mount(source, target, None, ctypes.c_ulong(flags), None))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
