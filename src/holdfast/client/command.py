"""A command that serves on its standard streams: `ssh host holdfast serve --listen stdio`, …"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from holdfast.client.command_log import CommandLog
from holdfast.client.supervised_command import SupervisedCommand
from holdfast.errors import ConnectFailed, SpawnFailed
from holdfast.transports.base import Receiver, Transport
from holdfast.transports.stdio import connect_pipes

__all__ = ["ServingCommand"]


class ServingCommand:
    """A server command, in a process group of its own, and the connection to it."""

    def __init__(self, command: SupervisedCommand) -> None:
        self._command = command
        self._log = CommandLog(command.stderr)
        # None until `speak`: until then the pipes belong to the command.
        self._transport: Transport | None = None

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> "ServingCommand":
        """
        Start the command; `speak` is next.

        Args:
            argv: The program and its arguments.
            env: Variables added to those of this process.
            cwd: Its folder; that of this process if there is none.

        Raises:
            ConnectFailed: It cannot be started.
        """
        # Checked here, because the spawn would report a missing program without a name.
        if not argv:
            raise ConnectFailed("failed to spawn exec-server: the command is empty")
        try:
            return cls(await SupervisedCommand.start(argv, env=env, cwd=cwd))
        except (SpawnFailed, OSError) as error:
            # The path of this error is the directory of the command, if that was the trouble.
            folder = error.path if isinstance(error, SpawnFailed) else None
            what = f"`{argv[0]}`" if folder is None else f"`{argv[0]}` in `{folder}`"
            raise ConnectFailed(
                f"failed to spawn exec-server {what}: {error}",
                errno=error.errno,
                path=folder,
                program=argv[0],
            ) from error

    @property
    def stdout(self) -> int:
        """The file descriptor of its stdout, non-blocking; valid until `speak` is called."""
        return self._command.stdout

    def say(self, line: str) -> None:
        """Write a short line to its input; only until `speak`."""
        # A command that has ended is noticed by the end of its output as well.
        with suppress(BrokenPipeError):
            os.write(self._command.stdin, f"{line}\n".encode())

    async def speak(self, accept: Callable[[Transport], Receiver]) -> Transport:
        """
        Exchange messages with it from now on; its stdin and stdout belong to the transport
        then.
        """
        self._transport = await connect_pipes(self._command.stdout, self._command.stdin, accept)
        return self._transport

    async def last_words(self) -> str | None:
        """Return the last line of its stderr, which may tell why it cannot serve."""
        return await self._log.last_words()

    async def wait(self, limit: float) -> None:
        """Wait until it has ended by itself, for at most `limit` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._command.wait()

    async def aclose(self) -> None:
        """End the command: by the end of its input, then by signals to its group."""
        # The transport, once there is one, owns the pipes and must be the only one to close
        # them.
        if self._transport is None:
            self._command.close_streams()
        else:
            self._transport.abort()
        try:
            await self._command.aclose()
        finally:
            self._log.close()
