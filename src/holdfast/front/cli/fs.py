"""`holdfast fs`: operations on local and remote files, both through `FileSystem`."""

import argparse
import asyncio
import errno
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from holdfast.backends import FileSystem
from holdfast.base.errors import (
    ConnectionLost,
    HoldfastError,
    InvalidRequest,
    NotFound,
    RemoteError,
)
from holdfast.base.late_import import load
from holdfast.base.system_text import without_number
from holdfast.front.cli.exit_status import FAILED, Ended
from holdfast.front.cli.server_options import choose_environment, opened, say_ignored_variable
from holdfast.wire.protocol.fs import (
    CopyParams,
    CreateDirectoryParams,
    GetMetadataParams,
    RemoveParams,
)
from holdfast.wire.protocol.paths import ForeignPathUri, InvalidPathUri, PathUri

__all__ = ["FOLDER", "NOT_FOUND", "EnvironmentFiles", "Outcome", "fs", "reason_of"]

NOT_FOUND = 4
"""Exit status if the only failures are missing files, for scripts."""


FOLDER = "it is a directory: use -r to include its contents"
"""Error for a directory where a file was expected."""


class EnvironmentFiles(NamedTuple):
    """The file system of a machine."""

    files: FileSystem
    cwd: str | None
    """Directory for relative paths; None if the server does not report it."""
    writes_blocks: bool
    """True if a file can be replaced in blocks."""

    def path(self, text: str) -> PathUri:
        """
        Return the URI of a path from the command line.

        Raises:
            Ended: It cannot be resolved.
        """
        try:
            if text.startswith("file:"):
                return PathUri.parse(text)
            # An older server does not report its directory.
            if not text.startswith("/") and self.cwd is None:
                raise Ended(FAILED, f"{text}: the server does not report its directory")
            return PathUri.from_path(os.path.join(self.cwd or "/", text))
        except InvalidPathUri as error:
            raise Ended(1, f"{text}: {error}") from error


class Outcome:
    """Exit status of a command with several parts, which continues after a failed part."""

    def __init__(self) -> None:
        self._statuses: set[int] = set()

    def failed(self, what: str, error: Exception) -> None:
        """Print the error of a failed part and note its status."""
        missing = isinstance(error, NotFound | FileNotFoundError)
        self._statuses.add(NOT_FOUND if missing else 1)
        # Name the path at fault if there are two, or if it is below the given directory.
        path = error.path if isinstance(error, HoldfastError) else _filename(error)
        # Do not repeat a path that the text already has.
        is_said = path is None or (" to " not in what and path.endswith(what))
        complain(f"{what}: {'' if is_said else f'{path}: '}{reason_of(error)}")

    async def attempt(self, what: str, work: Awaitable[None]) -> None:
        """Run a part; a lost connection ends the others as well."""
        try:
            await work
        except ConnectionLost:
            raise
        except (HoldfastError, OSError) as error:
            # Stop: the reader of the output is gone.
            if isinstance(error, BrokenPipeError):
                raise
            self.failed(what, error)

    @property
    def status(self) -> int:
        if not self._statuses:
            return 0
        # Any other failure takes precedence.
        return NOT_FOUND if self._statuses == {NOT_FOUND} else 1


def fs(operation: str, options: argparse.Namespace) -> int:
    """Run an operation and return its exit status."""
    try:
        return asyncio.run(_run(_operation(operation), options))
    except Ended as end:
        if end.text:
            complain(end.text)
        return end.status
    except ConnectionLost as error:
        complain(str(error))
        return FAILED


def complain(text: str) -> None:
    """Print an error on stderr."""
    with suppress(OSError):
        print(f"holdfast: {text}", file=sys.stderr)


def reason_of(error: Exception) -> str:
    """Return a readable reason for a failure."""
    if isinstance(error, RemoteError):
        return error.message
    if isinstance(error, HoldfastError):
        return without_number(str(error), error.errno)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def _filename(error: Exception) -> str | None:
    name = error.filename if isinstance(error, OSError) else None
    return name if isinstance(name, str) else None


Operation = Callable[[EnvironmentFiles, argparse.Namespace, Outcome], Awaitable[None]]


def _operation(name: str) -> Operation:
    if name == "ls":
        listing: Operation = load("holdfast.front.cli.fs_list:list_paths")
        return listing
    if name in {"get", "put", "cat"}:
        transfer: Operation = load(f"holdfast.front.cli.fs_transfer:{name}")
        return transfer
    return {"rm": _remove, "cp": _copy, "mv": _move, "mkdir": _make_folders}[name]


