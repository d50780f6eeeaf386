"""
Shares one inotify instance among many watches.

The kernel grants a user 128 instances for all programs together, but hundreds of thousands of
watches. So each `LocalFileSystem` has one instance for all its clients.

Watches are added in threads, since a system call on a dead mount may never return. Events are
read in the event loop. All watches of one directory share one watch descriptor of the kernel,
which is removed with the last of them.

Three calls through ctypes are enough. Libraries for inotify watch whole trees from a thread and
batch events. Here a few directories are watched once for a few names.
"""

import asyncio
import ctypes
import errno
import os
import select
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple

__all__ = ["Event", "Inotify"]

# From `sys/inotify.h`. IN_MASK_ADD: a second watch of one file must not replace the events of
# the first one.
_MASK_ADD = 0x20000000
_OVERFLOW = 0x4000
_IGNORED = 0x8000

# Ended watch descriptors to remember while a thread may have just received one of them.
_MAX_ENDED = 4096

# Attempts to add a watch whose watch descriptor is removed at the same time.
_TRIES = 3

# Bytes of one read: a few hundred events.
_READ = 16 << 10

# `struct inotify_event` without the name: wd, mask, cookie, len.
_head = struct.Struct("iIII")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]


class Event(NamedTuple):
    """Event of a watch."""

    number: int
    """Watch descriptor."""
    mask: int
    name: bytes
    """Name of the entry that changed; empty if the watched file itself did."""


Listener = Callable[[Event | None], None]
"""Callback in the event loop for each event; `None` means that any file may have changed."""


class Inotify:
    """
    Inotify instance of one event loop.

    Call `open` and `close` in the event loop, `add` and `remove` in any thread.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._descriptor = -1
        self._mounts = -1
        self._both: select.epoll | None = None
        # Guards the attributes below. No system call under it can block.
        self._lock = threading.Lock()
        self._listeners: dict[int, list[Listener]] = {}
        # Threads that are adding a watch, and watch descriptors that have ended meanwhile. If there
        # are too many to remember, the generation changes.
        self._adding = 0
        self._ended: set[int] = set()
        self._generation = 0

    def open(self) -> None:
        """
        Create the instance, before the first `add`; a second call does nothing.

        Raises:
            OSError: The user is out of instances, or the process out of descriptors.
        """
        if self._both is not None:
            return
        loop = asyncio.get_running_loop()
        with ExitStack() as undo:
            descriptor = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            if descriptor < 0:
                raise OSError(ctypes.get_errno(), "inotify_init1")
            undo.callback(os.close, descriptor)
            # A mount can make a file appear without an inotify event. The kernel signals
            # EPOLLPRI on mountinfo instead.
            mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            undo.callback(os.close, mounts)
            both = select.epoll()
            undo.callback(both.close)
            both.register(descriptor, select.EPOLLIN)
            both.register(mounts, select.EPOLLPRI)
            loop.add_reader(both.fileno(), self._read)
            undo.pop_all()
        self._loop, self._both = loop, both
        self._descriptor, self._mounts = descriptor, mounts

    def close(self) -> None:
        """Close the instance; no listener is called from now on."""
        with self._lock:
            self._listeners.clear()
        if self._both is None:
            return
        # `open` sets both.
        assert self._loop is not None
        self._loop.remove_reader(self._both.fileno())
        self._both.close()
        self._both = None
        os.close(self._descriptor)
        os.close(self._mounts)
        self._descriptor = self._mounts = -1

    def __len__(self) -> int:
        """Return the number of watched files and directories."""
        return len(self._listeners)

    def add(self, descriptor: int, events: int, listener: Listener) -> int:
        """
        Watch an open file or directory; may block on its file system.

        Returns:
            The watch descriptor. The listener is called for every event from now on.

        Raises:
            OSError: The kernel refused, or the instance is closed.
        """
        # By descriptor, since the path may lead to another file now.
        path = f"/proc/self/fd/{descriptor}".encode()
        with self._lock:
            self._adding += 1
        try:
            for _ in range(_TRIES):
                generation = self._generation
                number: int = _libc.inotify_add_watch(self._descriptor, path, events | _MASK_ADD)
                if number < 0:
                    raise OSError(ctypes.get_errno(), "inotify_add_watch")
                if self._register(number, generation, listener):
                    return number
            raise OSError(errno.EAGAIN, "inotify_add_watch")
        finally:
            with self._lock:
                self._adding -= 1
                if not self._adding:
                    self._ended.clear()

    def _register(self, number: int, generation: int, listener: Listener) -> bool:
        """Add a listener; return False if the watch may have ended since the kernel made it."""
        with self._lock:
            if number in self._ended or generation != self._generation:
                return False
            listeners = self._listeners.setdefault(number, [])
            if listener not in listeners:
                listeners.append(listener)
            return True

    def remove(self, numbers: Iterable[int], listener: Listener) -> None:
        """Remove a listener from watches; a watch without listeners is ended."""
        with self._lock:
            for number in numbers:
                listeners = self._listeners.get(number, [])
                # Not in the list if the kernel has ended the watch.
                if listener in listeners:
                    listeners.remove(listener)
                    if not listeners:
                        del self._listeners[number]
                        _libc.inotify_rm_watch(self._descriptor, number)
                        self._note_end(number)

    def _note_end(self, number: int) -> None:
        if self._adding:
            self._ended.add(number)
            if len(self._ended) > _MAX_ENDED:
                self._ended.clear()
                self._generation += 1

    def _read(self) -> None:
        if self._both is None:
            return
        mounted = any(descriptor == self._mounts for descriptor, _ in self._both.poll(0))
        data = b""
        # The descriptor has no events if only the list of mounts has changed.
        with suppress(BlockingIOError):
            data = os.read(self._descriptor, _READ)
        events = list(_parse(data))
        with self._lock:
            calls: list[tuple[Listener, Event | None]] = [
                (one, event) for event in events for one in self._listeners.get(event.number, ())
            ]
            # After an overflow events are lost, so every listener has to look for itself.
            if mounted or any(event.mask & _OVERFLOW for event in events):
                all_listeners = {one for many in self._listeners.values() for one in many}
                calls = [(one, None) for one in all_listeners]
            for event in events:
                if event.mask & _IGNORED:
                    self._listeners.pop(event.number, None)
                    self._note_end(event.number)
        # Without the lock: a listener calls `remove`.
        for listener, seen in calls:
            listener(seen)


def _parse(data: bytes) -> Iterator[Event]:
    offset = 0
    while offset < len(data):
        number, mask, _, size = _head.unpack_from(data, offset)
        offset += _head.size
        yield Event(number, mask, data[offset : offset + size].rstrip(b"\0"))
        offset += size
