"""`holdfast fs ls`."""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from urllib.parse import unquote

from holdfast.base.errors import HoldfastError, NotFound, OperationFailed
from holdfast.engine.files.transfer import EVERYTHING
from holdfast.front.cli.fs import EnvironmentFiles, Outcome
from holdfast.wire.protocol.fs import (
    FileMetadata,
    GetMetadataParams,
    ReadDirectoryParams,
    WalkParams,
)
from holdfast.wire.protocol.paths import PathUri

__all__ = ["list_paths"]

# Concurrent requests for metadata.
_AT_ONCE = 32


class _ListedFile(NamedTuple):
    name: str
    path: PathUri
    # None unless requested by the options.
    metadata: FileMetadata | None
    is_directory: bool


async def list_paths(
    location: EnvironmentFiles, options: argparse.Namespace, outcome: Outcome
) -> None:
    """List each path of the options, sorted by name."""
    listed: list[_ListedFile] = []
    paths: Sequence[str] = options.paths or ["."]
    for text in paths:

        async def add(text: str = text) -> None:
            found = await _list(location, text, options, outcome)
            listed.extend(found)
            if not options.json:
                _print(found, options, heading=text if len(paths) > 1 else None)

        await outcome.attempt(text, add())
    if options.json:
        print(json.dumps([_table(line) for line in listed], indent=2, ensure_ascii=False))


async def _list(
    location: EnvironmentFiles, text: str, options: argparse.Namespace, outcome: Outcome
) -> list[_ListedFile]:
    path = location.path(text)
    metadata = await location.files.get_metadata(GetMetadataParams(path))
    if not metadata.is_directory:
        return [_ListedFile(text, path, metadata, is_directory=False)]
    if options.recursive:
        lines = await _walk(location, path, outcome)
    else:
        entries = await location.files.read_directory(ReadDirectoryParams(path))
        lines = [
            _ListedFile(entry.file_name, path.child(entry.file_name), None, entry.is_directory)
            for entry in entries
        ]
    lines.sort(key=lambda line: line.name)
    return await _with_metadata(location, lines) if options.long or options.json else lines


async def _walk(location: EnvironmentFiles, path: PathUri, outcome: Outcome) -> list[_ListedFile]:
    found = await location.files.walk(WalkParams(path, options=EVERYTHING))
    # A partial list would look complete to a script.
    if found.truncated:
        raise OperationFailed("it has too many entries to list")
    for error in found.errors:
        outcome.failed(_readable(str(error.path)), OperationFailed(error.message))
    above = len(str(path).rstrip("/")) + 1
    return [
        _ListedFile(_readable(str(entry.path)[above:]), entry.path, None, entry.kind == "directory")
        for entry in found.entries
    ]


def _readable(uri: str) -> str:
    return unquote(uri, errors="replace")


async def _with_metadata(
    location: EnvironmentFiles, lines: Sequence[_ListedFile]
) -> list[_ListedFile]:
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def look(line: _ListedFile) -> _ListedFile | None:
        async with at_once:
            try:
                return line._replace(
                    metadata=await location.files.get_metadata(GetMetadataParams(line.path))
                )
            except NotFound:
                # It was removed after the directory was read.
                return None
            except HoldfastError:
                return line

    async with asyncio.TaskGroup() as tasks:
        looks = [tasks.create_task(look(line)) for line in lines]
    return [line for task in looks if (line := task.result()) is not None]


def _print(
    lines: Sequence[_ListedFile], options: argparse.Namespace, *, heading: str | None
) -> None:
    if heading is not None:
        print(f"{heading}:")
    width = max((len(str(_size(line))) for line in lines), default=0)
    for line in lines:
        name = _shown(line.name) + ("/" if line.is_directory else "")
        if options.long:
            print(f"{_kind(line)[0]}  {_size(line):>{width}}  {_time(line)}  {name}")
        else:
            print(name)


def _shown(name: str) -> str:
    """Return the name without terminal control characters."""
    # Programs get the name unchanged, as far as UTF-8 can represent it.
    if not sys.stdout.isatty():
        return name.encode(errors="replace").decode()
    return "".join(character if character.isprintable() else "?" for character in name)


def _kind(line: _ListedFile) -> str:
    metadata = line.metadata
    if metadata is None:
        return "directory" if line.is_directory else "?"
    if metadata.is_symlink:
        return "link"
    if metadata.is_directory:
        return "directory"
    return "file" if metadata.is_file else "other"


def _size(line: _ListedFile) -> int:
    return 0 if line.metadata is None else line.metadata.size


def _time(line: _ListedFile) -> str:
    if line.metadata is None or not line.metadata.modified_at_ms:
        return "-".ljust(19)
    moment = datetime.fromtimestamp(line.metadata.modified_at_ms / 1000)
    return moment.isoformat(sep=" ", timespec="seconds")


def _table(line: _ListedFile) -> dict[str, object]:
    metadata = line.metadata
    return {
        "name": line.name,
        "path": str(line.path),
        "kind": _kind(line),
        "size": None if metadata is None else metadata.size,
        "modifiedAtMs": None if metadata is None else metadata.modified_at_ms,
    }
