"""
`holdfast fs get`, `put` and `cat`.

A download continues after a lost connection, if the source is unchanged: automatically in the same
run, with `--resume` in a later one. An upload replaces the file only at its end, so there is
nothing to continue. The progress of a long transfer is shown on a terminal.
"""

import argparse
import asyncio
import glob
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import BinaryIO, Self, TextIO

from msgspec import UNSET, UnsetType

from holdfast.base.errors import ConnectionLost, InvalidRequest, OperationFailed
from holdfast.engine.files.transfer import (
    local_folders,
    masked,
    open_in_thread,
    permissions_of,
    read_blocks,
    run_together,
    send_file,
    walk_tree,
)
from holdfast.front.cli.exit_status import Ended
from holdfast.front.cli.fs import FOLDER, EnvironmentFiles, Outcome, complain, inside
from holdfast.wire.protocol.fs import (
    CreateDirectoryParams,
    FileMetadata,
    GetMetadataParams,
    OpenParams,
)
from holdfast.wire.protocol.paths import PathUri

__all__ = ["Progress", "cat", "get", "human_size", "put"]

# Maximum connections lost in a row without progress.
_ATTEMPTS = 5

# Seconds before progress is drawn: most transfers finish earlier.
_PATIENCE = 0.5

# Seconds between updates.
_INTERVAL = 0.1

_WIDTH = 24


# -- progress


