"""
Waits for a missing file to appear [fs.watch].

A file can appear by itself or together with its parent directories. So every existing directory
of its path has an inotify watch for the next name, and for its own removal. Each watch is set
before the next name is looked up, so that no change after the look-up is missed.
"""

import asyncio
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack

from holdfast.engine.files.inotify import Event, Inotify

__all__ = ["MAX_MISSING", "MAX_WATCHED", "LocalMissingWatch", "watch_missing"]

MAX_MISSING = 64
"""Largest number of missing paths of one watch."""

MAX_WATCHED = 1024
"""Largest number of directories of one watch: the kernel limits the watches of a user."""

# From `sys/inotify.h`.
_MODIFY = 0x2
_ATTRIB = 0x4
_MOVED_FROM = 0x40
_MOVED_TO = 0x80
_CREATE = 0x100
_DELETE = 0x200
_DELETE_SELF = 0x400
_MOVE_SELF = 0x800
_UNMOUNT = 0x2000
_IGNORED = 0x8000

# A name appears, or the path above changes, so that the file may appear elsewhere.
_FOLDER_EVENTS = _CREATE | _MOVED_TO | _DELETE | _MOVED_FROM | _DELETE_SELF | _MOVE_SELF
_FILE_EVENTS = _MODIFY | _ATTRIB | _DELETE_SELF | _MOVE_SELF
# Events after which the kernel stops watching: any change may go unseen.
_ENDS = _UNMOUNT | _IGNORED | _DELETE_SELF | _MOVE_SELF

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class _Unsuitable(Exception):
    """A path cannot be watched, or is not missing or present as expected."""


def watch_missing(
    inotify: Inotify, missing: Sequence[str], present: str | None
) -> "LocalMissingWatch | None":
    """
    Return a watch for the first of several files to appear. May block, so call it in a thread.

    Args:
        inotify: Open instance.
        missing: Absolute paths of missing files, without links.
        present: Path of an existing file; the watch also ends when that changes.

    Returns:
        None if a path is not missing or present as given, or no inotify watch is available.
    """
    if not 1 <= len(missing) <= MAX_MISSING:
        return None
    with ExitStack() as undo:
        try:
            watch = LocalMissingWatch(inotify)
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
    Watch that fires once.

    Create it in any thread; call `changed` in the event loop.
    """

    def __init__(self, inotify: Inotify) -> None:
        self._inotify = inotify
        # Names to wait for by watch descriptor of their directory; descriptors of files.
        self._names: dict[int, set[bytes]] = {}
        self._files: set[int] = set()
        self._fired = False
        self._cancelled = False
        self._waiting: asyncio.Future[None] | None = None

    # -- setting it up

    def add_missing(self, path: str) -> None:
        """Watch for a missing file."""
        if self._descend(path):
            raise _Unsuitable

    def add_present(self, path: str) -> None:
        """Watch an existing file for changes."""
        if not self._descend(path):
            raise _Unsuitable

    def _descend(self, path: str) -> bool:
        """Watch the directories of a path; return True if the file exists, and watch it."""
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
            self._files.add(self._inotify.add(folder, _FILE_EVENTS, self._see))
            return True
        finally:
            os.close(folder)

    def _watch_folder(self, folder: int, name: bytes) -> None:
        # Fails with ENOTDIR for a link or a file, which an O_PATH descriptor may be.
        os.close(os.open(".", _LOOK | os.O_DIRECTORY, dir_fd=folder))
        if len(self._names) >= MAX_WATCHED:
            raise _Unsuitable
        number = self._inotify.add(folder, _FOLDER_EVENTS, self._see)
        self._names.setdefault(number, set()).add(name)

    # -- waiting

    async def changed(self) -> None:
        """
        Wait until one of the missing files may have appeared.

        Returns at once if one has, and never if the watch is cancelled.
        """
        # The event may have come before this call, from the thread that set up the watch.
        self._waiting = asyncio.get_running_loop().create_future()
        if self._fired and not self._cancelled:
            self._waiting.set_result(None)
        try:
            await self._waiting
        finally:
            self.cancel()

    def cancel(self) -> None:
        """End the watch; a second call does nothing."""
        if not self._cancelled:
            self._cancelled = True
            self._inotify.remove([*self._names, *self._files], self._see)

    def _see(self, event: Event | None) -> None:
        """Take an event; None means that any file may have changed."""
        if self._cancelled or not (event is None or self._matters(event)):
            return
        self._fired = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _matters(self, event: Event) -> bool:
        return bool(
            event.mask & _ENDS
            or (event.number in self._files and not event.name)
            or event.name in self._names.get(event.number, ())
        )
