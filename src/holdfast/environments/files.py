"""
Files the way scripts use them: paths as text, content as text or bytes.

The seam below, `Environment.filesystem`, has the rest: blocks, watches, links.
"""

import asyncio
import os
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

from holdfast.backends import FileSystem
from holdfast.environments.folder import AnyPath
from holdfast.errors import InvalidParams, NotFound
from holdfast.filesystem.transfer import BLOCK, read_blocks, write_blocks
from holdfast.protocol.fs import DirectoryEntry, FileMetadata, WalkOptions, WalkResponse
from holdfast.protocol.paths import ForeignPathUri, PathUri
from holdfast.protocol.sandbox import SandboxContext

if TYPE_CHECKING:
    from holdfast.environments.environment import Environment

__all__ = ["Files"]

LocalPath = str | os.PathLike[str]


class Files:
    """
    The files of one environment.

    A path is absolute or relative to the environment's folder. If the environment has a
    sandbox, what that does not allow is refused, or not there.

    Raises (all methods):
        NotFound: There is no such file.
        InvalidRequest: The operation cannot be done on it, or is not permitted.
        OperationFailed: Any other error of the system.
    """

    def __init__(self, environment: "Environment") -> None:
        self._environment = environment

    async def read_text(
        self, path: AnyPath, *, encoding: str = "utf-8", errors: str = "strict"
    ) -> str:
        """
        All of a file as text.

        Raises:
            UnicodeDecodeError: It is none; `errors="replace"` takes it all the same.
        """
        return (await self.read_bytes(path)).decode(encoding, errors)

    async def read_bytes(self, path: AnyPath) -> bytes:
        """All of a file, up to 512 MiB."""
        return await self._filesystem.read_file(
            await self._uri(path), sandbox=await self._sandbox()
        )

    async def write(self, path: AnyPath, data: str | bytes, *, parents: bool = False) -> None:
        """
        Create a file or replace it; text as UTF-8.

        Args:
            path: Where.
            data: All of its content.
            parents: Make the folders above it if they are missing.
        """
        uri = await self._uri(path)
        raw = data.encode() if isinstance(data, str) else data
        sandbox = await self._sandbox()
        if parents:
            await self._filesystem.create_directory(_parent(uri), sandbox=sandbox)
        await self._filesystem.write_file(uri, raw, sandbox=sandbox)

    async def list(self, path: AnyPath = ".") -> list[DirectoryEntry]:
        """What is in a folder, by name."""
        found = await self._filesystem.read_directory(
            await self._uri(path), sandbox=await self._sandbox()
        )
        return sorted(found, key=lambda entry: entry.file_name)

    async def walk(
        self,
        path: AnyPath = ".",
        *,
        max_depth: int = 64,
        max_entries: int = 50_000,
        hidden: bool = True,
    ) -> WalkResponse:
        """
        What is in a folder and below it; `truncated` tells that there is more.

        Args:
            path: Where to begin.
            max_depth: Folders below each other, at most.
            max_entries: Files and folders, at most.
            hidden: Whether to look into folders whose names begin with a dot.
        """
        options = WalkOptions(
            max_depth=max_depth,
            max_directories=10_000,
            max_entries=max_entries,
            follow_directory_symlinks=False,
            prune_hidden_directories=not hidden,
        )
        return await self._filesystem.walk(
            await self._uri(path), options, sandbox=await self._sandbox()
        )

    async def exists(self, path: AnyPath) -> bool:
        """Whether there is something, links followed."""
        try:
            await self.stat(path)
        except NotFound:
            return False
        return True

    async def stat(self, path: AnyPath) -> FileMetadata:
        """What kind of file it is, its size and its times."""
        return await self._filesystem.get_metadata(
            await self._uri(path), sandbox=await self._sandbox()
        )

    async def mkdir(self, path: AnyPath) -> None:
        """Make a folder and those above it; one that is there is fine."""
        await self._filesystem.create_directory(
            await self._uri(path), sandbox=await self._sandbox()
        )

    async def remove(
        self, path: AnyPath, *, recursive: bool = False, missing_ok: bool = False
    ) -> None:
        """Remove a file or an empty folder; with `recursive` also a folder that is not empty."""
        await self._filesystem.remove(
            await self._uri(path),
            recursive=recursive,
            force=missing_ok,
            sandbox=await self._sandbox(),
        )

    async def copy(self, source: AnyPath, destination: AnyPath, *, recursive: bool = False) -> None:
        """Copy within the environment; a folder with `recursive`."""
        await self._filesystem.copy(
            await self._uri(source),
            await self._uri(destination),
            recursive=recursive,
            sandbox=await self._sandbox(),
        )

    async def upload(self, source: LocalPath, path: AnyPath) -> None:
        """
        Send a file of this machine; it is there as a whole or not at all.

        Raises:
            OSError: The file cannot be read here.
        """
        filesystem = self._filesystem
        uri = await self._uri(path)
        sandbox = await self._sandbox()
        with await asyncio.to_thread(open, source, "rb") as file:
            if not await self._streams(sandbox, writing=True):
                data = await asyncio.to_thread(file.read)
                await filesystem.write_file(uri, data, sandbox=sandbox)
                return
            handle = await filesystem.open(uri, "replace", sandbox=sandbox)
            try:
                await write_blocks(handle, lambda: file.read(BLOCK))
            except BaseException:
                handle.discard()
                raise
            await handle.aclose()

    async def download(self, path: AnyPath, target: LocalPath) -> None:
        """
        Fetch a file to this machine; it is there as a whole or not at all.

        Raises:
            OSError: The file cannot be written here.
        """
        uri = await self._uri(path)
        sandbox = await self._sandbox()
        if not await self._streams(sandbox):
            data = await self._filesystem.read_file(uri, sandbox=sandbox)
            await asyncio.to_thread(_arrive, target, data)
            return
        handle = await self._filesystem.open(uri, sandbox=sandbox)
        try:
            arriving = await asyncio.to_thread(_Arriving, target)

            async def take(chunk: bytes) -> None:
                await asyncio.to_thread(arriving.write, chunk)

            try:
                await read_blocks(handle, take)
                await asyncio.to_thread(arriving.complete)
            except BaseException:
                arriving.give_up()
                raise
        finally:
            await handle.aclose()

    @property
    def _filesystem(self) -> FileSystem:
        return self._environment.filesystem

    async def _sandbox(self) -> SandboxContext | None:
        return await self._environment.sandbox_context()

    async def _streams(self, sandbox: SandboxContext | None, *, writing: bool = False) -> bool:
        """Whether a file can go in blocks."""
        can = await self._environment.capabilities()
        return (sandbox is None or can.sandboxed_file_streaming) and (
            not writing or can.file_write_streaming
        )

    async def _uri(self, path: AnyPath) -> PathUri:
        return await self._environment.uri(path)


