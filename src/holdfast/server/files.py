"""
Handlers of `fs/*`: they translate between the wire and the file system.

Requests run concurrently; requests on one handle run in the order of arrival.
"""

from collections.abc import Awaitable, Iterable, Sequence
from functools import partial

import msgspec
from msgspec import UNSET

from holdfast.errors import InvalidRequest
from holdfast.filesystem.handle import check_read_length, check_write_range
from holdfast.protocol.base import Empty
from holdfast.protocol.fs import (
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
from holdfast.protocol.methods import (
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
from holdfast.rpc.base64 import InvalidBase64, decode_base64, decode_base64_pieces, encode_base64
from holdfast.rpc.encode import Encoded, encode_value
from holdfast.rpc.router import Router
from holdfast.server.audited import audited_change, note_opened
from holdfast.server.connection import ServerConnection
from holdfast.server.open_files import ServedFile, check_handle_id

__all__ = ["add_file_methods"]

_EMPTY = Empty()

# Bytes up to which base64 is coded in the event loop: 1 MiB takes less than a millisecond, and
# the detour over a thread costs about as much.
_AT_ONCE = 1 << 20

# Entries that are encoded at once. The encoder keeps the GIL, so no other thread runs meanwhile.
_BATCH = 512


def add_file_methods(router: Router[ServerConnection]) -> None:
    """Add the handlers of this module to a router."""
    router.add(FS_READ_FILE, _read_file)
    router.add(FS_OPEN, _open)
    router.add(FS_READ_BLOCK, _read_block)
    router.add(FS_WRITE_BLOCK, _write_block)
    router.add(FS_CLOSE, _close)
    router.add(FS_WRITE_FILE, audited_change("writeFile", _write_file))
    router.add(FS_CREATE_DIRECTORY, audited_change("createDirectory", _create_directory))
    router.add(FS_GET_METADATA, _get_metadata)
    router.add(FS_CANONICALIZE, _canonicalize)
    router.add(FS_READ_DIRECTORY, _read_directory)
    router.add(FS_WALK, _walk)
    router.add(FS_REMOVE, audited_change("remove", _remove))
    router.add(FS_COPY, audited_change("copy", _copy))
    router.add(FS_RENAME, audited_change("rename", _rename))
    router.add(FS_WATCH_MISSING, _watch_missing)


def _follows(follow_symlinks: bool | None) -> bool:
    # Links are followed unless the request says otherwise.
    return follow_symlinks is not False


# -- whole files


def _read_file(client: ServerConnection, params: ReadFileParams) -> Encoded | Awaitable[Encoded]:
    follow = _follows(params.follow_symlinks)
    # A small file in the page cache is answered at once, without a thread.
    found = client.filesystem.read_file_nowait(
        params.path, follow_symlinks=follow, sandbox=params.sandbox
    )
    if found is None:
        return _read_file_later(client, params)
    return _content(encode_base64(found))


def _content(encoded: bytes) -> Encoded:
    return Encoded(b'{"dataBase64":"', encoded, b'"}')


async def _read_file_later(client: ServerConnection, params: ReadFileParams) -> Encoded:
    filesystem = client.filesystem
    async with client.response_slots.slot():
        data = await filesystem.read_file(
            params.path, follow_symlinks=_follows(params.follow_symlinks), sandbox=params.sandbox
        )
        if len(data) <= _AT_ONCE:
            encoded = encode_base64(data)
        else:
            encoded = await client.threads.run(partial(encode_base64, data))
    return _content(encoded)


async def _write_file(client: ServerConnection, params: WriteFileParams) -> Empty:
    text = params.data_base64
    pieces: Iterable[bytes]
    try:
        # Large contents are decoded by the thread that writes them.
        pieces = (decode_base64(text),) if len(text) <= _AT_ONCE else decode_base64_pieces(text)
        await client.filesystem.write_pieces(
            params.path,
            pieces,
            follow_symlinks=_follows(params.follow_symlinks),
            sandbox=params.sandbox,
        )
    except InvalidBase64 as error:
        raise InvalidRequest(f"fs/writeFile requires valid base64 dataBase64: {error}") from None
    return _EMPTY


# -- files in blocks


def _open(client: ServerConnection, params: OpenParams) -> Awaitable[OpenResponse]:
    # First of all: the real server reports a foreign path before a bad id.
    client.filesystem.check_path(params.path)
    check_handle_id(params.handle_id)
    return _opened(client, params, client.files.add(params.handle_id))


async def _opened(client: ServerConnection, params: OpenParams, file: ServedFile) -> OpenResponse:
    try:
        await file.open(client.filesystem, params)
    except BaseException as error:
        client.files.forget(params.handle_id, file)
        if isinstance(error, Exception):
            note_opened(client, params, error)
        raise
    note_opened(client, params, None)
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


async def _create_directory(client: ServerConnection, params: CreateDirectoryParams) -> Empty:
    await client.filesystem.create_directory(
        params.path,
        recursive=params.recursive is not False,
        follow_symlinks=_follows(params.follow_symlinks),
        sandbox=params.sandbox,
    )
    return _EMPTY


def _get_metadata(
    client: ServerConnection, params: GetMetadataParams
) -> FileMetadata | Awaitable[FileMetadata]:
    filesystem = client.filesystem
    follow = _follows(params.follow_symlinks)
    known = filesystem.get_metadata_nowait(
        params.path, follow_symlinks=follow, sandbox=params.sandbox
    )
    if known is None:
        return _look(client, params, follow)
    return known if client.acknowledges else _as_codex(known)


async def _look(client: ServerConnection, params: GetMetadataParams, follow: bool) -> FileMetadata:
    found = await client.filesystem.get_metadata(
        params.path, follow_symlinks=follow, sandbox=params.sandbox
    )
    return found if client.acknowledges else _as_codex(found)


def _as_codex(found: FileMetadata) -> FileMetadata:
    """Return metadata without `permissions`, which only Holdfast clients get."""
    return msgspec.structs.replace(found, permissions=UNSET)


async def _canonicalize(
    client: ServerConnection, params: CanonicalizeParams
) -> CanonicalizeResponse:
    path = await client.filesystem.canonicalize(params.path, sandbox=params.sandbox)
    return CanonicalizeResponse(path=path)


async def _read_directory(
    client: ServerConnection, params: ReadDirectoryParams
) -> ReadDirectoryResponse | Encoded:
    filesystem = client.filesystem
    async with client.response_slots.slot():
        entries = await filesystem.read_directory(params.path, sandbox=params.sandbox)
        if len(entries) <= _BATCH:
            return ReadDirectoryResponse(entries=entries)
        listed = await client.threads.run(partial(_encode_list, entries))
    return Encoded(b'{"entries":', *listed, b"}")


async def _walk(client: ServerConnection, params: WalkParams) -> WalkResponse | Encoded:
    async with client.response_slots.slot():
        found = await client.filesystem.walk(params.path, params.options, sandbox=params.sandbox)
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


async def _remove(client: ServerConnection, params: RemoveParams) -> Empty:
    await client.filesystem.remove(
        params.path,
        recursive=params.recursive is not False,
        force=params.force is not False,
        follow_symlinks=_follows(params.follow_symlinks),
        sandbox=params.sandbox,
    )
    return _EMPTY


async def _copy(client: ServerConnection, params: CopyParams) -> Empty:
    await client.filesystem.copy(
        params.source_path,
        params.destination_path,
        recursive=params.recursive,
        sandbox=params.sandbox,
    )
    return _EMPTY


async def _rename(client: ServerConnection, params: RenameParams) -> Empty:
    await client.filesystem.rename(params.source_path, params.destination_path)
    return _EMPTY


async def _watch_missing(
    client: ServerConnection, params: WatchMissingParams
) -> WatchMissingResponse:
    return WatchMissingResponse(watching=await client.files.watch(params))
