"""The open files and the watch of one connection [fs.open.per-connection]."""

import asyncio

from msgspec import UNSET

from holdfast.connection import Connection
from holdfast.errors import InvalidRequest, NotFound
from holdfast.filesystem.handle import LocalFileHandle
from holdfast.filesystem.local import LocalFileSystem
from holdfast.filesystem.watch import LocalMissingWatch
from holdfast.protocol.fs import MissingChangedEvent, OpenParams, WatchMissingParams
from holdfast.protocol.methods import FS_MISSING_CHANGED
from holdfast.server.principals import Usage

__all__ = ["ConnectionFiles", "check_handle_id", "unknown_handle"]

MAX_HANDLES = 128
"""Files one connection may have open."""

MAX_HANDLE_ID = 32
"""Bytes of an id."""


def check_handle_id(handle_id: str) -> None:
    """
    Look at an id before anything else is looked at.

    Raises:
        InvalidRequest: It is too long.
    """
    if len(handle_id.encode()) > MAX_HANDLE_ID:
        raise InvalidRequest(f"file handle ID must not exceed {MAX_HANDLE_ID} bytes")


class ConnectionFiles:
    """What a connection has open. It ends with the connection, and so does all of it."""

    def __init__(
        self,
        filesystem: LocalFileSystem,
        connection: Connection,
        tasks: asyncio.TaskGroup,
        usage: Usage,
    ) -> None:
        self._filesystem = filesystem
        self._usage = usage
        self._connection = connection
        self._tasks = tasks
        self._handles: dict[str, LocalFileHandle] = {}
        self._last_watch_id = 0
        self._watch: asyncio.Task[None] | None = None
        self._ended = False

    def open(self, params: OpenParams) -> LocalFileHandle:
        """
        Begin to open a file; the id is taken from here on.

        Raises:
            InvalidRequest: It is taken already, or there are too many.
            Overloaded: All connections of the principal together have too many.
        """
        handle_id = params.handle_id
        if handle_id in self._handles:
            raise InvalidRequest(f"file handle `{handle_id}` already exists")
        if len(self._handles) >= MAX_HANDLES:
            raise InvalidRequest(f"at most {MAX_HANDLES} file handles may be open per connection")
        self._usage.check("file_handles")
        handle = self._filesystem.start_opening(
            params.path,
            params.mode,
            permissions=None if params.permissions is UNSET else params.permissions,
            sandbox=params.sandbox,
        )
        self._handles[handle_id] = handle
        self._usage.file_handles += 1
        return handle

    def get(self, handle_id: str) -> LocalFileHandle:
        """
        An open file.

        Raises:
            NotFound: There is none with that id.
        """
        handle = self._handles.get(handle_id)
        if handle is None:
            raise unknown_handle(handle_id)
        return handle

    def take(self, handle_id: str) -> LocalFileHandle | None:
        """An open file, which is the caller's from here on; the id is free again."""
        handle = self._handles.pop(handle_id, None)
        if handle is not None:
            self._usage.file_handles -= 1
        return handle

    def forget(self, handle_id: str, handle: LocalFileHandle) -> None:
        """Free the id of a file that has closed by itself."""
        if self._handles.get(handle_id) is handle:
            self.take(handle_id)

    async def watch(self, params: WatchMissingParams) -> bool:
        """Watch for what is missing, and no longer for what was watched before."""
        if params.watch_id <= self._last_watch_id:
            return False
        self._end_watch()
        self._last_watch_id = params.watch_id
        watch = await self._filesystem.watch_missing(params.missing, params.present)
        if watch is None:
            return False
        if self._ended or params.watch_id != self._last_watch_id:
            # A newer one came meanwhile.
            watch.cancel()
            return not self._ended
        self._watch = self._tasks.create_task(self._report(watch, params.watch_id))
        # A task that is cancelled before its first step does nothing at all.
        self._watch.add_done_callback(lambda _: watch.cancel())
        return True

    async def _report(self, watch: LocalMissingWatch, watch_id: int) -> None:
        await watch.changed()
        self._watch = None
        self._connection.notify(FS_MISSING_CHANGED, MissingChangedEvent(watch_id=watch_id))

    def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def end(self) -> None:
        """Close all. What was written to a file that is not closed is forgotten."""
        self._ended = True
        self._end_watch()
        for handle in self._handles.values():
            handle.discard()
        self._usage.file_handles -= len(self._handles)
        self._handles.clear()


def unknown_handle(handle_id: str) -> NotFound:
    return NotFound(f"unknown file handle `{handle_id}`")
