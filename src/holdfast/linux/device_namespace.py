"""
Starts children where `/dev` is a directory of ours (see `device_nodes`).

Bubblewrap binds nodes of the `/dev` that it finds into each sandbox. Binding other nodes over
them later makes a start a fifth slower, since it reads the mount table anew for each bind. So
the server of root starts bubblewrap in a mount namespace in which its nodes are already there.

A mount namespace belongs to a thread, and only a thread of our own may change it. The thread
never ends: bubblewrap would get its parent-death signal. Every start has a new namespace, a copy
of the machine's: an older one would miss mounts, and keep alive what was unmounted.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

__all__ = ["DeviceNamespace"]

T = TypeVar("T")

_libc = ctypes.CDLL(None, use_errno=True)

# Values of <sched.h> and <sys/mount.h>.
_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000
_MS_NOSUID, _MS_REMOUNT, _MS_BIND, _MS_MOVE = 2, 32, 4096, 8192
_MS_REC, _MS_SLAVE = 16384, 1 << 19

# The namespace of the main thread, which is the machine's.
_MACHINES_MOUNTS = "/proc/self/ns/mnt"


class DeviceNamespace:
    """Thread that makes each of its calls in a mount namespace with another `/dev`."""

    def __init__(self, folder: str, keep: tuple[str, ...]) -> None:
        """
        Start the thread and make a first namespace, to see whether that works.

        Args:
            folder: Directory that becomes `/dev`.
            keep: Names of directories in `/dev` that stay; each is in `folder` as well.

        Raises:
            OSError: The kernel refuses, as in most containers.
            RuntimeError: The system cannot start a thread.
        """
        self._folder = folder
        self._keep = keep
        # The process that the thread is in. The child of a fork has to start its own.
        self._pid = 0
        self.call(lambda: None)

    def call(self, work: Callable[[], T]) -> T:
        """
        Call `work` in a new namespace and return its result; its exception is raised here.

        Raises:
            OSError: The kernel refuses to make the namespace.
        """

        def run() -> T:
            self._enter()
            try:
                return work()
            finally:
                # Without a child in it, the namespace ends here.
                _return()

        return self._in_thread(run)

    def _in_thread(self, work: Callable[[], T]) -> T:
        if self._pid != os.getpid():
            self._start()
        done: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                done.put((work(), None))
            except BaseException as error:  # noqa: BLE001 - for whoever waits
                done.put((None, error))

        self._work.put(run)
        result, error = done.get()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # the result of `work`

    def _start(self) -> None:
        work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=_run, args=(work,), name="holdfast-devices", daemon=True).start()
        self._work = work
        self._pid = os.getpid()

    def _enter(self) -> None:
        # A thread that shares its root and cwd with others cannot return to its namespace.
        _check(_libc.unshare(_CLONE_FS | _CLONE_NEWNS))
        try:
            self._mount_devices()
        except BaseException:
            _return()
            raise

    def _mount_devices(self) -> None:
        # From here on no mount shows outside, but whatever is unmounted there is so here, too.
        _mount(b"none", b"/", _MS_REC | _MS_SLAVE)
        folder = os.fsencode(self._folder)
        _mount(folder, folder, _MS_BIND)
        # Bubblewrap asks for `nosuid` on each node, and saves a call where it is set.
        _mount(b"none", folder, _MS_REMOUNT | _MS_BIND | _MS_NOSUID)
        for name in self._keep:
            _mount(b"/dev/" + name.encode(), folder + b"/" + name.encode(), _MS_BIND)
        _mount(folder, b"/dev", _MS_MOVE)


def _return() -> None:
    """Return to the machine's namespace."""
    machines = os.open(_MACHINES_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(machines, _CLONE_NEWNS))
    finally:
        os.close(machines)


def _run(work: "SimpleQueue[Callable[[], None]]") -> None:
    while True:
        work.get()()


def _mount(source: bytes, target: bytes, flags: int) -> None:
    _check(_libc.mount(source, target, None, ctypes.c_ulong(flags), None))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