class _Arriving:
    """A file of this machine that is written beside its place, and put there at the end."""

    def __init__(self, target: LocalPath) -> None:
        self._target = os.path.abspath(target)
        if os.path.isdir(self._target):
            raise IsADirectoryError(f"{os.fspath(target)} is a folder: give the name of a file")
        folder, name = os.path.split(self._target)
        fd, self._part = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        self._file: BinaryIO = open(fd, "wb")  # noqa: SIM115 - closed at its end, whichever

    def write(self, chunk: bytes) -> None:
        self._file.write(chunk)

    def complete(self) -> None:
        os.fchmod(self._file.fileno(), 0o666 & ~_umask())
        self._file.close()
        os.replace(self._part, self._target)

    def give_up(self) -> None:
        self._file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._part)


def _arrive(target: LocalPath, data: bytes) -> None:
    arriving = _Arriving(target)
    try:
        arriving.write(data)
        arriving.complete()
    except BaseException:
        arriving.give_up()
        raise


def _umask() -> int:
    """The mask for new files, read without changing it: other threads make files too."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def _parent(uri: PathUri) -> PathUri:
    try:
        return PathUri.from_path(os.path.dirname(uri.native))
    except ForeignPathUri:
        raise InvalidParams(
            f"the folder above `{uri}` is not known: make it with mkdir, by its own PathUri"
        ) from None
