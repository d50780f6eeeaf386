"""
File operations as system calls, with the server's own permissions or those of a sandbox.

Both implementations have the same methods, so that `local_files` need not know which one it uses.
The methods block, and run in threads.
"""

import os
from collections.abc import Iterable
from typing import Protocol

from holdfast.engine.files import directories, nofollow
from holdfast.engine.files.atomic_write import find_target, find_target_nofollow, write_pieces
from holdfast.engine.files.copy import copy
from holdfast.engine.files.handle import OpenFile, open_file, read_file
from holdfast.engine.files.nowait import metadata
from holdfast.engine.files.walk import walk
from holdfast.wire.protocol.fs import (
    CanonicalizeParams,
    CopyParams,
    CreateDirectoryParams,
    DirectoryEntry,
    FileMetadata,
    GetMetadataParams,
    OpenParams,
    ReadDirectoryParams,
    ReadFileParams,
    RemoveParams,
    WalkParams,
    WalkResponse,
    WriteFileParams,
)

__all__ = ["DIRECT", "Operations"]


class Operations(Protocol):
    """
    File operations of this machine; see `FileSystem`. The caller has checked the paths.

    They raise `OSError` for errors of system calls, and `Refused` for errors whose text is part
    of the protocol.
    """

    def read_file(self, params: ReadFileParams) -> bytes: ...

    def open(self, params: OpenParams) -> OpenFile: ...

    def write_file(self, params: WriteFileParams, pieces: Iterable[bytes]) -> None:
        """Write a file; `pieces` are the bytes of its content."""

    def create_directory(self, params: CreateDirectoryParams) -> None: ...

    def get_metadata(self, params: GetMetadataParams) -> FileMetadata: ...

    def canonicalize(self, params: CanonicalizeParams) -> str: ...

    def read_directory(self, params: ReadDirectoryParams) -> list[DirectoryEntry]: ...

    def walk(self, params: WalkParams) -> WalkResponse: ...

    def remove(self, params: RemoveParams) -> None: ...

    def copy(self, params: CopyParams) -> None: ...


class _Direct:
    """File operations with the permissions of the server process."""

    def read_file(self, params: ReadFileParams) -> bytes:
        return read_file(params)

    def open(self, params: OpenParams) -> OpenFile:
        return open_file(params)

    def write_file(self, params: WriteFileParams, pieces: Iterable[bytes]) -> None:
        find = find_target_nofollow if params.follow_symlinks is False else find_target
        write_pieces(find(params.path.native), pieces)

    def create_directory(self, params: CreateDirectoryParams) -> None:
        where = nofollow if params.follow_symlinks is False else directories
        where.create_directory(params.path.native, recursive=params.recursive is not False)

    def get_metadata(self, params: GetMetadataParams) -> FileMetadata:
        look = nofollow.get_metadata if params.follow_symlinks is False else metadata
        return look(params.path.native)

    def canonicalize(self, params: CanonicalizeParams) -> str:
        # Strict: a missing file has no real path.
        return os.path.realpath(params.path.native, strict=True)

    def read_directory(self, params: ReadDirectoryParams) -> list[DirectoryEntry]:
        return directories.read_directory(params.path.native)

    def walk(self, params: WalkParams) -> WalkResponse:
        return walk(params.path, params.options)

    def remove(self, params: RemoveParams) -> None:
        remove = nofollow.remove if params.follow_symlinks is False else directories.remove
        remove(
            params.path.native,
            recursive=params.recursive is not False,
            force=params.force is not False,
        )

    def copy(self, params: CopyParams) -> None:
        copy(params.source_path.native, params.destination_path.native, recursive=params.recursive)


DIRECT: Operations = _Direct()
"""File operations without a sandbox."""
