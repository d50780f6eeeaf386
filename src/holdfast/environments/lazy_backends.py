"""Backends of an environment that connects on first use."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from holdfast.backends import ExecProcess, FileHandle, FileSystem, HttpBody, MissingWatch
from holdfast.environments.lazy_client import NOT_READY, SharedClient
from holdfast.errors import ConnectionLost
from holdfast.protocol.fs import (
    DirectoryEntry,
    FileMetadata,
    OpenMode,
    WalkOptions,
    WalkResponse,
)
from holdfast.protocol.http import HttpRequestParams, HttpResponse
from holdfast.protocol.paths import PathUri
from holdfast.protocol.process import StartParams
from holdfast.protocol.sandbox import SandboxContext

__all__ = ["FailFastFileSystem", "SharedBackend", "SharedFileSystem", "SharedHttpClient"]

T = TypeVar("T")


class SharedBackend:
    """Processes of a server that is connected on first use (`ExecBackend`)."""

    def __init__(self, shared: SharedClient) -> None:
        self._shared = shared

    async def start(self, params: StartParams) -> ExecProcess:
        # Looked up for each call: after a lost session there is another client.
        return await (await self._shared.get()).start(params)


class SharedHttpClient:
    """HTTP calls of a server that is connected on first use (`HttpClient`)."""

    def __init__(self, shared: SharedClient) -> None:
        self._shared = shared

    async def request(self, params: HttpRequestParams) -> HttpResponse:
        return await (await self._shared.get()).http.request(params)

    async def stream(self, params: HttpRequestParams) -> tuple[HttpResponse, HttpBody]:
        return await (await self._shared.get()).http.stream(params)


class SharedFileSystem:
    """Files of a server that is connected on first use (`FileSystem`)."""

    def __init__(self, shared: SharedClient) -> None:
        self._shared = shared

    async def _do(self, work: Callable[[FileSystem], Coroutine[Any, Any, T]]) -> T:
        return await work((await self._shared.get()).files)

    async def read_file(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: SandboxContext | None = None
    ) -> bytes:
        return await self._do(
            lambda files: files.read_file(path, follow_symlinks=follow_symlinks, sandbox=sandbox)
        )

    async def open(
        self,
        path: PathUri,
        mode: OpenMode = "read",
        *,
        permissions: int | None = None,
        sandbox: SandboxContext | None = None,
    ) -> FileHandle:
        return await self._do(
            lambda files: files.open(path, mode, permissions=permissions, sandbox=sandbox)
        )

    async def write_file(
        self,
        path: PathUri,
        data: bytes,
        *,
        follow_symlinks: bool = True,
        sandbox: SandboxContext | None = None,
    ) -> None:
        await self._do(
            lambda files: files.write_file(
                path, data, follow_symlinks=follow_symlinks, sandbox=sandbox
            )
        )

    async def create_directory(
        self,
        path: PathUri,
        *,
        recursive: bool = True,
        follow_symlinks: bool = True,
        sandbox: SandboxContext | None = None,
    ) -> None:
        await self._do(
            lambda files: files.create_directory(
                path, recursive=recursive, follow_symlinks=follow_symlinks, sandbox=sandbox
            )
        )

    async def get_metadata(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: SandboxContext | None = None
    ) -> FileMetadata:
        return await self._do(
            lambda files: files.get_metadata(path, follow_symlinks=follow_symlinks, sandbox=sandbox)
        )

    async def canonicalize(
        self, path: PathUri, *, sandbox: SandboxContext | None = None
    ) -> PathUri:
        return await self._do(lambda files: files.canonicalize(path, sandbox=sandbox))

    async def read_directory(
        self, path: PathUri, *, sandbox: SandboxContext | None = None
    ) -> list[DirectoryEntry]:
        return await self._do(lambda files: files.read_directory(path, sandbox=sandbox))

    async def walk(
        self, path: PathUri, options: WalkOptions, *, sandbox: SandboxContext | None = None
    ) -> WalkResponse:
        return await self._do(lambda files: files.walk(path, options, sandbox=sandbox))

    async def remove(
        self,
        path: PathUri,
        *,
        recursive: bool = True,
        force: bool = True,
        follow_symlinks: bool = True,
        sandbox: SandboxContext | None = None,
    ) -> None:
        await self._do(
            lambda files: files.remove(
                path,
                recursive=recursive,
                force=force,
                follow_symlinks=follow_symlinks,
                sandbox=sandbox,
            )
        )

    async def copy(
        self,
        source: PathUri,
        destination: PathUri,
        *,
        recursive: bool,
        sandbox: SandboxContext | None = None,
    ) -> None:
        await self._do(
            lambda files: files.copy(source, destination, recursive=recursive, sandbox=sandbox)
        )

    async def rename(self, source: PathUri, destination: PathUri) -> None:
        await self._do(lambda files: files.rename(source, destination))

    async def watch_missing(
        self, missing: Sequence[PathUri], present: PathUri | None = None
    ) -> MissingWatch | None:
        return await self._do(lambda files: files.watch_missing(missing, present))


class FailFastFileSystem(SharedFileSystem):
    """
    The same files, for callers that want an error instead of waiting.

    It never connects, and a call fails when the connection is lost. Both raise
    `ConnectionLost`.
    """

    async def _do(self, work: Callable[[FileSystem], Coroutine[Any, Any, T]]) -> T:
        files = self._shared.get_connected().files
        # Without a limit of its own; the loss of the connection lets it expire.
        patience = asyncio.timeout(None)
        try:
            async with patience:
                # Expires the timeout at once, which cancels the call.
                with self._shared.when_lost(lambda: patience.reschedule(0)):
                    return await work(files)
        except TimeoutError:
            if not patience.expired():
                raise
            raise ConnectionLost(NOT_READY) from None