async def _run(operation: Operation, options: argparse.Namespace) -> int:
    outcome = Outcome()
    async with _file_location(options) as location:
        await operation(location, options, outcome)
    return outcome.status


@asynccontextmanager
async def _file_location(options: argparse.Namespace) -> AsyncIterator[EnvironmentFiles]:
    choose_environment(options)
    async with opened(options, complain) as environment:
        if options.verbose:
            name = f"`{options.on}`, " if environment.is_remote and options.on else ""
            complain(f"files of {name}{environment.where}")
            if options.by_default:
                say_ignored_variable(complain)
        if not environment.is_remote:
            yield EnvironmentFiles(environment.filesystem, os.getcwd(), writes_blocks=True)
            return
        info = await environment.info()
        cwd: str | None = None
        with suppress(InvalidPathUri, ForeignPathUri):
            # Paths of another operating system cannot be joined here.
            cwd = PathUri.parse(info.cwd).native if info.cwd else None
        blocks = info.capabilities.file_write_streaming
        yield EnvironmentFiles(environment.filesystem, cwd, writes_blocks=blocks)


async def _remove(
    location: EnvironmentFiles, options: argparse.Namespace, outcome: Outcome
) -> None:
    paths: Sequence[str] = options.paths
    for text in paths:
        removal = location.files.remove(
            RemoveParams(location.path(text), recursive=options.recursive, force=options.force)
        )
        await outcome.attempt(text, _with_advice(removal, recursive=options.recursive))


async def _with_advice(removal: Awaitable[None], *, recursive: bool) -> None:
    try:
        await removal
    except HoldfastError as error:
        # The server's text does not mention `-r`.
        if error.errno != errno.ENOTEMPTY or recursive:
            raise
        raise InvalidRequest(FOLDER, path=error.path) from error


async def _make_folders(
    location: EnvironmentFiles, options: argparse.Namespace, outcome: Outcome
) -> None:
    for text in options.paths:
        await outcome.attempt(
            text,
            location.files.create_directory(
                CreateDirectoryParams(location.path(text), recursive=True)
            ),
        )


async def _copy(location: EnvironmentFiles, options: argparse.Namespace, outcome: Outcome) -> None:
    async def copy(source: PathUri, into: PathUri) -> None:
        if (
            not options.recursive
            and (await location.files.get_metadata(GetMetadataParams(source))).is_directory
        ):
            raise InvalidRequest(FOLDER)
        await location.files.copy(
            CopyParams(source_path=source, destination_path=into, recursive=options.recursive)
        )

    await _each_to_target(location, options, outcome, copy)


async def _move(location: EnvironmentFiles, options: argparse.Namespace, outcome: Outcome) -> None:
    move = load("holdfast.engine.files.transfer:move")

    async def rename(source: PathUri, into: PathUri) -> None:
        await move(location.files, source, into)

    await _each_to_target(location, options, outcome, rename)


async def _each_to_target(
    location: EnvironmentFiles,
    options: argparse.Namespace,
    outcome: Outcome,
    work: Callable[[PathUri, PathUri], Awaitable[None]],
) -> None:
    """Call `work` with each source and its destination."""
    target = location.path(options.target)
    several = len(options.sources) > 1
    for text in options.sources:
        source = location.path(text)

        async def one(source: PathUri = source) -> None:
            into = await inside(location, target, os.path.basename(source.native), several=several)
            await work(source, into)

        await outcome.attempt(f"{text} to {options.target}", one())


async def inside(
    location: EnvironmentFiles, target: PathUri, name: str, *, several: bool = False
) -> PathUri:
    """
    Return a target, or the path in it if it is a directory.

    Args:
        location: Machine of the target.
        target: The target as given.
        name: File name for a target that is a directory.
        several: True if there are several sources, which need a directory.

    Raises:
        InvalidRequest: There are several sources, and it is not a directory.
    """
    is_folder = False
    with suppress(NotFound):
        is_folder = (await location.files.get_metadata(GetMetadataParams(target))).is_directory
    if several and not is_folder:
        raise InvalidRequest(f"{target.native} is not a directory, which several sources need")
    # The root directory has no name.
    return target.child(name) if is_folder and name else target
