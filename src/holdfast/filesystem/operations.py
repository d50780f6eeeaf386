"""
The operations on files as system calls: with everything in reach, or inside of a sandbox.

Both sorts have the same methods, so that the seam in front of them (`local`) does not
care which one it has. They wait for the file system and are for threads.
"""

import os
from collections.abc import Iterable
from typing import Protocol

from holdfast.filesystem import directories, nofollow
from holdfast.filesystem.atomic_write import find_target, find_target_nofollow, write_pieces
from holdfast.filesystem.copy import copy
from holdfast.filesystem.handle import OpenFile, open_file, read_file
from holdfast.filesystem.nowait import metadata
from holdfast.filesystem.walk import Walked, walk
from holdfast.protocol.fs import DirectoryEntry, FileMetadata, OpenMode, WalkOptions
from holdfast.protocol.paths import PathUri

__all__ = ["DIRECT", "Operations"]


class Operations(Protocol):
    """
    What can be done with files, by absolute paths without dots.

    All of them raise `OSError` as the kernel does, and `Refused` for what the
    protocol words itself.
    """

    def read_file(self, path: str, *, follow_symlinks: bool) -> bytes:
        """All of a regular file."""

    def open_file(self, path: str, mode: OpenMode, permissions: int | None = None) -> OpenFile:
        """Open a regular file."""

    def write_file(self, path: str, pieces: Iterable[bytes], *, follow_symlinks: bool) -> None:
        """Create a file or replace its content."""

    def create_directory(self, path: str, *, recursive: bool, follow_symlinks: bool) -> None:
        """Make a folder."""

    def get_metadata(self, path: str, *, follow_symlinks: bool) -> FileMetadata:
        """What kind of file it is, its size and its times."""

    def canonicalize(self, path: str) -> str:
        """The path with all links resolved."""

    def read_directory(self, path: str) -> list[DirectoryEntry]:
        """What is in a folder."""

    def walk(self, path: str, uri: PathUri, options: WalkOptions) -> Walked:
        """What is in a folder and below it."""

    def remove(self, path: str, *, recursive: bool, force: bool, follow_symlinks: bool) -> None:
        """Remove a file or a folder."""

    def copy(self, source: str, destination: str, *, recursive: bool) -> None:
        """Copy a file, a link or a folder."""


class _Direct:
    """Operations with everything in reach that the server itself can reach."""

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
        return os.path.realpath(path, strict=True)

    def read_directory(self, path: str) -> list[DirectoryEntry]:
        return directories.read_directory(path)

    def walk(self, path: str, uri: PathUri, options: WalkOptions) -> Walked:
        return walk(path, uri, options)

    def remove(self, path: str, *, recursive: bool, force: bool, follow_symlinks: bool) -> None:
        remove = directories.remove if follow_symlinks else nofollow.remove
        remove(path, recursive=recursive, force=force)

    def copy(self, source: str, destination: str, *, recursive: bool) -> None:
        copy(source, destination, recursive=recursive)


DIRECT: Operations = _Direct()
"""Without a sandbox."""
