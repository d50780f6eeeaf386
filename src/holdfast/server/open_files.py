"""Open file handles and the watch of one connection [fs.open.per-connection]."""

import asyncio
import logging

from msgspec import UNSET

from holdfast.backends import MissingWatch
from holdfast.connection import Connection
from holdfast.errors import HoldfastError, InvalidRequest, NotFound
from holdfast.filesystem.client_files import ClientFileHandle, ClientFiles
from holdfast.protocol.fs import MissingChangedEvent, OpenParams, WatchMissingParams
from holdfast.protocol.methods import FS_MISSING_CHANGED
from holdfast.server.principals import Usage
from holdfast.tasks import ignoring_stray_cancellation

__all__ = ["ConnectionFiles", "check_handle_id", "unknown_handle"]

logger = logging.getLogger(__name__)

# Open files of one connection, as in the real server.
MAX_HANDLES = 128

# Bytes of a handle's id, as in the real server.
MAX_HANDLE_ID = 32

# Open files of an ended connection that are discarded in one turn of the event loop.
_DISCARDED_AT_ONCE = 4


def check_handle_id(handle_id: str) -> None:
    """
    Refuse an id that is too long; comes before all other checks of a request.

    Raises:
        InvalidRequest: The id is too long.
    """
    if len(handle_id.encode()) > MAX_HANDLE_ID:
        raise InvalidRequest(f"file handle ID must not exceed {MAX_HANDLE_ID} bytes")


class ConnectionFiles:
    """Open files and the watch of a connection, which all end with it."""

    def __init__(
        self,
        filesystem: ClientFiles,
        connection: Connection,
        tasks: asyncio.TaskGroup,
        usage: Usage,
    ) -> None:
        self._filesystem = filesystem
        self._usage = usage
        self._connection = connection
        self._tasks = tasks
        self._handles: dict[str, ClientFileHandle] = {}
        self._last_watch_id = 0
        self._watch: asyncio.Task[None] | None = None
        self._ended = False

    def open(self, params: OpenParams) -> ClientFileHandle:
        """
        Start to open a file; its id is taken from now on.

        Raises:
            InvalidRequest: The id is taken, or the connection has too many files open.
            Overloaded: The principal has too many files open.
        """
        handle_id = params.handle_id
        if handle_id in self._handles:
            raise InvalidRequest(f"file handle `{handle_id}` already exists")
        if len(self._handles) >= MAX_HANDLES:
            raise InvalidRequest(f"at most {MAX_HANDLES} file handles may be open per connection")
        # The connection's own limit first, whose text is the real server's.
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

    def get(self, handle_id: str) -> ClientFileHandle:
        """
        Return an open file.

        Raises:
            NotFound: No open file has that id.
        """
        handle = self._handles.get(handle_id)
        if handle is None:
            raise unknown_handle(handle_id)
        return handle

    def take(self, handle_id: str) -> ClientFileHandle | None:
        """Remove and return an open file, or None; the caller closes it, and its id is free."""
        handle = self._handles.pop(handle_id, None)
        if handle is not None:
            self._usage.file_handles -= 1
        return handle

    def forget(self, handle_id: str, handle: ClientFileHandle) -> None:
        """Free the id of a file that was closed by an error."""
        if self._handles.get(handle_id) is handle:
            self.take(handle_id)

    async def watch(self, params: WatchMissingParams) -> bool:
        """Watch missing paths, in place of the previous watch; return False if not watched."""
        # Ids only grow: an older request was overtaken by a newer one.
        if params.watch_id <= self._last_watch_id:
            return False
        self._end_watch()
        self._last_watch_id = params.watch_id
        watch = await self._filesystem.watch_missing(params.missing, params.present)
        if watch is None:
            return False
        if self._ended or params.watch_id != self._last_watch_id:
            # The connection ended, or a newer watch was requested, while this one was set up.
            watch.cancel()
            return not self._ended
        self._watch = self._tasks.create_task(self._report(watch, params.watch_id))
        # In a callback: a task that is cancelled before its first step runs no `finally`.
        self._watch.add_done_callback(lambda _: watch.cancel())
        return True

    async def _report(self, watch: MissingWatch, watch_id: int) -> None:
        # A backend that has lost its files cannot tell, so the client looks for itself.
        try:
            with ignoring_stray_cancellation():
                await watch.changed()
        except HoldfastError as error:
            logger.info("a watch of missing files was lost: %s", error)
        except Exception:
            # Raised further, it would end the server with all its connections.
            logger.exception("a watch of missing files failed")
        self._watch = None
        self._connection.notify(FS_MISSING_CHANGED, MissingChangedEvent(watch_id=watch_id))

    def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def end(self, *, at_once: bool = False) -> None:
        """
        Discard all open files, with everything written to them, and end the watch.

        Args:
            at_once: True if the server ends, and has no time left for that.
        """
        self._ended = True
        self._end_watch()
        self._usage.file_handles -= len(self._handles)
        discarded = list(self._handles.values())
        self._handles.clear()
        if at_once:
            for handle in discarded:
                handle.discard()
        else:
            _discard_some(asyncio.get_running_loop(), discarded)


def _discard_some(loop: asyncio.AbstractEventLoop, handles: list[ClientFileHandle]) -> None:
    """Discard a few files now, and the others in the next turns of the event loop."""
    # Each costs a job of a thread. Many connections may end together, with thousands of files.
    for handle in handles[:_DISCARDED_AT_ONCE]:
        handle.discard()
    if len(handles) > _DISCARDED_AT_ONCE:
        loop.call_soon(_discard_some, loop, handles[_DISCARDED_AT_ONCE:])


def unknown_handle(handle_id: str) -> NotFound:
    return NotFound(f"unknown file handle `{handle_id}`")
