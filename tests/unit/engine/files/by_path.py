"""Calls of `Operations` by path, for tests in which all else is secondary."""

from pathlib import Path

from holdfast.engine.files.handle import OpenFile
from holdfast.engine.files.operations import Operations
from holdfast.wire.protocol.fs import (
    CanonicalizeParams,
    CopyParams,
    CreateDirectoryParams,
    DirectoryEntry,
    FileContent,
    FileMetadata,
    GetMetadataParams,
    OpenMode,
    OpenParams,
    ReadDirectoryParams,
    ReadFileParams,
    RemoveParams,
    WalkOptions,
    WalkParams,
    WalkResponse,
    WriteFileParams,
)
from holdfast.wire.protocol.paths import PathUri


def read_file(files: Operations, path: Path | str, *, follow_symlinks: bool = True) -> bytes:
    return files.read_file(ReadFileParams(PathUri.from_path(path), follow_symlinks=follow_symlinks))


def open_file(files: Operations, path: Path | str, mode: OpenMode = "read") -> OpenFile:
    return files.open(OpenParams(handle_id="", path=PathUri.from_path(path), mode=mode))


def write_file(
    files: Operations, path: Path | str, data: bytes, *, follow_symlinks: bool = True
) -> None:
    uri = PathUri.from_path(path)
    content = FileContent(data)
    params = WriteFileParams(uri, data_base64=content, follow_symlinks=follow_symlinks)
    files.write_file(params, (data,))


def create_directory(
    files: Operations, path: Path | str, *, recursive: bool = True, follow_symlinks: bool = True
) -> None:
    uri = PathUri.from_path(path)
    files.create_directory(
        CreateDirectoryParams(uri, recursive=recursive, follow_symlinks=follow_symlinks)
    )


def get_metadata(
    files: Operations, path: Path | str, *, follow_symlinks: bool = True
) -> FileMetadata:
    return files.get_metadata(
        GetMetadataParams(PathUri.from_path(path), follow_symlinks=follow_symlinks)
    )


def canonicalize(files: Operations, path: Path | str) -> str:
    return files.canonicalize(CanonicalizeParams(PathUri.from_path(path)))


def read_directory(files: Operations, path: Path | str) -> list[DirectoryEntry]:
    return files.read_directory(ReadDirectoryParams(PathUri.from_path(path)))


def walk(files: Operations, path: Path | str, options: WalkOptions) -> WalkResponse:
    return files.walk(WalkParams(PathUri.from_path(path), options=options))


def remove(
    files: Operations,
    path: Path | str,
    *,
    recursive: bool = True,
    force: bool = False,
    follow_symlinks: bool = True,
) -> None:
    uri = PathUri.from_path(path)
    files.remove(
        RemoveParams(uri, recursive=recursive, force=force, follow_symlinks=follow_symlinks)
    )


def copy(
    files: Operations, source: Path | str, destination: Path | str, *, recursive: bool
) -> None:
    origin, target = PathUri.from_path(source), PathUri.from_path(destination)
    files.copy(CopyParams(source_path=origin, destination_path=target, recursive=recursive))
