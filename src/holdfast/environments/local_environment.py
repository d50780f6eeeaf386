"""This machine as an environment, within this process."""

import asyncio
from contextlib import AsyncExitStack
from functools import cached_property
from typing import TYPE_CHECKING

import holdfast
from holdfast import environments
from holdfast.base.errors import EnvironmentClosed
from holdfast.engine.process.variable_marks import FirstCommand, kill_by_variable
from holdfast.environments import LOCAL
from holdfast.environments.commands.command_starter import END_LIMIT
from holdfast.environments.environment import Environment, Status
from holdfast.wire.protocol.handshake import EnvironmentInfo

if TYPE_CHECKING:
    from holdfast.engine.files.local_files import LocalFileSystem
    from holdfast.engine.http.local_http import LocalHttpClient
    from holdfast.engine.process.registry import LocalBackend

__all__ = ["LocalEnvironment"]


class LocalEnvironment(Environment):
    """
    This machine.

    Each backend is created on first use, and belongs to the event loop running at that time.
    `aclose` kills all started processes.
    """

    is_remote = False

    def __init__(self, id: str = LOCAL, *, guarded: bool = False) -> None:  # noqa: A002 - what the attribute is called
        """
        Args:
            id: Its name.
            guarded: True if this process has a guardian, which kills what commands leave
                behind; see `supervision.guardian`.
        """
        self.id = id
        self.marks_commands = not guarded
        self._stack = AsyncExitStack()

    @property
    def where(self) -> str:
        """See `Environment.where`."""
        return "this machine"

    @property
    def backend(self) -> "LocalBackend":  # type: ignore[override]
        """Its processes."""
        self._check_open()
        return self._backend

    @cached_property
    def _backend(self) -> "LocalBackend":
        # Through the package, which loads its public names on first use: a program that only uses
        # files does not import the process engine.
        backend = holdfast.LocalBackend.for_callers()
        self._stack.push_async_exit(backend)
        return backend

    @property
    def filesystem(self) -> "LocalFileSystem":  # type: ignore[override]
        """Its files, by URI."""
        self._check_open()
        return self._filesystem

    @cached_property
    def _filesystem(self) -> "LocalFileSystem":
        files = holdfast.LocalFileSystem()
        self._stack.push_async_exit(files)
        return files

    @property
    def http(self) -> "LocalHttpClient":  # type: ignore[override]
        """HTTP calls from here."""
        self._check_open()
        return self._http

    @cached_property
    def _http(self) -> "LocalHttpClient":
        http = holdfast.LocalHttpClient()
        self._stack.push_async_exit(http)
        return http

    @property
    def fail_fast_filesystem(self) -> "LocalFileSystem":
        """`filesystem` itself, since there is no connection to wait for."""
        return self.filesystem

    def start_connecting(self) -> None:
        """Do nothing: there is nothing to connect to."""

    async def wait_ready(self) -> None:
        self._check_open()

    async def info(self) -> EnvironmentInfo:
        self._check_open()
        return environments.environment_info()

    async def status(self) -> Status:
        if self.closed:
            return Status("disconnected", str(EnvironmentClosed(self.id)))
        return Status("ready")

    async def _end_marked(self, mark: str, first: FirstCommand | None) -> None:
        try:
            # Reading `/proc` of a process can block, for example while it dumps core.
            async with asyncio.timeout(END_LIMIT):
                await asyncio.to_thread(kill_by_variable, mark, first)
        except TimeoutError:
            pass
        except RuntimeError:
            # No thread can be started at interpreter shutdown.
            kill_by_variable(mark, first)

    async def aclose(self) -> None:
        """Kill the processes started here, and release threads and connections."""
        # First, so that nothing is created while the stack unwinds.
        self.closed = True
        await self._stack.aclose()
        # Not by the property, which creates the object; without it nothing was started.
        if "_starter" in vars(self):
            await self._starter.end_left()
