"""
Handlers of `fs/*`, which translate between the wire and the file system.

Requests run concurrently, but those on one handle run in the order of arrival. Each change is
recorded in the audit log.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import UNSET

from holdfast.backends import FileSystem
from holdfast.base.errors import HoldfastError
from holdfast.engine.files.errno_mapping import native_path
from holdfast.engine.files.handle import check_read_length, check_write_range
from holdfast.server.open_files import ServedFile, check_handle_id
from holdfast.server.operate.records import FileRecord
from holdfast.server.server_connection import ServerConnection
from holdfast.server.sessions import short_session
from holdfast.wire.log_event import clip, path_text
from holdfast.wire.protocol.fs import (
    CanonicalizeParams,
    CanonicalizeResponse,
    CloseParams,
    CopyParams,
    CreateDirectoryParams,
    FileMetadata,
    GetMetadataParams,
    OpenParams,
    OpenResponse,
    ReadBlockParams,
    ReadDirectoryParams,
    ReadDirectoryResponse,
    ReadFileParams,
    RemoveParams,
    RenameParams,
    WalkParams,
    WalkResponse,
    WatchMissingParams,
    WatchMissingResponse,
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
from holdfast.wire.protocol.wire_types import Empty, Method
from holdfast.wire.rpc.base64 import encode_base64
from holdfast.wire.rpc.encode import Encoded, encode_value
from holdfast.wire.rpc.router import Router

__all__ = ["add_file_methods"]

_EMPTY = Empty()

_Changing: TypeAlias = (
    WriteFileParams | CreateDirectoryParams | RemoveParams | CopyParams | RenameParams
)
_Change = TypeVar("_Change", bound=_Changing)

# Maximum bytes of base64 that are coded in the event loop: 1 MiB takes less than a millisecond,
# about as much as handing it to a thread.
_AT_ONCE = 1 << 20

# Entries encoded at a time: the encoder holds the GIL, so no other thread runs meanwhile.
_BATCH = 512


def add_file_methods(router: Router[ServerConnection]) -> None:
    """Add the handlers of this module to a router."""
    router.add(FS_READ_FILE, _read_file)
    router.add(FS_OPEN, _open)
    router.add(FS_READ_BLOCK, _read_block)
    router.add(FS_WRITE_BLOCK, _write_block)
    router.add(FS_CLOSE, _close)
    router.add(FS_GET_METADATA, _get_metadata)
    router.add(FS_CANONICALIZE, _canonicalize)
    router.add(FS_READ_DIRECTORY, _read_directory)
    router.add(FS_WALK, _walk)
    router.add(FS_WATCH_MISSING, _watch_missing)
    _add_change(router, FS_WRITE_FILE, lambda files, params: files.write_file(params))
    _add_change(router, FS_CREATE_DIRECTORY, lambda files, params: files.create_directory(params))
    _add_change(router, FS_REMOVE, lambda files, params: files.remove(params))
    _add_change(router, FS_COPY, lambda files, params: files.copy(params))
    _add_change(router, FS_RENAME, lambda files, params: files.rename(params))


# -- whole files


def _read_file(client: ServerConnection, params: ReadFileParams) -> Encoded | Awaitable[Encoded]:
    if client.local_files is not None:
        # A small file in the page cache needs no thread.
        found = client.local_files.cached_content(params)
        if found is not None:
            return _content(encode_base64(found))
    return _read_file_later(client, params)


def _content(encoded: bytes) -> Encoded:
    # Not encoded again: `scripts/bench --without encoded-content`.
    return Encoded(b'{"dataBase64":"', encoded, b'"}')


async def _read_file_later(client: ServerConnection, params: ReadFileParams) -> Encoded:
    async with client.response_slots.slot():
        data = await client.filesystem.read_file(params)
        if len(data) <= _AT_ONCE:
            encoded = encode_base64(data)
        else:
            encoded = await client.threads.run(partial(encode_base64, data))
    return _content(encoded)


# -- files in blocks


def _open(client: ServerConnection, params: OpenParams) -> Awaitable[OpenResponse]:
    if client.local_files is not None:
        # First: the protocol reports a foreign path before a bad id.
        native_path(params.path)
    check_handle_id(params.handle_id)
    return _opened(client, params, client.files.add(params.handle_id))


async def _opened(client: ServerConnection, params: OpenParams, file: ServedFile) -> OpenResponse:
    try:
        await file.open(client.filesystem, params)
    except BaseException as error:
        client.files.forget(params.handle_id, file)
        if isinstance(error, Exception):
            _note_opened(client, params, error)
        raise
    _note_opened(client, params, None)
    return OpenResponse(handle_id=params.handle_id)


def _read_block(client: ServerConnection, params: ReadBlockParams) -> Awaitable[Encoded]:
    check_handle_id(params.handle_id)
    check_read_length(params.len)
    return _read(client, params, client.files.get(params.handle_id))


async def _read(client: ServerConnection, params: ReadBlockParams, file: ServedFile) -> Encoded:
    try:
        chunk, eof = await file.read(params.offset, params.len)
    except Exception:
        client.files.forget(params.handle_id, file)
        raise
    end = b'","eof":true}' if eof else b'","eof":false}'
    return Encoded(b'{"chunk":"', encode_base64(chunk), end)


def _write_block(client: ServerConnection, params: WriteBlockParams) -> Awaitable[Empty]:
    check_handle_id(params.handle_id)
    data = params.chunk.data
    check_write_range(params.offset, len(data))
    return _write(client.files.get(params.handle_id), params.offset, data)


async def _write(file: ServedFile, offset: int, data: bytes) -> Empty:
    await file.write(offset, data)
    return _EMPTY


def _close(client: ServerConnection, params: CloseParams) -> Empty | Awaitable[Empty]:
    check_handle_id(params.handle_id)
    file = client.files.take(params.handle_id)
    return _EMPTY if file is None else _closed(client, file)


async def _closed(client: ServerConnection, file: ServedFile) -> Empty:
    await client.files.close(file)
    return _EMPTY


# -- names


def _get_metadata(
    client: ServerConnection, params: GetMetadataParams
) -> FileMetadata | Awaitable[FileMetadata]:
    if client.local_files is not None:
        known = client.local_files.cached_metadata(params)
        if known is not None:
            return known if client.acknowledges else _as_codex(known)
    return _look(client, params)


async def _look(client: ServerConnection, params: GetMetadataParams) -> FileMetadata:
    found = await client.filesystem.get_metadata(params)
    return found if client.acknowledges else _as_codex(found)


def _as_codex(found: FileMetadata) -> FileMetadata:
    """Return metadata without `permissions`, which are only sent to Holdfast clients."""
    return msgspec.structs.replace(found, permissions=UNSET)


async def _canonicalize(
    client: ServerConnection, params: CanonicalizeParams
) -> CanonicalizeResponse:
    return CanonicalizeResponse(path=await client.filesystem.canonicalize(params))


async def _read_directory(
    client: ServerConnection, params: ReadDirectoryParams
) -> ReadDirectoryResponse | Encoded:
    async with client.response_slots.slot():
        entries = await client.filesystem.read_directory(params)
        if len(entries) <= _BATCH:
            return ReadDirectoryResponse(entries=entries)
        listed = await client.threads.run(partial(_encode_list, entries))
    return Encoded(b'{"entries":', *listed, b"}")


async def _walk(client: ServerConnection, params: WalkParams) -> WalkResponse | Encoded:
    async with client.response_slots.slot():
        found = await client.filesystem.walk(params)
        if len(found.entries) + len(found.errors) <= _BATCH:
            return found
        return await client.threads.run(partial(_encode_walk, found))


def _encode_walk(found: WalkResponse) -> Encoded:
    entries, errors = _encode_list(found.entries), _encode_list(found.errors)
    end = b',"truncated":true}' if found.truncated else b',"truncated":false}'
    return Encoded(b'{"entries":', *entries, b',"errors":', *errors, end)


def _encode_list(items: Sequence[object]) -> list[bytes]:
    """Encode a long list as JSON, in batches, so that other threads run in between."""
    batches = [
        encode_value(items[start : start + _BATCH])[1:-1] for start in range(0, len(items), _BATCH)
    ]
    return [b"[", b",".join(batches), b"]"]


async def _watch_missing(
    client: ServerConnection, params: WatchMissingParams
) -> WatchMissingResponse:
    return WatchMissingResponse(watching=await client.files.watch(params))


# -- records of changes


def _add_change(
    router: Router[ServerConnection],
    method: Method[_Change, Empty],
    change: Callable[[FileSystem, _Change], Awaitable[None]],
) -> None:
    """Serve a method that changes files, and record both success and failure."""
    operation = method.name.removeprefix("fs/")

    async def handle(client: ServerConnection, params: _Change) -> Empty:
        # Kept if the task is cancelled, since `CancelledError` is not an `Exception`.
        outcome: str | None = "cancelled"
        try:
            await change(client.filesystem, params)
            outcome = None
        except Exception as error:
            outcome = _reason(error)
            raise
        finally:
            _note_change(client, operation, params, outcome)
        return _EMPTY

    router.add(method, handle)


def _note_opened(client: ServerConnection, params: OpenParams, error: Exception | None) -> None:
    """Record an attempt to open a file for writing."""
    if params.mode != "read":
        reason = None if error is None else _reason(error)
        _note_change(client, f"open:{params.mode}", params, reason)


def _note_change(
    client: ServerConnection,
    operation: str,
    params: _Changing | OpenParams,
    error: str | None,
) -> None:
    records = client.state.records
    if records.audit is None:
        return
    source = None
    if isinstance(params, CopyParams | RenameParams):
        path, source = params.destination_path, path_text(params.source_path)
    else:
        path = params.path
    size = None
    if isinstance(params, WriteFileParams):
        size = params.data_base64.size
    records.add(
        FileRecord(
            principal=client.principal,
            session=short_session(client.session.id),
            operation=operation,
            path=path_text(path),
            source=source,
            bytes=size,
            sandboxed=not isinstance(params, RenameParams) and params.sandbox is not None,
            error=error,
        )
    )


def _reason(error: Exception) -> str:
    return clip(str(error)) if isinstance(error, HoldfastError) else type(error).__name__
