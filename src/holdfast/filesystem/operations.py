"""
File operations as system calls, with the server's own permissions or those of a sandbox.

Both implementations have the same methods, so that `local` need not know which one it uses. The
methods block, and run in threads.
"""

import os
from collections.abc import Iterable
from typing import Protocol

from holdfast.filesystem import directories, nofollow
from holdfast.filesystem.atomic_write import find_target, find_target_nofollow, write_pieces
from holdfast.filesystem.copy import copy
from holdfast.filesystem.handle import OpenFile, open_file, read_file
from holdfast.filesystem.nowait import metadata
from holdfast.filesystem.walk import walk
from holdfast.protocol.fs import DirectoryEntry, FileMetadata, OpenMode, WalkOptions, WalkResponse
from holdfast.protocol.paths import PathUri

__all__ = ["DIRECT", "Operations"]


class Operations(Protocol):
    """
    File operations by absolute paths without dots.

    They raise `OSError` for errors of system calls, and `Refused` for errors whose text is part
    of the protocol.
    """

    def read_file(self, path: str, *, follow_symlinks: bool) -> bytes:
        """Return the content of a regular file."""

    def open_file(self, path: str, mode: OpenMode, permissions: int | None = None) -> OpenFile:
        """Open a regular file."""

    def write_file(self, path: str, pieces: Iterable[bytes], *, follow_symlinks: bool) -> None:
        """Create a file or replace its content."""

    def create_directory(self, path: str, *, recursive: bool, follow_symlinks: bool) -> None:
        """Make a directory."""

    def get_metadata(self, path: str, *, follow_symlinks: bool) -> FileMetadata:
        """Return kind, size and times of a file."""

    def canonicalize(self, path: str) -> str:
        """Return the real path of an existing file."""

    def read_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the entries of a directory."""

    def walk(self, path: str, uri: PathUri, options: WalkOptions) -> WalkResponse:
        """Return the files and directories below a directory."""

    def remove(self, path: str, *, recursive: bool, force: bool, follow_symlinks: bool) -> None:
        """Remove a file or a directory."""

    def copy(self, source: str, destination: str, *, recursive: bool) -> None:
        """Copy a file, a link or a directory."""


class _Direct:
    """File operations with the permissions of the server process."""

    def read_file(self, path: str, *, follow_symlinks: bool) -> bytes:
        return read_file(path, follow_symlinks=follow_symlinks)

    def open_file(self, path: str, mode: OpenMode, permissions: int | None = None) -> OpenFile:
        return open_file(path, mode, permissions)

    def write_file(self, path: str, pieces: Iterable[bytes], *, follow_symlinks: bool) -> None:
        find = find_target if follow_symlinks else find_target_nofollow
        write_pieces(find(path), pieces)

    def create_directory(self, path: str, *, recursive: bool, follow_symlinks: bool) -> None:
        create = directories.create_directory if follow_symlinks else nofollow.create_directory
        create(path, recursive=recursive)

    def get_metadata(self, path: str, *, follow_symlinks: bool) -> FileMetadata:
        return metadata(path) if follow_symlinks else nofollow.get_metadata(path)

    def canonicalize(self, path: str) -> str:
        # Strict: a missing file has no real path.
        return os.path.realpath(path, strict=True)

    def read_directory(self, path: str) -> list[DirectoryEntry]:
        return directories.read_directory(path)

    def walk(self, path: str, uri: PathUri, options: WalkOptions) -> WalkResponse:
        return walk(path, uri, options)

    def remove(self, path: str, *, recursive: bool, force: bool, follow_symlinks: bool) -> None:
        remove = directories.remove if follow_symlinks else nofollow.remove
        remove(path, recursive=recursive, force=force)

    def copy(self, source: str, destination: str, *, recursive: bool) -> None:
        copy(source, destination, recursive=recursive)


DIRECT: Operations = _Direct()
"""File operations without a sandbox."""
