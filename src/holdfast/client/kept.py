"""A command on pipes that cannot outlive this process: see `keeper.py` for how."""

import asyncio
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from holdfast.errors import SpawnFailed
from holdfast.process.child import Child
from holdfast.process.program import Launch, pipe_launch
from holdfast.system_text import system_text

__all__ = ["GRACE", "KeptCommand", "command_environment"]

GRACE = 2.0
"""Seconds between the request to end and the kill [environments.command-group]."""

_START_LIMIT = 30.0
"""Seconds a keeper may take to start a command; a machine that needs more is out of order."""

_SWEEP_LIMIT = 5.0
"""Seconds beyond the grace in which a keeper has to be done."""

_GIVE_UP_LIMIT = 1.0
"""Seconds that the loop may be held up by a keeper that nobody waits for."""

_KEEPER = str(Path(__file__).with_name("keeper.py"))

_WITHHELD = (
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
    "NODE_REPL_AUTH_TOKEN",
    "OPENAI_FEDERATION_RULE_ID",
    "OPENAI_IDENTITY_TOKEN_FILE",
    "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
)
"""Secrets of the client that are no business of a command [environments.command-variables]."""


def command_environment(added: Mapping[str, str]) -> dict[str, str]:
    """What a command gets: the variables of this process but its secrets, and those added."""
    inherited = {name: value for name, value in os.environ.items() if name not in _WITHHELD}
    return {**inherited, **added}


class KeptCommand:
    """
    A command in a group of its own, and the keeper that ends it with all that is below.

    The descriptors of its streams belong to whoever takes them.
    """

    def __init__(self, keeper: Child, control: socket.socket, grace: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._keeper = keeper
        self._control = control
        self._grace = grace
        self._closed = False
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(keeper.pidfd, self._has_exited)
        assert keeper.stdin is not None  # asked for below
        self.stdin = keeper.stdin
        self.stdout = keeper.outputs[0][1]
        self.stderr = keeper.outputs[1][1]
        self.pid: int | None = None
        """That of the command, and of its group."""

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        grace: float | None = None,
    ) -> "KeptCommand":
        """
        Start a command.

        Args:
            argv: The program and its arguments; no shell is involved.
            env: Variables added to those of this process.
            cwd: Its folder; a relative one begins in the folder of this process.
            grace: Seconds it gets to end when it is asked to.

        Raises:
            SpawnFailed: It cannot be started; nothing is left open.
            OSError: As `SpawnFailed`.
        """
        grace = GRACE if grace is None else grace
        if not sys.executable or getattr(sys, "frozen", False):
            # We are part of another program, which knows nothing of keepers.
            raise SpawnFailed("there is no Python program to keep it with", program=argv[0])
        variables = command_environment(env or {})
        wanted = pipe_launch(argv, None, os.path.join(os.getcwd(), cwd or ""), variables)
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                keeper = Child.on_pipes(
                    _kept_launch(wanted, grace),
                    variables,
                    pipe_stdin=True,
                    pass_fds=(theirs.fileno(),),
                )
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        kept = cls(keeper, ours, grace)
        try:
            kept.pid = await kept._started(wanted.program)
        except BaseException:
            kept.close_streams()
            os.close(kept.stderr)
            await kept.aclose()
            raise
        return kept

    def close_streams(self) -> None:
        """Close its input and output, if nobody has taken them."""
        os.close(self.stdin)
        os.close(self.stdout)

    async def wait(self) -> None:
        """Wait until the command has ended, and all below it."""
        await asyncio.shield(self._exited)

    async def aclose(self) -> None:
        """End the command, and all below it; harmless when it was done before."""
        if self._closed:
            return
        self._closed = True
        self._control.close()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._grace + _SWEEP_LIMIT):
                    await self.wait()
        finally:
            self._loop.remove_reader(self._keeper.pidfd)
            if not self._exited.done():
                self._give_up()
            self._keeper.reap()

    def _give_up(self) -> None:
        """Nobody waits any longer, or the keeper is stuck: what is known is killed at once."""
        self._kill_command()
        # It has nothing left to wait for, so it should be done very soon.
        poll = select.poll()
        poll.register(self._keeper.pidfd, select.POLLIN)
        poll.poll(_GIVE_UP_LIMIT * 1000)
        self._keeper.kill_group()

    async def _started(self, program: str) -> int:
        """What the keeper tells: the pid, or why there is none."""
        try:
            async with asyncio.timeout(_START_LIMIT):
                told = await self._loop.sock_recv(self._control, 64)
        except TimeoutError:
            raise SpawnFailed(
                f"it has not started within {_START_LIMIT:g}s", program=program
            ) from None
        kind, _, number = told.decode("ascii").partition(" ")
        if kind == "started":
            return int(number)
        if kind == "failed":
            raise SpawnFailed(system_text(int(number)), errno=int(number), program=program)
        raise SpawnFailed("the process that keeps it has ended", program=program)

    def _has_exited(self) -> None:
        self._loop.remove_reader(self._keeper.pidfd)
        status = self._keeper.exit_status()
        if status is not None and status.si_code != os.CLD_EXITED:
            self._kill_command()  # the keeper was killed, so it has not done so
        if not self._exited.done():
            self._exited.set_result(None)

    def _kill_command(self) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def _kept_launch(wanted: Launch, grace: float) -> Launch:
    """The keeper, told what to start; it runs in the command's folder."""
    keeper = [sys.executable, "-I", "-S", _KEEPER]
    about = [str(os.getpid()), str(grace), wanted.program, *wanted.argv]
    return Launch(sys.executable, keeper + about, wanted.cwd)
