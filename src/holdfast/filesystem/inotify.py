"""
One inotify instance for many watches.

The kernel grants a user 128 instances, for all programs together, but hundreds of thousands of
watches. So each file system has one instance, whoever of its clients watches something.

Watches are added in threads, because a look at a folder may take for ever. Events are read in
the event loop. Watches for one folder share one number of the kernel, which goes with the last
of them.

This talks to inotify itself, by three calls through ctypes. Libraries for it watch whole trees
from a thread and gather what they see for a while; here a few folders are watched for a few
names, once, and the descriptor is in the event loop.
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

_MASK_ADD = 0x20000000
_OVERFLOW = 0x4000
_IGNORED = 0x8000

_MAX_ENDED = 4096
"""Numbers of ended watches that are remembered for threads which may just have got them."""

_TRIES = 3
"""Tries to add a watch, if another one ends at that very moment."""

_READ = 16 << 10
"""Bytes of events that are read at once, some hundreds."""

_head = struct.Struct("iIII")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]


class Event(NamedTuple):
    """A change of something that is watched."""

    number: int
    """Of the watch."""
    mask: int
    name: bytes
    """The name that changed in the folder; empty if it is the watched folder itself."""


Listener = Callable[[Event | None], None]
"""Called in the event loop with each event; with `None` if anything may have happened."""


class Inotify:
    """
    The instance of one event loop, which is opened with the first watch.

    `open` and `close` are for the event loop, `add` and `remove` for any thread.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._descriptor = -1
        self._mounts = -1
        self._both: select.epoll | None = None
        # Guards what follows. It is held for moments only: no system call waits under it.
        self._lock = threading.Lock()
        self._listeners: dict[int, list[Listener]] = {}
        # Threads that are adding a watch, and watches that have ended meanwhile. Where these
        # were too many to remember, the generation changes.
        self._adding = 0
        self._ended: set[int] = set()
        self._generation = 0

    def open(self) -> None:
        """
        Be ready for `add`; harmless a second time.

        Raises:
            OSError: The kernel has no instance left, or no descriptor.
        """
        if self._both is not None:
            return
        loop = asyncio.get_running_loop()
        with ExitStack() as undo:
            descriptor = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            if descriptor < 0:
                raise OSError(ctypes.get_errno(), "inotify_init1")
            undo.callback(os.close, descriptor)
            # A mount can make a file appear without a word from inotify.
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
        """End all watches; nobody hears of anything any more."""
        with self._lock:
            self._listeners.clear()
        if self._both is None:
            return
        assert self._loop is not None  # it was opened
        self._loop.remove_reader(self._both.fileno())
        self._both.close()
        self._both = None
        os.close(self._descriptor)
        os.close(self._mounts)
        self._descriptor = self._mounts = -1

    def __len__(self) -> int:
        """The number of files and folders that are watched."""
        return len(self._listeners)

    def add(self, descriptor: int, events: int, listener: Listener) -> int:
        """
        Watch what is open; its file system may hold this up.

        Returns:
            The number of the watch: every change from now on is told to the listener.

        Raises:
            OSError: The kernel refused, or this is closed.
        """
        # By descriptor, so that it is the one that was looked at.
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
        """Listen to a watch; `False` if it may have ended since the kernel named it."""
        with self._lock:
            if number in self._ended or generation != self._generation:
                return False
            listeners = self._listeners.setdefault(number, [])
            if listener not in listeners:
                listeners.append(listener)
            return True

    def remove(self, numbers: Iterable[int], listener: Listener) -> None:
        """Tell a listener of no more changes; what nobody listens to is not watched any more."""
        with self._lock:
            for number in numbers:
                listeners = self._listeners.get(number, [])
                if listener in listeners:  # or the kernel has ended the watch
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
        with suppress(BlockingIOError):
            data = os.read(self._descriptor, _READ)
        events = list(_parse(data))
        with self._lock:
            told: list[tuple[Listener, Event | None]] = [
                (one, event) for event in events for one in self._listeners.get(event.number, ())
            ]
            if mounted or any(event.mask & _OVERFLOW for event in events):
                everybody = {one for many in self._listeners.values() for one in many}
                told = [(one, None) for one in everybody]
            for event in events:
                if event.mask & _IGNORED:
                    self._listeners.pop(event.number, None)
                    self._note_end(event.number)
        for listener, seen in told:
            listener(seen)


def _parse(data: bytes) -> Iterator[Event]:
    offset = 0
    while offset < len(data):
        number, mask, _, size = _head.unpack_from(data, offset)
        offset += _head.size
        yield Event(number, mask, data[offset : offset + size].rstrip(b"\0"))
        offset += size
