"""
File operations for scripts: paths as strings, content as text or bytes.

`Environment.filesystem` has the rest: blocks, watches, links.
"""

import asyncio
import errno
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from holdfast.backends import FileSystem
from holdfast.base.errors import HoldfastError, InvalidParams, InvalidRequest, NotFound, Refused
from holdfast.base.tasks import made_in_thread
from holdfast.engine.files.transfer import (
    FILES_AT_ONCE,
    masked,
    move,
    open_in_thread,
    permissions_of,
    read_blocks,
    send_file,
)
from holdfast.environments.commands.arguments import as_bytes
from holdfast.environments.named_errors import naming
from holdfast.environments.path_uris import AnyPath
from holdfast.environments.tree_transfer import (
    OnProgress,
    TransferCount,
    Transferred,
    download_tree,
    upload_tree,
)
from holdfast.wire.protocol.fs import (
    CanonicalizeParams,
    CopyParams,
    CreateDirectoryParams,
    DirectoryEntry,
    FileContent,
    FileMetadata,
    GetMetadataParams,
    OpenParams,
    ReadDirectoryParams,
    ReadFileParams,
    RemoveParams,
    WalkOptions,
    WalkParams,
    WalkResponse,
    WriteFileParams,
)
from holdfast.wire.protocol.paths import ForeignPathUri, PathUri
from holdfast.wire.protocol.sandbox import SandboxContext

if TYPE_CHECKING:
    from holdfast.environments.environment import Environment

__all__ = ["Files"]

LocalPath = str | os.PathLike[str]


