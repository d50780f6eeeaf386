"""
`holdfast fs get`, `put` and `cat`.

A download goes on after a lost connection, in the same run by itself and in a later one
with `--resume`, as long as the original is the same. A file that is sent replaces the old
one at its end and not before, so an upload has nothing to go on with.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import BinaryIO

from holdfast.cli.fs import FilePlace, Outcome, complain, inside
from holdfast.cli.fs_local import PartialFile, folder_of, landing, make_folder, source_of
from holdfast.cli.progress import Progress
from holdfast.errors import ConnectionLost, InvalidRequest, OperationFailed
from holdfast.filesystem.transfer import BLOCK, read_blocks, write_blocks
from holdfast.protocol.fs import FileMetadata, WalkOptions
from holdfast.protocol.paths import PathUri

__all__ = ["cat", "get", "put"]

_FILES_AT_ONCE = 4

_ATTEMPTS = 5
"""Connections that may be lost in a row, without a byte in between."""

_EVERYTHING = WalkOptions(
    max_depth=64, max_directories=10_000, max_entries=50_000, follow_directory_symlinks=False
)
"""As much as a server takes."""

_FOLDER = "it is a folder: give -r for all that is below it"


# -- cat and get


async def cat(place: FilePlace, options: argparse.Namespace, outcome: Outcome) -> None:
    """Write files to stdout."""

    async def write(path: PathUri) -> None:
        metadata = await place.files.get_metadata(path)
        await _fetch(place, path, metadata, _stdout(), 0, lambda size: None)

    for text in options.paths:
        await outcome.attempt(text, write(place.path(text)))


async def get(place: FilePlace, options: argparse.Namespace, outcome: Outcome) -> None:
    """Fetch a file or a folder."""
    source = place.path(options.source)
    name = os.path.basename(source.native) or "root"

    async def fetch() -> None:
        metadata = await place.files.get_metadata(source)
        if metadata.is_directory:
            if not options.recursive or options.target == "-":
                raise InvalidRequest(_FOLDER)
            await _get_folder(place, source, landing(options.target, name), options, outcome)
            return
        with Progress(name, metadata.size) as progress:
            if options.target == "-":
                await _fetch(place, source, metadata, _stdout(), 0, progress.advance)
            else:
                target = landing(options.target, name)
                await _get_file(place, source, metadata, target, options.resume, progress)

    await outcome.attempt(options.source, fetch())


async def _get_folder(
    place: FilePlace,
    source: PathUri,
    target: str,
    options: argparse.Namespace,
    outcome: Outcome,
) -> None:
    found = await place.files.walk(source, _EVERYTHING)
    if found.truncated:
        raise OperationFailed("there is more below it than can be fetched")
    for error in found.errors:
        outcome.failed(str(error.path), OperationFailed(error.message))
    above = len(source.native.rstrip("/")) + 1
    make_folder(target)
    with Progress(options.source, None) as progress:

        async def fetch(path: PathUri, into: str) -> None:
            metadata = await place.files.get_metadata(path)
            await _get_file(place, path, metadata, into, options.resume, progress)

        files: list[tuple[PathUri, str]] = []
        for entry in found.entries:
            into = os.path.join(target, entry.path.native[above:])
            if entry.kind == "directory":
                make_folder(into)
            else:
                files.append((entry.path, into))
        await _together(outcome.attempt(path.native, fetch(path, into)) for path, into in files)


async def _get_file(
    place: FilePlace,
    source: PathUri,
    metadata: FileMetadata,
    target: str,
    resume: bool,
    progress: Progress,
) -> None:
    part = PartialFile(target, metadata, resume=resume)
    try:
        progress.advance(part.start)
        await _fetch(place, source, metadata, part.file, part.start, progress.advance)
    except BaseException:
        if part.give_up():
            complain(f"{target}: not complete; --resume goes on with it")
        raise
    part.complete()


async def _fetch(
    place: FilePlace,
    source: PathUri,
    metadata: FileMetadata,
    file: BinaryIO,
    start: int,
    advance: Callable[[int], None],
) -> None:
    """Write a file from some place on; goes on after a lost connection if it is the same."""
    offset = start
    attempts = _ATTEMPTS

    async def take(chunk: bytes) -> None:
        nonlocal offset, attempts
        await asyncio.to_thread(_write_all, file, chunk)
        offset += len(chunk)
        attempts = _ATTEMPTS
        advance(len(chunk))

    while True:
        try:
            handle = await place.files.open(source)
            try:
                await read_blocks(handle, take, start=offset)
            finally:
                await handle.aclose()
        except ConnectionLost:
            attempts -= 1
            if not attempts:
                raise
            now = await place.files.get_metadata(source)  # raises too if it is lost for good
            if (now.size, now.modified_at_ms) != (metadata.size, metadata.modified_at_ms):
                raise OperationFailed("it changed while the connection was lost") from None
        else:
            return


def _stdout() -> BinaryIO:
    sys.stdout.flush()
    return open(1, "wb", buffering=0, closefd=False)


def _write_all(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


# -- put


async def put(place: FilePlace, options: argparse.Namespace, outcome: Outcome) -> None:
    """Send a file or a folder."""
    target = place.path(options.target)

    async def send() -> None:
        if options.source == "-":
            with Progress("stdin", None) as progress:
                await _send(place, sys.stdin.buffer, target, progress)
            return
        source = source_of(options.source)
        into = await inside(place, target, source.name)
        if into == target and options.target.endswith("/"):
            into = target.child(source.name)
        if not source.is_directory:
            with Progress(source.name, source.size) as progress:
                await _put_file(place, source.path, into, progress)
        elif options.recursive:
            await _put_folder(place, source.path, into, outcome)
        else:
            raise InvalidRequest(_FOLDER)

    await outcome.attempt(options.source, send())


async def _put_folder(place: FilePlace, source: str, target: PathUri, outcome: Outcome) -> None:
    files: list[tuple[str, PathUri]] = []
    for parts, names, links in folder_of(source):
        into = target
        for part in parts:
            into = into.child(part)
        await place.files.create_directory(into)
        here = os.path.join(source, *parts)
        files += [(os.path.join(here, name), into.child(name)) for name in names]
        for name in links:
            complain(f"{os.path.join(here, name)}: a link to a folder is left out")
    with Progress(source, None) as progress:
        await _together(
            outcome.attempt(path, _put_file(place, path, into, progress)) for path, into in files
        )


async def _put_file(place: FilePlace, source: str, target: PathUri, progress: Progress) -> None:
    with await asyncio.to_thread(open, source, "rb") as file:
        await _send(place, file, target, progress)


async def _send(place: FilePlace, file: BinaryIO, target: PathUri, progress: Progress) -> None:
    if not place.writes_blocks:
        data = await asyncio.to_thread(file.read)
        await place.files.write_file(target, data)
        progress.advance(len(data))
        return
    handle = await place.files.open(target, "replace")
    try:
        await write_blocks(handle, lambda: file.read(BLOCK), gave=progress.advance)
    except BaseException:
        handle.discard()
        raise
    await handle.aclose()


async def _together(works: Iterable[Coroutine[object, object, None]]) -> None:
    """A few at a time; the first that ends it all ends the others too."""
    waiting = iter(works)

    async def work() -> None:
        for one in waiting:
            await one

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_FILES_AT_ONCE):
                tasks.create_task(work())
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
