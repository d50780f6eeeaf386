"""The open file handles and the watch of a connection [fs.open.per-connection]."""

import asyncio
import logging

from holdfast.backends import FileHandle, FileSystem, MissingWatch
from holdfast.base.dialect import limits, texts
from holdfast.base.errors import HoldfastError, InvalidRequest, NotFound
from holdfast.base.tasks import ignoring_stray_cancellation
from holdfast.server.principals import Usage
from holdfast.wire.connection import Connection
from holdfast.wire.protocol.fs import MissingChangedEvent, OpenParams, WatchMissingParams
from holdfast.wire.protocol.methods import FS_MISSING_CHANGED

__all__ = ["ConnectionFiles", "ServedFile", "check_handle_id"]

logger = logging.getLogger(__name__)

# Maximum open files of a connection.
MAX_HANDLES = limits.FILE_HANDLES

# Maximum bytes of a handle's id.
MAX_HANDLE_ID = limits.FILE_HANDLE_ID

# Open files of an ended connection that are discarded in one iteration of the event loop.
_DISCARDED_AT_ONCE = 4


def check_handle_id(handle_id: str) -> None:
    """
    Refuse an id that is too long; precedes all other checks of a request.

    Raises:
        InvalidRequest: The id is too long.
    """
    if len(handle_id.encode()) > MAX_HANDLE_ID:
        raise InvalidRequest(texts.handle_id_too_long(MAX_HANDLE_ID))


class ServedFile:
    """
    An open file of a client.

    Its operations run one at a time, in the order in which the requests arrived.
    """

    def __init__(self, handle_id: str) -> None:
        self._handle_id = handle_id
        self._handle: FileHandle | None = None
        # Fair: the tasks acquire it in order. Also held while the file is being opened.
        self._turn = asyncio.Lock()
        self._is_discarded = False

    async def open(self, files: FileSystem, params: OpenParams) -> None:
        """Open the file; must be the first operation."""
        async with self._turn:
            handle = await files.open(params)
            if self._is_discarded:
                handle.discard()
            else:
                self._handle = handle

    async def read(self, offset: int, size: int) -> tuple[bytes, bool]:
        """Return a block; see `FileHandle.read_block`."""
        async with self._turn:
            try:
                return await self._opened().read_block(offset, size)
            except Exception:
                # The protocol closes a handle after a failed read.
                self.discard()
                raise

    async def write(self, offset: int, data: bytes) -> None:
        """Write a block; see `FileHandle.write_block`."""
        async with self._turn:
            await self._opened().write_block(offset, data)

    async def close(self) -> None:
        """Close the file; see `FileHandle.aclose`."""
        async with self._turn:
            handle, self._handle = self._handle, None
            if handle is not None:
                await handle.aclose()

    def discard(self) -> None:
        """Close the file and drop what was written; harmless if closed."""
        self._is_discarded = True
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.discard()

    def _opened(self) -> FileHandle:
        if self._handle is None:
            raise _unknown_handle(self._handle_id)
        return self._handle


class ConnectionFiles:
    """The open files and the watch of a connection, which end with it."""

    def __init__(
        self,
        filesystem: FileSystem,
        connection: Connection,
        tasks: asyncio.TaskGroup,
        usage: Usage,
    ) -> None:
        self._filesystem = filesystem
        self._usage = usage
        self._connection = connection
        self._tasks = tasks
        self._handles: dict[str, ServedFile] = {}
        # Files that are being closed, whose ids are free again.
        self._closing: set[ServedFile] = set()
        self._last_watch_id = 0
        self._watch: asyncio.Task[None] | None = None
        self._ended = False

    def add(self, handle_id: str) -> ServedFile:
        """
        Reserve an id and return its file, which the caller opens.

        Raises:
            InvalidRequest: The id is in use, or the connection has too many open files.
            Overloaded: The principal has too many open files.
        """
        if handle_id in self._handles:
            raise InvalidRequest(texts.handle_exists(handle_id))
        if len(self._handles) >= MAX_HANDLES:
            raise InvalidRequest(texts.too_many_handles(MAX_HANDLES))
        # The connection's limit first: clients expect its text.
        self._usage.check("file_handles")
        file = self._handles[handle_id] = ServedFile(handle_id)
        self._usage.file_handles += 1
        return file

    def get(self, handle_id: str) -> ServedFile:
        """
        Return an open file.

        Raises:
            NotFound: No open file has that id.
        """
        file = self._handles.get(handle_id)
        if file is None:
            raise _unknown_handle(handle_id)
        return file

    def forget(self, handle_id: str, file: ServedFile) -> None:
        """Free the id of a file that was closed by an error."""
        if self._handles.get(handle_id) is file:
            del self._handles[handle_id]
            self._usage.file_handles -= 1

    def take(self, handle_id: str) -> ServedFile | None:
        """Free an id and return its file for the caller to close, or None."""
        file = self._handles.get(handle_id)
        if file is not None:
            self.forget(handle_id, file)
            # Discarded if the connection ends before the file is closed.
            self._closing.add(file)
        return file

    async def close(self, file: ServedFile) -> None:
        """Close a file that was taken."""
        try:
            await file.close()
        finally:
            self._closing.discard(file)

    async def watch(self, params: WatchMissingParams) -> bool:
        """Watch missing paths, replacing the previous watch; return False if that fails."""
        # Ids only grow: a newer request has overtaken this one.
        if params.watch_id <= self._last_watch_id:
            return False
        self._end_watch()
        self._last_watch_id = params.watch_id
        watch = await self._filesystem.watch_missing(params)
        if watch is None:
            return False
        if self._ended or params.watch_id != self._last_watch_id:
            # The connection ended, or a newer watch was requested, meanwhile.
            watch.cancel()
            return not self._ended
        self._watch = self._tasks.create_task(self._report(watch, params.watch_id))
        # Not in a `finally`, which does not run in a task cancelled before its first step.
        self._watch.add_done_callback(lambda _: watch.cancel())
        return True

    async def _report(self, watch: MissingWatch, watch_id: int) -> None:
        # A backend that lost its files cannot know, so the client checks for itself.
        try:
            with ignoring_stray_cancellation():
                await watch.changed()
        except HoldfastError as error:
            logger.info("a watch of missing files was lost: %s", error)
        except Exception:
            # Letting it propagate would end the server with all its connections.
            logger.exception("a watch of missing files failed")
        self._watch = None
        self._connection.notify(FS_MISSING_CHANGED, MissingChangedEvent(watch_id=watch_id))

    def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def end(self, *, at_once: bool = False) -> None:
        """
        Discard all open files and what was written to them, and end the watch.

        Args:
            at_once: True to discard all now, because the server is ending.
        """
        self._ended = True
        self._end_watch()
        self._usage.file_handles -= len(self._handles)
        discarded = [*self._handles.values(), *self._closing]
        self._handles.clear()
        if at_once:
            for file in discarded:
                file.discard()
        else:
            _discard_some(asyncio.get_running_loop(), discarded)


def _discard_some(loop: asyncio.AbstractEventLoop, files: list[ServedFile]) -> None:
    """Discard a few files now, and the others in later iterations of the event loop."""
    # Each takes a job in a thread, and many connections with thousands of files may end together.
    for file in files[:_DISCARDED_AT_ONCE]:
        file.discard()
    if len(files) > _DISCARDED_AT_ONCE:
        loop.call_soon(_discard_some, loop, files[_DISCARDED_AT_ONCE:])


def _unknown_handle(handle_id: str) -> NotFound:
    return NotFound(texts.unknown_handle(handle_id))