class Files:
    """
    The files of one environment.

    A path is absolute, or relative to the environment's directory. If the environment has a
    sandbox, files that it denies are refused or appear not to exist.

    Raises (all methods):
        NotFound: There is no such file; also a `FileNotFoundError`.
        InvalidRequest: The operation is impossible for it, or not permitted, which is also a
            `PermissionError`.
        OperationFailed: Any other error of the system; also an `OSError`.

    Each message names the operation and the path; each exception has `path` and `errno`.
    """

    def __init__(self, environment: "Environment") -> None:
        self._environment = environment

    async def read_text(
        self, path: AnyPath, *, encoding: str = "utf-8", errors: str = "strict"
    ) -> str:
        """
        Return a file as text.

        Raises:
            UnicodeDecodeError: It is not valid text; `errors="replace"` accepts it anyway.
        """
        return (await self.read_bytes(path)).decode(encoding, errors)

    async def read_bytes(self, path: AnyPath) -> bytes:
        """Return a file as bytes, up to 512 MiB."""
        # The protocol's texts do not name the path, but users need it.
        with naming("read", path):
            return await self._filesystem.read_file(
                ReadFileParams(await self._uri(path), sandbox=await self._sandbox())
            )

    async def write(self, path: AnyPath, data: str | bytes, *, parents: bool = False) -> None:
        """
        Create a file or replace it. Text is encoded as UTF-8.

        Args:
            path: The file.
            data: Its whole content.
            parents: Create missing parent directories. If the write is refused, they are removed
                again.
        """
        # Checked first: a wrong type needs no connection.
        raw = as_bytes(data, "data")
        uri = await self._uri(path)
        sandbox = await self._sandbox()
        with naming("write", path):
            folder = _parent(uri) if parents else None
            params = WriteFileParams(uri, data_base64=FileContent(raw), sandbox=sandbox)
            try:
                await self._filesystem.write_file(params)
            except NotFound:
                if folder is None:
                    raise
                async with self._folder_made(folder, sandbox):
                    await self._filesystem.write_file(params)

    @asynccontextmanager
    async def _folder_made(
        self, folder: PathUri, sandbox: SandboxContext | None
    ) -> AsyncIterator[None]:
        """Create a directory and its parents; undo that if the block is refused."""
        files = self._filesystem
        missing: list[str] = []
        above = folder
        while await self._is_missing(above, sandbox):
            outer, name = os.path.split(above.native)
            if not name:
                break
            missing.append(name)
            above = PathUri.from_path(outer)
        try:
            await files.create_directory(
                CreateDirectoryParams(folder, recursive=True, sandbox=sandbox)
            )
            yield
        except Refused:
            with suppress(HoldfastError):
                # Resolved, so that no link in place of a directory is removed.
                real = (await files.canonicalize(CanonicalizeParams(above, sandbox=sandbox))).native
                for count in range(len(missing)):
                    made = PathUri.from_path(os.path.join(real, *reversed(missing[count:])))
                    # The innermost may not have been created.
                    with suppress(Refused):
                        await files.remove(
                            RemoveParams(
                                made, recursive=False, follow_symlinks=False, sandbox=sandbox
                            )
                        )
            raise

    async def _is_missing(self, path: PathUri, sandbox: SandboxContext | None) -> bool:
        try:
            await self._filesystem.get_metadata(GetMetadataParams(path, sandbox=sandbox))
        except NotFound:
            return True
        except Refused:
            # Creating it will fail with a better error.
            return False
        return False

    async def list(self, path: AnyPath = ".") -> list[DirectoryEntry]:
        """Return the entries of a directory, sorted by name."""
        with naming("list", path):
            found = await self._filesystem.read_directory(
                ReadDirectoryParams(await self._uri(path), sandbox=await self._sandbox())
            )
        # A server lists in the order of its disk, which varies.
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
        Return all entries below a directory; `truncated` is set if there are more.

        Args:
            path: The directory.
            max_depth: Maximum number of levels.
            max_entries: Maximum number of files and directories.
            hidden: True to enter directories whose names begin with a dot.
        """
        options = WalkOptions(
            max_depth=max_depth,
            # The maximum that a server accepts.
            max_directories=10_000,
            max_entries=max_entries,
            follow_directory_symlinks=False,
            prune_hidden_directories=not hidden,
        )
        with naming("walk", path):
            return await self._filesystem.walk(
                WalkParams(await self._uri(path), options=options, sandbox=await self._sandbox())
            )

    async def exists(self, path: AnyPath) -> bool:
        """Return True if the path exists; follows links."""
        try:
            await self.stat(path)
        except NotFound:
            return False
        return True

    async def stat(self, path: AnyPath) -> FileMetadata:
        """Return the type, size and times of a file."""
        with naming("look at", path):
            return await self._filesystem.get_metadata(
                GetMetadataParams(await self._uri(path), sandbox=await self._sandbox())
            )

    async def mkdir(self, path: AnyPath) -> None:
        """Create a directory and its parents, unless it exists."""
        with naming("make", path):
            await self._filesystem.create_directory(
                CreateDirectoryParams(
                    await self._uri(path), recursive=True, sandbox=await self._sandbox()
                )
            )

    async def remove(
        self, path: AnyPath, *, recursive: bool = False, missing_ok: bool = False
    ) -> None:
        """Remove a file or an empty directory; with `recursive`, any directory."""
        with naming("remove", path):
            await self._filesystem.remove(
                RemoveParams(
                    await self._uri(path),
                    recursive=recursive,
                    # `missing_ok` is called `force` on the wire.
                    force=missing_ok,
                    sandbox=await self._sandbox(),
                )
            )

    async def copy(self, source: AnyPath, destination: AnyPath, *, recursive: bool = False) -> None:
        """Copy within the environment; a directory needs `recursive`."""
        origin, sandbox = await self._uri(source), await self._sandbox()
        with naming("copy", source, destination):
            try:
                await self._filesystem.copy(
                    CopyParams(
                        source_path=origin,
                        destination_path=await self._uri(destination),
                        recursive=recursive,
                        sandbox=sandbox,
                    )
                )
            except InvalidRequest as refused:
                # The server's refusal does not mention the missing flag: look up the type.
                if recursive or not await self._is_folder(origin, sandbox, refused):
                    raise
                raise InvalidRequest(
                    "it is a directory: pass recursive=True", path=refused.path
                ) from refused

    async def move(self, source: AnyPath, destination: AnyPath) -> None:
        """
        Rename a file or directory within the environment; replaces an existing file.

        Atomic if the server can rename, `files` has no sandbox, and both paths are on the same
        file system. Otherwise it is copied, and then removed.
        """
        origin, target = await self._uri(source), await self._uri(destination)
        sandbox = await self._sandbox()
        with naming("move", source, destination):
            await move(self._filesystem, origin, target, sandbox=sandbox)

    async def upload(
        self, source: LocalPath, path: AnyPath, *, on_progress: OnProgress | None = None
    ) -> Transferred:
        """
        Copy a local file or directory tree to the environment.

        Each file arrives as a whole or not at all; a server without Holdfast's extensions writes
        in place, and may keep half of a file that failed. Up to four files of a directory are
        sent at once. If one fails, the others are stopped: complete files stay, all others are
        unchanged. A link is sent as its target if that is in the directory; `skipped` in the
        result lists what was left out. Permission bits are sent too, but not to a server without
        Holdfast's extensions.

        Args:
            source: A local file or directory.
            path: Its new path. A missing directory is created; existing files in it that are not
                overwritten stay.
            on_progress: Called with a `TransferProgress` as bytes arrive. If it raises, the
                transfer ends and the error is raised.

        Raises:
            OSError: A local file cannot be read.
            OperationFailed: A file of a directory cannot be written; the message begins with its
                path.
        """
        uri = await self._uri(path)
        sandbox = await self._sandbox()
        # A server without block writes gets the whole file in one message.
        in_blocks = await self._streams(sandbox, writing=True)
        local = os.fspath(source)
        if await asyncio.to_thread(os.path.isdir, local):
            return await upload_tree(
                self._filesystem,
                local,
                uri,
                in_blocks=in_blocks,
                sandbox=sandbox,
                on_progress=on_progress,
            )
        with (
            await open_in_thread(lambda: open(local, "rb")) as file,
            naming("upload", local, path),
        ):
            name = os.path.basename(local)
            progress = TransferCount(on_progress, 1, os.fstat(file.fileno()).st_size)
            await send_file(
                self._filesystem,
                file,
                uri,
                in_blocks=in_blocks,
                permissions=permissions_of(file),
                sandbox=sandbox,
                sent=lambda size: progress.advance(name, size),
            )
        progress.complete(name)
        return Transferred(progress.files, progress.size)

    async def download(
        self, path: AnyPath, target: LocalPath, *, on_progress: OnProgress | None = None
    ) -> Transferred:
        """
        Copy a file or directory tree from the environment to this machine.

        Each file arrives as a whole or not at all; for a directory, the rules of `upload` apply.
        Links below the directory are left out: a server does not list them. Permission bits are
        kept, less the umask, but only a server with Holdfast's extensions sends them.

        Args:
            path: A file or directory of the environment.
            target: Its local path. A missing directory is created; existing files in it that are
                not overwritten stay.
            on_progress: As for `upload`.

        Raises:
            OSError: A local file cannot be written.
            OperationFailed: A file of a directory cannot be read; the message begins with its
                path. Or the tree has over 50,000 entries, 10,000 directories or 64 levels, and
                nothing was copied.
        """
        uri = await self._uri(path)
        sandbox = await self._sandbox()
        in_blocks = await self._streams(sandbox)
        # The size is unknown until the file has arrived.
        progress = TransferCount(on_progress, 1, None)
        name = os.path.basename(target)
        try:
            await self._fetch(
                uri, target, in_blocks, sandbox, lambda size: progress.advance(name, size)
            )
        except Refused as refused:
            with naming("download", path, target):
                # If bytes have arrived, it is a file, and the failure is genuine.
                if progress.size or not await self._is_folder(uri, sandbox, refused):
                    raise
            return await download_tree(
                self._filesystem,
                uri,
                os.fspath(target),
                fetch=lambda file, into, took: self._fetch(file, into, in_blocks, sandbox, took),
                at_once=FILES_AT_ONCE if in_blocks else 1,
                sandbox=sandbox,
                on_progress=on_progress,
            )
        progress.complete(name)
        return Transferred(progress.files, progress.size)

    async def _is_folder(
        self, uri: PathUri, sandbox: SandboxContext | None, refused: Refused
    ) -> bool:
        """Return True if the path could not be opened because it is a directory."""
        if isinstance(refused, NotFound):
            return False
        return (
            await self._filesystem.get_metadata(GetMetadataParams(uri, sandbox=sandbox))
        ).is_directory

    async def _fetch(
        self,
        uri: PathUri,
        target: LocalPath,
        in_blocks: bool,
        sandbox: SandboxContext | None,
        took: Callable[[int], None],
    ) -> None:
        """Fetch one file."""
        if not in_blocks:
            data = await self._filesystem.read_file(ReadFileParams(uri, sandbox=sandbox))
            await asyncio.to_thread(_arrive, target, data)
            took(len(data))
            return
        permissions: int | None = None
        if (await self._environment.capabilities()).file_permissions:
            found = await self._filesystem.get_metadata(GetMetadataParams(uri, sandbox=sandbox))
            # Zero if the server does not report them.
            permissions = found.permissions or None
        handle = await self._filesystem.open(OpenParams(handle_id="", path=uri, sandbox=sandbox))
        try:
            arriving = await made_in_thread(partial(_Arriving, target), _Arriving.give_up)

            async def take(chunk: bytes) -> None:
                await asyncio.to_thread(arriving.write, chunk)
                took(len(chunk))

            try:
                await read_blocks(handle, take)
                await asyncio.to_thread(arriving.complete, permissions)
            except BaseException:
                # Also after a cancellation, so that no partial file remains.
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
        """Return True if the server supports transfers in blocks with this sandbox."""
        can = await self._environment.capabilities()
        return (sandbox is None or can.sandboxed_file_streaming) and (
            not writing or can.file_write_streaming
        )

    async def _uri(self, path: AnyPath) -> PathUri:
        # The environment would take None for its own directory.
        if path is None:
            raise TypeError("a path must be a string, a path object or a PathUri, not None")
        return await self._environment.uri(path)


class _Arriving:
    """A local file that is written next to its final path, and renamed at the end."""

    def __init__(self, target: LocalPath) -> None:
        self._target = os.path.abspath(target)
        # Checked first: `os.replace` would fail only after the transfer.
        if os.path.isdir(self._target):
            text = "it is a directory: give the name of a file"
            # The exception that `open` would raise.
            raise IsADirectoryError(errno.EISDIR, text, os.fspath(target))
        folder, name = os.path.split(self._target)
        try:
            fd, self._part = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        except OSError as error:
            # Name the target: the caller does not know the temporary name.
            raise OSError(error.errno, error.strerror, os.fspath(target)) from error
        self._file: BinaryIO = open(fd, "wb")  # noqa: SIM115 - closed at its end, whichever

    def write(self, chunk: bytes) -> None:
        self._file.write(chunk)

    def complete(self, permissions: int | None = None) -> None:
        # `mkstemp` created the file with mode 0600.
        os.fchmod(self._file.fileno(), masked(0o666 if permissions is None else permissions))
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


def _parent(uri: PathUri) -> PathUri:
    try:
        return PathUri.from_path(os.path.dirname(uri.native))
    except ForeignPathUri:
        raise InvalidParams(
            f"the parent of `{uri}` is unknown: create it with mkdir, by its own PathUri"
        ) from None
