"""Commands that serve on their standard streams, such as `ssh host holdfast serve`."""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from holdfast.base.errors import ConnectFailed, SpawnFailed
from holdfast.client.supervised_command import SupervisedCommand
from holdfast.wire.transports.stdio import connect_pipes
from holdfast.wire.transports.transport import Receiver, Transport

__all__ = ["CommandLog", "ServingCommand"]

logger = logging.getLogger(__name__)

# Bytes read at once; also the longest line logged in one piece.
_READ = 4096

# Lines to keep; the reason of a failure is among the last.
_KEPT_LINES = 32

# Seconds to wait for the output of a command that is ending.
_LAST_WORDS_LIMIT = 0.5


class CommandLog:
    """
    Reader of a command's stderr; owns the descriptor until the stream ends or `close` is
    called.
    """

    def __init__(self, stderr: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = stderr
        self._ended = asyncio.Event()
        self._partial = b""
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._loop.add_reader(stderr, self._read)

    async def last_words(self) -> str | None:
        """Return the last line, which may say why the command failed; wait briefly for the end."""
        return next(reversed(await self.last_lines()), None)

    async def last_lines(self) -> list[str]:
        """Return the last lines that are not blank; wait briefly for the end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_LIMIT):
                await self._ended.wait()
        partial = _readable(self._partial)
        return [*self._lines, *([partial] if partial else [])]

    def close(self) -> None:
        """Stop reading and close the descriptor; further calls do nothing."""
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
        # The last line may lack its newline.
        self._note(self._partial)
        self._partial = b""
        self._ended.set()

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ)
        except BlockingIOError:
            return
        # EIO and similar errors mean the end of the stream.
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._note(line)
        # A command that writes no newline must not fill our memory.
        if len(self._partial) >= _READ:
            self._note(self._partial)
            self._partial = b""

    def _note(self, line: bytes) -> None:
        if text := _readable(line):
            # Blank lines are skipped: the last words should be meaningful.
            self._lines.append(text)
            logger.debug("exec-server stderr: %s", text)


def _readable(line: bytes) -> str:
    return line.decode("utf-8", "replace").strip()


class ServingCommand:
    """A server command, in its own process group, and the connection to it."""

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
        Start the command; call `speak` next.

        Args:
            argv: The program and its arguments.
            env: Variables added to those of this process.
            cwd: Its working directory; that of this process by default.

        Raises:
            ConnectFailed: It cannot be started.
        """
        # Checked here, since spawning would report a missing program without its name.
        if not argv:
            raise ConnectFailed("failed to spawn exec-server: the command is empty")
        try:
            return cls(await SupervisedCommand.start(argv, env=env, cwd=cwd))
        except (SpawnFailed, OSError) as error:
            # The path of this error is the directory of the command, if that was the cause.
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
        # The end of its output also shows that the command has ended.
        with suppress(BrokenPipeError):
            os.write(self._command.stdin, f"{line}\n".encode())

    async def speak(self, accept: Callable[[Transport], Receiver]) -> Transport:
        """Start exchanging messages; the transport then owns its stdin and stdout."""
        self._transport = await connect_pipes(self._command.stdout, self._command.stdin, accept)
        return self._transport

    async def last_words(self) -> str | None:
        """Return the last line of its stderr, which may say why it cannot serve."""
        return await self._log.last_words()

    async def last_lines(self) -> list[str]:
        """Return the last lines of its stderr."""
        return await self._log.last_lines()

    async def exit_status(self) -> int | None:
        """Return the exit status of a command that ends by itself; wait briefly for that."""
        await self.wait(_LAST_WORDS_LIMIT)
        return self._command.exit_status

    async def wait(self, limit: float) -> None:
        """Wait until it has ended by itself, for at most `limit` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._command.wait()

    async def aclose(self) -> None:
        """End the command: by the end of its input, then by signals to its group."""
        # A transport owns the pipes and must be the only one to close them.
        if self._transport is None:
            self._command.close_streams()
        else:
            self._transport.abort()
        try:
            await self._command.aclose()
        finally:
            self._log.close()