class Progress:
    """
    Progress of a transfer, drawn on stderr if that is a terminal.

    As a context manager, it erases the line at the end.
    """

    def __init__(
        self,
        label: str,
        total: int | None,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            label: Name of the transfer.
            total: Its size in bytes, if known.
            stream: Stream to draw on.
            clock: Returns the time.
        """
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream.isatty()
        self._label = label
        self._total = total
        self._done = 0
        self._clock = clock
        self._began = clock()
        self._next = self._began + _PATIENCE
        self._drawn = False

    def advance(self, size: int) -> None:
        """Add `size` transferred bytes."""
        self._done += size
        now = self._clock()
        if self._shown and now >= self._next:
            self._next = now + _INTERVAL
            self._draw(now)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._drawn:
            # Return to the start of the line and erase it.
            self._write("\r\x1b[K")

    def _draw(self, now: float) -> None:
        self._drawn = True
        speed = self._done / max(now - self._began, 1e-9)
        parts = [human_size(self._done)]
        if self._total:
            share = min(self._done / self._total, 1.0)
            bar = "█" * int(share * _WIDTH)
            parts = [f"{bar:░<{_WIDTH}} {share:4.0%}", f"{parts[0]} of {human_size(self._total)}"]
        parts.append(f"{human_size(int(speed))}/s")
        if self._total and speed > 0:
            left = int(max(self._total - self._done, 0) / speed)
            parts.append(f"{left // 60}:{left % 60:02} left")
        self._write("\r\x1b[K" + f"{self._label}  {'  '.join(parts)}"[: _columns()])

    def _write(self, text: str) -> None:
        # Ignore write errors: the terminal may have closed.
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


def human_size(size: int) -> str:
    """Return a human-readable size."""
    number = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns - 1
    except OSError:
        return 79


# -- the downloaded file


class PartialFile:
    """
    A download in progress: a hidden file next to the target.

    Its name has the size and time of the source, so that a later attempt can check whether that
    is unchanged. Partial files of other sources are removed.
    """

    def __init__(self, target: str, original: FileMetadata, *, resume: bool) -> None:
        """
        Args:
            target: Its final path.
            original: Metadata of the source.
            resume: True to continue an earlier attempt, if there is one.

        Raises:
            OSError: It cannot be created.
        """
        folder, name = os.path.split(target)
        self._target = target
        self._path = os.path.join(folder, f".{name}.{original.size}-{original.modified_at_ms}.part")
        for left in glob.glob(os.path.join(glob.escape(folder), f".{glob.escape(name)}.*-*.part")):
            if left != self._path:
                os.unlink(left)
        # The name proves that the source is unchanged; without `resume` it is truncated anyway.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if resume else os.O_TRUNC)
        self.file: BinaryIO = open(os.open(self._path, flags, 0o666), "r+b")  # noqa: SIM115 - `complete` and `give_up` close it
        self.start = min(self.file.seek(0, os.SEEK_END), original.size)
        """Number of bytes from an earlier attempt."""
        self.file.seek(self.start)
        # An earlier attempt may have written more than the size of the source.
        self.file.truncate()

    def complete(self, permissions: int | None) -> None:
        """
        Rename the complete file to the target.

        Args:
            permissions: Permission bits of the source, if known.
        """
        if permissions is not None:
            os.fchmod(self.file.fileno(), masked(permissions))
        self.file.close()
        os.replace(self._path, self._target)

    def give_up(self) -> bool:
        """Keep it for another attempt unless it is empty; return True if kept."""
        with suppress(OSError):
            self.file.close()
        # An empty file would be useless.
        if os.path.getsize(self._path):
            return True
        os.unlink(self._path)
        return False


def _is_folder(path: str) -> bool:
    return os.path.isdir(path)


def _landing(target: str, name: str) -> str:
    """Return the target, or the path in it if it is a directory."""
    return os.path.join(target, name) if os.path.isdir(target) else target


# -- cat and get


async def cat(location: EnvironmentFiles, options: argparse.Namespace, outcome: Outcome) -> None:
    """Write files to stdout."""

    async def write(path: PathUri) -> None:
        metadata = await location.files.get_metadata(GetMetadataParams(path))
        await _fetch(location, path, metadata, _stdout(), 0, lambda size: None)

    for text in options.paths:
        await outcome.attempt(text, write(location.path(text)))


async def get(location: EnvironmentFiles, options: argparse.Namespace, outcome: Outcome) -> None:
    """Copy files and directories to the last path, or a single one to the current directory."""
    *sources, target = options.paths if len(options.paths) > 1 else [*options.paths, "."]
    # Checked before the first transfer.
    if len(sources) > 1 and target != "-" and not _is_folder(target):
        raise Ended(1, f"{target} is not a directory, which several sources need")
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
        await _get_folder(location, source, _landing(target, name), options, outcome)
        return
    with Progress(name, metadata.size) as progress:
        if target == "-":
            await _fetch(location, source, metadata, _stdout(), 0, progress.advance)
        else:
            into = _landing(target, name)
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
    os.makedirs(target, exist_ok=True)
    for _, parts in found.folders:
        os.makedirs(os.path.join(target, *parts), exist_ok=True)
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
        # Name the target: the user does not know the hidden name.
        raise OSError(error.errno, error.strerror, target) from error
    try:
        progress.advance(part.start)
        await _fetch(location, source, metadata, part.file, part.start, progress.advance)
    except BaseException:
        if part.give_up():
            complain(f"{target}: incomplete; use --resume to continue")
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
    Copy a file from `start` on; continue after a lost connection if the source is unchanged.
    """
    offset = start
    attempts = _ATTEMPTS

    async def take(chunk: bytes) -> None:
        nonlocal offset, attempts
        await asyncio.to_thread(_write_all, file, chunk)
        offset += len(chunk)
        # Reset the count, since there was progress.
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
    # Text printed earlier must precede the bytes.
    sys.stdout.flush()
    # Unbuffered, and not closed: it is the stdout of this process.
    return open(1, "wb", buffering=0, closefd=False)


def _write_all(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


# -- put


async def put(location: EnvironmentFiles, options: argparse.Namespace, outcome: Outcome) -> None:
    """Copy local files and directories to the machine."""
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
    source, name, size = _local_file(text)
    into = await inside(location, target, name, several=several)
    # As with `cp`, a trailing slash means a directory, even if missing.
    if into == target and options.target.endswith("/"):
        into = target.child(name)
    if not _is_folder(source):
        with Progress(name, size) as progress:
            await _put_file(location, source, into, progress)
    elif options.recursive:
        await _put_folder(location, source, into, outcome)
    else:
        raise InvalidRequest(FOLDER)


def _local_file(text: str) -> tuple[str, str, int]:
    """Return the absolute path, name and size of a source."""
    path = os.path.abspath(text)
    return path, os.path.basename(path), os.stat(path).st_size


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
            if _is_folder(path):
                complain(f"{path}: skipped, a link to a directory")
            else:
                files.append((path, into.child(name)))
        for name in folder.others:
            complain(f"{os.path.join(here, name)}: skipped, not a regular file")
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
