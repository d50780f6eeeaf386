"""
Files of a server, behind the same protocol as local ones [fs.*].

Reads are repeated after a lost connection, and so is the replacement of a file, which can be
repeated with the same result. Other changes are not repeated, since the client cannot know whether
the server has made them.
"""

import asyncio
import errno
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import UNSET

from holdfast.base.errors import ConnectionLost, HoldfastError, InvalidRequest, Unsupported
from holdfast.client.client_connection import Link
from holdfast.client.error_mapping import refusals
from holdfast.engine.files.errno_mapping import too_large
from holdfast.engine.files.transfer import BLOCK, read_blocks, write_blocks
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.fs import (
    CanonicalizeParams,
    CloseParams,
    CopyParams,
    CreateDirectoryParams,
    DirectoryEntry,
    FileMetadata,
    GetMetadataParams,
    MissingChangedEvent,
    OpenParams,
    PathParams,
    ReadBlockParams,
    ReadDirectoryParams,
    ReadFileParams,
    RemoveParams,
    RenameParams,
    WalkParams,
    WalkResponse,
    WatchMissingParams,
    WriteBlockParams,
    WriteFileParams,
)
from holdfast.wire.protocol.methods import (
    FS_CANONICALIZE,
    FS_CLOSE,
    FS_COPY,
    FS_CREATE_DIRECTORY,
    FS_GET_METADATA,
    FS_OPEN,
    FS_READ_BLOCK,
    FS_READ_DIRECTORY,
    FS_READ_FILE,
    FS_REMOVE,
    FS_RENAME,
    FS_WALK,
    FS_WATCH_MISSING,
    FS_WRITE_BLOCK,
    FS_WRITE_FILE,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext
from holdfast.wire.protocol.wire_types import Base64, Method
from holdfast.wire.rpc.base64 import content_bytes, decode_answer

if TYPE_CHECKING:
    from holdfast.client.client_session import ClientSession

__all__ = ["RemoteFileHandle", "RemoteFileSystem", "RemoteMissingWatch"]

P = TypeVar("P")
OnePath = TypeVar("OnePath", bound=PathParams)
R = TypeVar("R")
T = TypeVar("T")

# Largest file, in bytes, to read or write by one request; larger ones go in blocks. Small files
# thus cost one round trip, and 4 MiB delay other messages of the connection little.
_AT_ONCE = 4 << 20

# Bytes that fit into one frame of 16 MiB as base64, with room for the rest of the message.
_ONE_MESSAGE = 11 << 20


class RemoteFileHandle:
    """
    A file that a server holds open for one connection.

    The handle ends with its connection; calls then raise `ConnectionLost`. It is not reopened,
    since the path may name another file then.
    """

    def __init__(self, session: "ClientSession", link: Link, params: OpenParams) -> None:
        self._session = session
        self._link = link
        # The caller's id may name another file of this connection: a server has many clients.
        self._params = msgspec.structs.replace(params, handle_id=uuid.uuid4().hex)
        self._handle_id = self._params.handle_id
        self._closed = False

    async def open(self) -> None:
        """Open the file on the server; call this once, before anything else."""
        with refusals(path=self._params.path):
            await self._link.call(FS_OPEN, self._params)

    async def read_block(self, offset: int, size: int) -> tuple[bytes, bool]:
        params = ReadBlockParams(handle_id=self._handle_id, offset=offset, len=size)
        with refusals(path=self._params.path):
            answer = await self._link.call(FS_READ_BLOCK, params)
        return decode_answer(answer.chunk), answer.eof

    async def write_block(self, offset: int, data: bytes) -> None:
        params = WriteBlockParams(handle_id=self._handle_id, offset=offset, chunk=Base64(data))
        with refusals(path=self._params.path):
            await self._link.call(FS_WRITE_BLOCK, params)

    async def aclose(self) -> None:
        """
        Close the handle, which completes a replacement.

        Raises:
            ConnectionLost: It is unknown whether the file was replaced.
        """
        # A second `fs/close` would be refused: the handle is gone.
        if self._closed:
            return
        self._closed = True
        try:
            with refusals(path=self._params.path):
                await self._link.call(
                    FS_CLOSE, CloseParams(handle_id=self._handle_id), cleanup=True
                )
        except ConnectionLost:
            # A handle for reading ends with its connection; nothing is lost.
            if self._params.mode == "replace":
                raise

    def discard(self) -> None:
        """Close the file without completing a replacement."""
        if self._closed:
            return
        if self._params.mode == "read":
            self._session.start_task(self._close_quietly())
        else:
            self._closed = True
            self._session.start_task(self._break())

    async def _break(self) -> None:
        """Close a handle for replacing a file on the server, without completing it."""
        # The wire has no method for this, and `fs/close` would complete the replacement. But this
        # handle cannot be read, and a server closes a handle whose read fails.
        params = ReadBlockParams(handle_id=self._handle_id, offset=0, len=1)
        with suppress(HoldfastError):
            await self._link.call(FS_READ_BLOCK, params)

    async def _close_quietly(self) -> None:
        with suppress(HoldfastError):
            await self.aclose()


class RemoteMissingWatch:
    """
    A watch that a server holds for one connection.

    It also fires when the server can no longer report: after a lost connection, or when a newer
    watch has replaced it. A server has one watch per connection.
    """

    def __init__(self, watch_id: int) -> None:
        self.watch_id = watch_id
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        await self._changed.wait()

    def cancel(self) -> None:
        """Wake the waiter."""
        # The wire cannot cancel a watch; the server drops it when the next one is set.
        self._changed.set()


class RemoteFileSystem:
    """The files of the machine that a client is connected to."""

    def __init__(self, session: "ClientSession") -> None:
        self._session = session
        # Grows with each watch, even across connections, so that a late event of an earlier watch
        # is never mistaken for one of the current watch.
        self._last_watch = 0
        self._watch: RemoteMissingWatch | None = None

    # -- the seam: reading

    async def read_file(self, params: ReadFileParams) -> bytes:
        """
        Read a file; a large one is read in blocks.

        One request reads it if links must not be followed, or if the server cannot apply a sandbox
        to a handle. The file then has to fit into one message.
        """
        # Handles follow links, and not every server applies a sandbox to them.
        has_blocks = params.follow_symlinks is not False and self._streams(params.sandbox)
        if not self._session.capabilities.file_read_limit:
            return await self._read_by_size(params, has_blocks)
        # A caller with a limit reads a larger file itself: the client of a server that is backed by
        # this one.
        if params.max_bytes is not UNSET or not has_blocks:
            return await self._read_whole(params)
        try:
            return await self._read_whole(msgspec.structs.replace(params, max_bytes=_AT_ONCE))
        except InvalidRequest as error:
            if error.errno != errno.EFBIG:
                raise
        return await self._again(lambda: self._read_in_blocks(params))

    async def get_metadata(self, params: GetMetadataParams) -> FileMetadata:
        return await self._look(FS_GET_METADATA, params)

    async def canonicalize(self, params: CanonicalizeParams) -> PathUri:
        return (await self._look(FS_CANONICALIZE, params)).path

    async def read_directory(self, params: ReadDirectoryParams) -> list[DirectoryEntry]:
        return (await self._look(FS_READ_DIRECTORY, params)).entries

    async def walk(self, params: WalkParams) -> WalkResponse:
        return await self._look(FS_WALK, params)

    # -- the seam: changes

    async def open(self, params: OpenParams) -> RemoteFileHandle:
        """
        Open a file; see `FileSystem.open`.

        Raises:
            InvalidRequest: Also if the server cannot replace a file in blocks.
        """
        if params.mode == "replace" and not self._session.capabilities.file_write_streaming:
            raise InvalidRequest("the server cannot write a file in blocks")
        link = await self._session.connected()
        if not self._session.capabilities.file_permissions:
            # Other servers do not know the member: the file gets their default permissions.
            params = msgspec.structs.replace(params, permissions=UNSET)
        handle = RemoteFileHandle(self._session, link, params)
        try:
            await handle.open()
        except asyncio.CancelledError:
            # The server may have opened it before the cancellation.
            handle.discard()
            raise
        return handle

    async def write_file(self, params: WriteFileParams) -> None:
        """
        Replace a file; a large one is written in blocks.

        One message of at most 11 MiB carries it if links must not be followed, or if the server
        cannot write blocks.
        """
        size = params.data_base64.size
        if (
            size > _AT_ONCE
            and params.follow_symlinks is not False
            and self._streams(params.sandbox, writing=True)
        ):
            data = await asyncio.to_thread(content_bytes, params.data_base64)
            await self._again(lambda: self._write_in_blocks(params, data))
            return
        if size > _ONE_MESSAGE:
            raise InvalidRequest(
                f"file is too large to write in one message: limit is {_ONE_MESSAGE} bytes"
            )
        # Repeated after a lost connection: writing the same bytes twice changes nothing.
        await self._look(FS_WRITE_FILE, params)

    async def create_directory(self, params: CreateDirectoryParams) -> None:
        await self._change(FS_CREATE_DIRECTORY, params)

    async def remove(self, params: RemoveParams) -> None:
        await self._change(FS_REMOVE, params)

    async def copy(self, params: CopyParams) -> None:
        await self._change(FS_COPY, params)

    async def rename(self, params: RenameParams) -> None:
        if not self._session.capabilities.file_rename:
            # Copying and removing would not be atomic; the caller may do that.
            raise Unsupported(codes.METHOD_NOT_FOUND, "exec-server cannot rename files")
        await self._change(FS_RENAME, params)

    async def watch_missing(self, params: WatchMissingParams) -> RemoteMissingWatch | None:
        """Watch for missing files; see `FileSystem.watch_missing`. Ends the previous watch."""
        if not self._session.capabilities.fs_watch_missing:
            return None
        link = await self._session.connected()
        # Before the request: afterwards the server no longer reports the previous watch.
        self.watch_ended()
        # A new id for each watch, since the server reports by id.
        self._last_watch += 1
        watch = self._watch = RemoteMissingWatch(self._last_watch)
        params = msgspec.structs.replace(params, watch_id=watch.watch_id)
        with refusals():
            answer = await link.call(FS_WATCH_MISSING, params)
        return watch if answer.watching else None

    # -- called by the session

    def missing_changed(self, event: MissingChangedEvent) -> None:
        """Fire the watch of this event; a replaced watch has already fired."""
        if self._watch is not None and self._watch.watch_id == event.watch_id:
            self.watch_ended()

    def watch_ended(self) -> None:
        """Fire and drop the current watch: its connection is gone, or the server has dropped it."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    # -- internals

    async def _look(self, method: Method[OnePath, R], params: OnePath) -> R:
        """Call, and repeat the call after each lost connection."""
        with refusals(path=params.path):
            return await self._session.call_again(method, params)

    async def _change(self, method: Method[P, R], params: P) -> R:
        """Call once; errors name the path if there is exactly one."""
        with refusals(path=params.path if isinstance(params, PathParams) else None):
            return await self._session.call(method, params)

    def _streams(self, sandbox: SandboxContext | None, *, writing: bool = False) -> bool:
        """Return True if the server has file handles that honour this sandbox."""
        has = self._session.capabilities
        if writing and not has.file_write_streaming:
            return False
        return sandbox is None or has.sandboxed_file_streaming

    async def _read_by_size(self, params: ReadFileParams, has_blocks: bool) -> bytes:
        """Read a file of a server that reads any file at once; see `read_file`."""
        most = params.max_bytes
        if has_blocks or most is not UNSET:
            # One more round trip: only the size shows whether one message can hold the file.
            metadata = await self.get_metadata(
                GetMetadataParams(
                    params.path, follow_symlinks=params.follow_symlinks, sandbox=params.sandbox
                )
            )
            if metadata.is_file and most is not UNSET and metadata.size > most:
                raise too_large(most)
            if has_blocks and metadata.is_file and metadata.size > _AT_ONCE:
                return await self._again(lambda: self._read_in_blocks(params))
        return await self._read_whole(msgspec.structs.replace(params, max_bytes=UNSET))

    async def _read_whole(self, params: ReadFileParams) -> bytes:
        return decode_answer((await self._look(FS_READ_FILE, params)).data_base64)

    async def _read_in_blocks(self, params: ReadFileParams) -> bytes:
        chunks: list[bytes] = []

        async def take(chunk: bytes) -> None:
            chunks.append(chunk)

        handle = await self.open(OpenParams(handle_id="", path=params.path, sandbox=params.sandbox))
        try:
            await read_blocks(handle, take)
        finally:
            await handle.aclose()
        return b"".join(chunks)

    async def _write_in_blocks(self, params: WriteFileParams, data: bytes) -> None:
        blocks = (data[at : at + BLOCK] for at in range(0, len(data), BLOCK))
        opening = OpenParams(handle_id="", path=params.path, mode="replace", sandbox=params.sandbox)
        handle = await self.open(opening)
        try:
            await write_blocks(handle, lambda: next(blocks, b""))
        except BaseException:
            handle.discard()
            raise
        await handle.aclose()

    # Unlike `call_again` this repeats a sequence of calls, since a handle is lost with its
    # connection.
    async def _again(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat `attempt` after each lost connection, with a new handle each time."""
        while True:
            try:
                return await attempt()
            except ConnectionLost:
                if self._session.lost_for_good:
                    raise
