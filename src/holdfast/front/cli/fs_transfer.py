"""
`holdfast fs get`, `put` and `cat`.

A download continues after a lost connection, as long as the original is unchanged: in the same
run by itself, in a later one with `--resume`. An upload replaces the file only at its end, so
there is nothing to continue.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from typing import BinaryIO

from msgspec import UNSET, UnsetType

from holdfast.base.errors import ConnectionLost, InvalidRequest, OperationFailed
from holdfast.engine.files.transfer import read_blocks
from holdfast.engine.files.trees import (
    local_folders,
    open_in_thread,
    permissions_of,
    run_together,
    send_file,
    walk_tree,
)
from holdfast.front.cli.exit_status import Ended
from holdfast.front.cli.fs import FOLDER, EnvironmentFiles, Outcome, complain, inside
from holdfast.front.cli.fs_local import PartialFile, is_folder, landing, make_folder, source_of
from holdfast.front.cli.progress import Progress
from holdfast.wire.protocol.fs import (
    CreateDirectoryParams,
    FileMetadata,
    GetMetadataParams,
    OpenParams,
)
from holdfast.wire.protocol.paths import PathUri

__all__ = ["cat", "get", "put"]

# Connections that may be lost in a row without a byte in between.
_ATTEMPTS = 5

# -- cat and get


async def cat(location: EnvironmentFiles, options: argparse.Namespace, outcome: Outcome) -> None:
    """Write files to stdout."""

    async def write(path: PathUri) -> None:
        metadata = await location.files.get_metadata(GetMetadataParams(path))
        await _fetch(location, path, metadata, _stdout(), 0, lambda size: None)

    for text in options.paths:
        await outcome.attempt(text, write(location.path(text)))


async def get(location: EnvironmentFiles, options: argparse.Namespace, outcome: Outcome) -> None:
    """Fetch files and folders: all paths but the last, or the only one to the current folder."""
    *sources, target = options.paths if len(options.paths) > 1 else [*options.paths, "."]
    # Checked before the first transfer.
    if len(sources) > 1 and target != "-" and not is_folder(target):
        raise Ended(1, f"{target} is no folder, which several sources need")
    for text in sources:
        await outcome.attempt(text, _get(location, text, target, options, outcome))


async def _get(
    location: EnvironmentFiles,
    text: str,
    target: str,
    options: argparse.Namespace,
    outcome: Outcome,
) -> None:
    source = location.path(text)
    name = os.path.basename(source.native) or "root"
    metadata = await location.files.get_metadata(GetMetadataParams(source))
    if metadata.is_directory:
        if not options.recursive or target == "-":
            raise InvalidRequest(FOLDER)
        await _get_folder(location, source, landing(target, name), options, outcome)
        return
    with Progress(name, metadata.size) as progress:
        if target == "-":
            await _fetch(location, source, metadata, _stdout(), 0, progress.advance)
        else:
            into = landing(target, name)
            await _get_file(location, source, metadata, into, options.resume, progress)


async def _get_folder(
    location: EnvironmentFiles,
    source: PathUri,
    target: str,
    options: argparse.Namespace,
    outcome: Outcome,
) -> None:
    found = await walk_tree(location.files, source)
    for path, message in found.errors:
        outcome.failed(str(path), OperationFailed(message))
    make_folder(target)
    for _, parts in found.folders:
        make_folder(os.path.join(target, *parts))
    with Progress(source.native, None) as progress:

        async def fetch(path: PathUri, into: str) -> None:
            metadata = await location.files.get_metadata(GetMetadataParams(path))
            await _get_file(location, path, metadata, into, options.resume, progress)

        await run_together(
            outcome.attempt(path.native, fetch(path, os.path.join(target, *parts)))
            for path, parts in found.files
        )


async def _get_file(
    location: EnvironmentFiles,
    source: PathUri,
    metadata: FileMetadata,
    target: str,
    resume: bool,
    progress: Progress,
) -> None:
    try:
        part = PartialFile(target, metadata, resume=resume)
    except OSError as error:
        # Name the target: the user has never seen the hidden name.
        raise OSError(error.errno, error.strerror, target) from error
    try:
        progress.advance(part.start)
        await _fetch(location, source, metadata, part.file, part.start, progress.advance)
    except BaseException:
        if part.give_up():
            complain(f"{target}: not complete; --resume goes on with it")
        raise
    part.complete(None if metadata.permissions is UNSET else metadata.permissions)


async def _fetch(
    location: EnvironmentFiles,
    source: PathUri,
    metadata: FileMetadata,
    file: BinaryIO,
    start: int,
    advance: Callable[[int], None],
) -> None:
    """
    Write a file from `start` on; continue after a lost connection if the original is unchanged.
    """
    offset = start
    attempts = _ATTEMPTS

    async def take(chunk: bytes) -> None:
        nonlocal offset, attempts
        await asyncio.to_thread(_write_all, file, chunk)
        offset += len(chunk)
        # Progress was made, so the count starts again.
        attempts = _ATTEMPTS
        advance(len(chunk))

    while True:
        try:
            handle = await location.files.open(OpenParams(handle_id="", path=source))
            try:
                await read_blocks(handle, take, start=offset)
            finally:
                await handle.aclose()
        except ConnectionLost:
            attempts -= 1
            if not attempts:
                raise
            # Raises if the connection is lost for good.
            now = await location.files.get_metadata(GetMetadataParams(source))
            if (now.size, now.modified_at_ms) != (metadata.size, metadata.modified_at_ms):
                raise OperationFailed("it changed while the connection was lost") from None
        else:
            return


def _stdout() -> BinaryIO:
    # Text printed before must come before the bytes.
    sys.stdout.flush()
    # Unbuffered, and not closed: it is the stdout of this process.
    return open(1, "wb", buffering=0, closefd=False)


def _write_all(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


# -- put


async def put(location: EnvironmentFiles, options: argparse.Namespace, outcome: Outcome) -> None:
    """Send files and folders."""
    for text in options.sources:
        await outcome.attempt(f"{text} to {options.target}", _put(location, text, options, outcome))


async def _put(
    location: EnvironmentFiles, text: str, options: argparse.Namespace, outcome: Outcome
) -> None:
    target = location.path(options.target)
    several = len(options.sources) > 1
    if text == "-":
        with Progress("stdin", None) as progress:
            await _send(location, sys.stdin.buffer, target, progress)
        return
    source = source_of(text)
    into = await inside(location, target, source.name, several=several)
    # As with `cp`, a trailing slash means a directory, even a missing one.
    if into == target and options.target.endswith("/"):
        into = target.child(source.name)
    if not source.is_directory:
        with Progress(source.name, source.size) as progress:
            await _put_file(location, source.path, into, progress)
    elif options.recursive:
        await _put_folder(location, source.path, into, outcome)
    else:
        raise InvalidRequest(FOLDER)


async def _put_folder(
    location: EnvironmentFiles, source: str, target: PathUri, outcome: Outcome
) -> None:
    files: list[tuple[str, PathUri]] = []
    for folder in local_folders(source):
        into = target
        for part in folder.parts:
            into = into.child(part)
        await location.files.create_directory(CreateDirectoryParams(into, recursive=True))
        here = os.path.join(source, *folder.parts)
        for name in (*folder.files, *folder.links):
            path = os.path.join(here, name)
            if is_folder(path):
                complain(f"{path}: a link to a folder is left out")
            else:
                files.append((path, into.child(name)))
        for name in folder.others:
            complain(f"{os.path.join(here, name)}: it is no file, and left out")
    with Progress(source, None) as progress:
        await run_together(
            outcome.attempt(path, _put_file(location, path, into, progress)) for path, into in files
        )


async def _put_file(
    location: EnvironmentFiles, source: str, target: PathUri, progress: Progress
) -> None:
    with await open_in_thread(lambda: open(source, "rb")) as file:
        await _send(location, file, target, progress, permissions_of(file))


async def _send(
    location: EnvironmentFiles,
    file: BinaryIO,
    target: PathUri,
    progress: Progress,
    permissions: int | UnsetType = UNSET,
) -> None:
    await send_file(
        location.files,
        file,
        target,
        in_blocks=location.writes_blocks,
        permissions=permissions,
        sent=progress.advance,
    )
