"""A command that serves on its standard streams: `ssh host holdfast serve --listen stdio`, …"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast.errors import ConnectFailed, SpawnFailed
from holdfast.process.child import Child
from holdfast.process.program import pipe_launch
from holdfast.transports.base import Receiver, Transport
from holdfast.transports.stdio import connect_pipes

__all__ = ["ServingCommand"]

logger = logging.getLogger(__name__)

_GRACE = 2.0
"""Seconds between the request to end and the kill."""

_LOG_LINE = 4096
"""Bytes of its stderr that are logged at once."""


class ServingCommand:
    """The command, in a group of its own, and the connection to it."""

    def __init__(self, child: Child) -> None:
        self._loop = asyncio.get_running_loop()
        self._child = child
        self._stderr = child.outputs[1][1]
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(child.pidfd, self._has_exited)
        self._loop.add_reader(self._stderr, self._log_stderr)
        self.transport: Transport

    @classmethod
    async def start(
        cls, argv: Sequence[str], accept: Callable[[Transport], Receiver]
    ) -> "ServingCommand":
        """
        Start the command and speak to it.

        Raises:
            ConnectFailed: It cannot be started.
        """
        env = dict(os.environ)
        try:
            launch = pipe_launch(argv, None, os.getcwd(), env)
            child = Child.on_pipes(launch, env, pipe_stdin=True)
        except (SpawnFailed, OSError) as error:
            raise ConnectFailed(f"failed to spawn exec-server: {error}") from error
        command = cls(child)
        assert child.stdin is not None  # asked for above
        command.transport = await connect_pipes(child.outputs[0][1], child.stdin, accept)
        return command

    async def aclose(self) -> None:
        """End the command: by the end of its input, then by signals to its group."""
        self.transport.abort()
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(_GRACE):
                await asyncio.shield(self._exited)
        except TimeoutError:
            pass
        finally:
            # What it left in its group goes too; its number is ours until it is reaped.
            self._loop.remove_reader(self._child.pidfd)
            self._child.kill_group()
            self._child.reap()
            self._close_stderr()

    def _has_exited(self) -> None:
        self._loop.remove_reader(self._child.pidfd)
        if not self._exited.done():
            self._exited.set_result(None)

    def _log_stderr(self) -> None:
        try:
            data = os.read(self._stderr, _LOG_LINE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close_stderr()
            return
        for line in data.decode("utf-8", "replace").splitlines():
            logger.info("exec-server stderr: %s", line)

    def _close_stderr(self) -> None:
        if self._stderr >= 0:
            self._loop.remove_reader(self._stderr)
            os.close(self._stderr)
            self._stderr = -1
