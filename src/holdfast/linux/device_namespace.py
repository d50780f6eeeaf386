"""
Starts children where `/dev` is a directory of ours (see `device_nodes`).

Bubblewrap binds nodes of the `/dev` that it finds into each sandbox. Binding other nodes over
them later makes a start a fifth slower, since it reads the mount table anew for each bind. So
the server of root starts bubblewrap in a mount namespace in which its nodes are already there.

A mount namespace belongs to a thread, and only a thread of our own may change it. Such a thread
never ends: bubblewrap would get its parent-death signal. Every start has a new namespace, a copy
of the machine's: an older one would miss mounts, and keep alive what was unmounted.
"""

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from holdfast.linux.child_signals import block_child_signals
from holdfast.linux.proc import umask

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
    """Threads that make each of their calls in a mount namespace with another `/dev`."""

    def __init__(self, folder: str, keep: tuple[str, ...]) -> None:
        """
        Start a thread and make a first namespace, to see whether that works.

        Args:
            folder: Directory that becomes `/dev`.
            keep: Names of directories in `/dev` that stay; each is in `folder` as well.

        Raises:
            OSError: The kernel refuses, as in most containers.
        """
        self._folder = folder
        self._keep = keep
        # Queues of the threads that have nothing to do. A call on a dead mount never returns,
        # and must not stop the calls of other event loops: each gets a thread of its own.
        self._idle: list[SimpleQueue[Callable[[], None]]] = []
        # The child of a fork has none of the threads.
        os.register_at_fork(after_in_child=self._idle.clear)
        self.call(lambda: None)

    def call(self, work: Callable[[], T]) -> T:
        """
        Call `work` in a new namespace and return its result; its exception is raised here.

        Raises:
            OSError: The system refuses to make the namespace or a thread.
        """
        try:
            thread = self._idle.pop()
        except IndexError:
            thread = _start_thread()
        done: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            result: T | None = None
            raised: BaseException | None = None
            try:
                result = self._call_inside(work)
            except BaseException as error:  # noqa: BLE001 - for whoever waits
                raised = error
            # Before the answer: the next call of the same caller finds this thread.
            self._idle.append(thread)
            done.put((result, raised))

        thread.put(run)
        result, error = done.get()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # the result of `work`

    def _call_inside(self, work: Callable[[], T]) -> T:
        # Opened before `work`: if no descriptor is left, nothing has been started yet.
        machines = os.open(_MACHINES_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            mask = umask()
            # A thread that shares its root, cwd and umask with others can change no namespace.
            _check(_libc.unshare(_CLONE_FS))
            # The thread's copy is as old as the thread.
            if mask is not None:
                os.umask(mask)
            # A thread that may not return must not leave: it would keep all mounts alive.
            _enter(machines)
            _check(_libc.unshare(_CLONE_NEWNS))
            try:
                self._mount_devices()
                return work()
            finally:
                # Without a child in it, the namespace ends here.
                _enter(machines)
        finally:
            os.close(machines)

    def _mount_devices(self) -> None:
        # From here on no mount shows outside, but whatever is unmounted there is so here, too.
        _mount(b"none", b"/", _MS_REC | _MS_SLAVE)
        folder = os.fsencode(self._folder)
        _mount(folder, folder, _MS_BIND)
        # Bubblewrap asks for `nosuid` on each node, and saves a call where it is set.
        _mount(b"none", folder, _MS_REMOUNT | _MS_BIND | _MS_NOSUID)
        for name in map(os.fsencode, self._keep):
            # With the mounts below: a command would write into the directory under one of them.
            _mount(b"/dev/" + name, folder + b"/" + name, _MS_BIND | _MS_REC)
        _mount(folder, b"/dev", _MS_MOVE)


def _start_thread() -> "SimpleQueue[Callable[[], None]]":
    """
    Start a thread that runs what is put into the returned queue; that must not raise.

    Raises:
        OSError: The system cannot start a thread.
    """
    queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
    thread = threading.Thread(target=_run, args=(queue,), name="holdfast-devices", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
    return queue


def _run(queue: "SimpleQueue[Callable[[], None]]") -> None:
    block_child_signals()
    while True:
        queue.get()()


def _enter(namespace: int) -> None:
    """Enter a mount namespace, given by a descriptor of it."""
    _check(_libc.setns(namespace, _CLONE_NEWNS))


def _mount(source: bytes, target: bytes, flags: int) -> None:
    _check(_libc.mount(source, target, None, ctypes.c_ulong(flags), None))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
