"""
Waits for a file to appear (filesystem spec 3.15).

A file that is missing can appear by itself or with the folders above it, so every
folder on its way is watched for the next name, and for its own end. Each watch is
set before the next name is looked up: what changes after the look is seen.

This talks to inotify itself, by three calls through ctypes. Libraries for it watch
whole trees from a thread and gather what they see for a while; here a few folders
are watched for a few names, once, and the descriptor is in the event loop.
"""

import asyncio
import ctypes
import os
import select
import stat
import struct
from collections.abc import Sequence
from contextlib import ExitStack, suppress

__all__ = ["MAX_MISSING", "LocalMissingWatch", "watch_missing"]

MAX_MISSING = 64
"""Paths one watch may be for."""

_CLOEXEC = os.O_CLOEXEC
_NONBLOCK = os.O_NONBLOCK

_MODIFY = 0x2
_ATTRIB = 0x4
_MOVED_FROM = 0x40
_MOVED_TO = 0x80
_CREATE = 0x100
_DELETE = 0x200
_DELETE_SELF = 0x400
_MOVE_SELF = 0x800
_UNMOUNT = 0x2000
_OVERFLOW = 0x4000
_MASK_ADD = 0x20000000

_FOLDER_EVENTS = _CREATE | _MOVED_TO | _DELETE | _MOVED_FROM | _DELETE_SELF | _MOVE_SELF
_FILE_EVENTS = _MODIFY | _ATTRIB | _DELETE_SELF | _MOVE_SELF

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_head = struct.Struct("iIII")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]


class _Unsuitable(Exception):
    """What is asked for cannot be watched, or is no longer so."""


def watch_missing(missing: Sequence[str], present: str | None) -> "LocalMissingWatch | None":
    """
    Watch for the first of several files to appear; looks at folders, so not in the loop.

    Args:
        missing: Absolute paths at which there is nothing, with no link on their way.
        present: A path at which there is something that must stay as it is.

    Returns:
        `None` if it is not as the arguments say, or inotify has no more to give.
    """
    if not 1 <= len(missing) <= MAX_MISSING:
        return None
    with ExitStack() as undo:
        try:
            watch = LocalMissingWatch()
            undo.callback(watch.cancel)
            for path in missing:
                watch.add_missing(path)
            if present is not None:
                watch.add_present(present)
        except (_Unsuitable, OSError, ValueError):
            return None
        undo.pop_all()
        return watch


class LocalMissingWatch:
    """
    A watch that fires once.

    Made in any thread; `changed` and `cancel` belong to the event loop from then on.
    """

    def __init__(self) -> None:
        self._names: dict[int, set[bytes]] = {}
        self._files: set[int] = set()
        self._cancelled = False
        self._waiting: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        with ExitStack() as undo:
            self._inotify = _libc.inotify_init1(_CLOEXEC | _NONBLOCK)
            if self._inotify < 0:
                raise OSError(ctypes.get_errno(), "inotify_init1")
            undo.callback(os.close, self._inotify)
            # A mount can make a file appear without a word from inotify.
            self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            undo.callback(os.close, self._mounts)
            self._both = select.epoll()
            self._both.register(self._inotify, select.EPOLLIN)
            self._both.register(self._mounts, select.EPOLLPRI)
            undo.pop_all()

    # -- making it

    def add_missing(self, path: str) -> None:
        """Watch for what is not there."""
        if self._descend(path):
            raise _Unsuitable

    def add_present(self, path: str) -> None:
        """Watch what is there."""
        if not self._descend(path):
            raise _Unsuitable

    def _descend(self, path: str) -> bool:
        """Watch the folders down to a path; whether it is there."""
        names = [os.fsencode(name) for name in path.split("/") if name]
        folder = os.open("/", _LOOK)
        try:
            for name in names:
                self._watch_folder(folder, name)
                try:
                    inner = os.open(name, _LOOK, dir_fd=folder)
                except FileNotFoundError:
                    return False
                os.close(folder)
                folder = inner
            if stat.S_ISLNK(os.fstat(folder).st_mode):
                raise _Unsuitable
            self._files.add(self._watch(folder, _FILE_EVENTS))
            return True
        finally:
            os.close(folder)

    def _watch_folder(self, folder: int, name: bytes) -> None:
        # `ENOTDIR` for a link and for a file: neither has entries.
        os.close(os.open(".", _LOOK | os.O_DIRECTORY, dir_fd=folder))
        self._names.setdefault(self._watch(folder, _FOLDER_EVENTS), set()).add(name)

    def _watch(self, descriptor: int, events: int) -> int:
        # By descriptor, so that it is the one that was looked at.
        path = f"/proc/self/fd/{descriptor}".encode()
        number: int = _libc.inotify_add_watch(self._inotify, path, events | _MASK_ADD)
        if number < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch")
        return number

    # -- waiting for it

    async def changed(self) -> None:
        """
        Wait until one of the missing files may have appeared; at once if one has.

        Never returns once the watch is cancelled.
        """
        self._loop = asyncio.get_running_loop()
        self._waiting = self._loop.create_future()
        if not self._cancelled:
            self._loop.add_reader(self._both.fileno(), self._look)
        try:
            await self._waiting
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Watch no more; harmless a second time."""
        if self._cancelled:
            return
        self._cancelled = True
        if self._loop is not None:
            self._loop.remove_reader(self._both.fileno())
        self._both.close()
        os.close(self._inotify)
        os.close(self._mounts)

    def _look(self) -> None:
        assert self._waiting is not None  # only read from while somebody waits
        mounted = any(descriptor == self._mounts for descriptor, _ in self._both.poll(0))
        if (mounted or self._matters()) and not self._waiting.done():
            self._waiting.set_result(None)

    def _matters(self) -> bool:
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self._inotify, 64 << 10)
        offset = 0
        while offset < len(data):
            number, mask, _, size = _head.unpack_from(data, offset)
            offset += _head.size
            name = data[offset : offset + size].rstrip(b"\0")
            offset += size
            if mask & (_OVERFLOW | _UNMOUNT | _DELETE_SELF | _MOVE_SELF):
                return True
            if number in self._files and not name:
                return True
            if name in self._names.get(number, ()):
                return True
        return False
