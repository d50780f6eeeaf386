"""A command on pipes that cannot outlive this process; `child_supervisor.py` supervises it."""

import asyncio
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from holdfast.base.errors import SpawnFailed
from holdfast.base.system_text import system_text
from holdfast.engine.process.child import Child
from holdfast.engine.process.executable_lookup import Launch, pipe_launch
from holdfast.engine.supervision import child_supervisor
from holdfast.wire.protocol.secret_variables import PROGRAM_SECRETS, TOKEN_VARIABLE

__all__ = ["GRACE", "SupervisedCommand", "command_environment"]

GRACE = 2.0
"""Seconds between the request to end and the kill [environments.command-group]."""

# Seconds a supervisor may take to start a command; a machine that needs more is broken.
_START_LIMIT = 30.0

# Seconds beyond the grace within which a supervisor has to exit.
_SWEEP_LIMIT = 5.0

# Longest time, in seconds, to block the loop for a supervisor that was abandoned.
_GIVE_UP_LIMIT = 1.0

# A script and not a module: `python -m` would import the package with all its dependencies.
_SUPERVISOR = child_supervisor.__file__


def command_environment(added: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this process without its secrets, plus `added`."""
    # The token is for a server that this process connects to itself.
    secrets = PROGRAM_SECRETS | {TOKEN_VARIABLE}
    return {n: value for n, value in os.environ.items() if n not in secrets} | dict(added)


class SupervisedCommand:
    """
    A command in its own process group, and the supervisor that ends its process tree.

    The caller that takes the descriptors of its streams has to close them.
    """

    def __init__(self, supervisor: Child, control: socket.socket, grace: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._supervisor = supervisor
        self._control = control
        self._grace = grace
        self._closed = False
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(supervisor.pidfd, self._has_exited)
        # Always a pipe: `start` asks for one.
        assert supervisor.stdin is not None
        self.stdin = supervisor.stdin
        self.stdout = supervisor.outputs[0][1]
        self.stderr = supervisor.outputs[1][1]
        self.pid: int | None = None
        """The pid of the command, which is also its process group id."""
        self.exit_status: int | None = None
        """The exit status, as in a shell, of a command that ended by itself; otherwise 0."""

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        grace: float | None = None,
    ) -> "SupervisedCommand":
        """
        Start a command.

        Args:
            argv: The program and its arguments; no shell is involved.
            env: Variables added to those of this process.
            cwd: Its working directory; a relative one is below that of this process.
            grace: Seconds that it may take to end when asked to.

        Raises:
            SpawnFailed: It cannot be started; nothing is left open.
            OSError: As `SpawnFailed`.
        """
        grace = GRACE if grace is None else grace
        if not sys.executable or getattr(sys, "frozen", False):
            # A frozen program is its own `sys.executable`, which cannot run `child_supervisor.py`.
            raise SpawnFailed("there is no Python interpreter to supervise it", program=argv[0])
        variables = command_environment(env or {})
        # Looked up here: the supervisor has no search path, and the errors are our own.
        wanted = pipe_launch(argv, None, os.path.join(os.getcwd(), cwd or ""), variables)
        ours, theirs = socket.socketpair()
        try:
            # Closed here after the spawn: only the supervisor's copy may keep the socket open.
            with theirs:
                supervisor = Child.on_pipes(
                    _supervised_launch(wanted, grace),
                    variables,
                    pipe_stdin=True,
                    pass_fds=(theirs.fileno(),),
                )
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        started = cls(supervisor, ours, grace)
        try:
            started.pid = await started._reported_pid(wanted.program)
        except BaseException:
            started.close_streams()
            os.close(started.stderr)
            await started.aclose()
            raise
        return started

    def close_streams(self) -> None:
        """Close its stdin and stdout; only if no transport owns them."""
        os.close(self.stdin)
        os.close(self.stdout)

    async def wait(self) -> None:
        """Wait until the supervisor has exited: the command and everything below it has ended."""
        await asyncio.shield(self._exited)

    async def aclose(self) -> None:
        """End the command and everything below it; further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        # The supervisor waits for the end of the socket.
        self._control.close()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._grace + _SWEEP_LIMIT):
                    await self.wait()
        finally:
            self._loop.remove_reader(self._supervisor.pidfd)
            if not self._exited.done():
                self._give_up()
            self._supervisor.reap()

    def _give_up(self) -> None:
        """
        Kill the command's process group, then the supervisor.

        Called when the supervisor does not finish in time.
        """
        # The command first: a killed supervisor could no longer clean up below it.
        self._kill_command()
        # Blocks the loop on purpose: this may be the last code that runs, and the supervisor, now
        # with nothing to wait for, exits within milliseconds.
        poll = select.poll()
        poll.register(self._supervisor.pidfd, select.POLLIN)
        poll.poll(_GIVE_UP_LIMIT * 1000)
        self._supervisor.kill_group()

    async def _reported_pid(self, program: str) -> int:
        """Return the pid that the supervisor reports, or raise the reason why there is none."""
        try:
            async with asyncio.timeout(_START_LIMIT):
                message = await self._loop.sock_recv(self._control, 64)
        except TimeoutError:
            raise SpawnFailed(
                f"it has not started within {_START_LIMIT:g}s", program=program
            ) from None
        kind, _, number = message.decode("ascii").partition(" ")
        # An empty answer is the end of the socket: the supervisor has died.
        if kind == "started":
            return int(number)
        if kind == "failed":
            raise SpawnFailed(system_text(int(number)), errno=int(number), program=program)
        raise SpawnFailed("the process that supervises it has ended", program=program)

    def _has_exited(self) -> None:
        self._loop.remove_reader(self._supervisor.pidfd)
        status = self._supervisor.exit_status()
        if status is not None and status.si_code == os.CLD_EXITED:
            self.exit_status = status.si_status
        elif status is not None:
            # The supervisor was killed before it could end the command.
            self._kill_command()
        if not self._exited.done():
            self._exited.set_result(None)

    def _kill_command(self) -> None:
        if self.pid is not None:
            # It has ended, or it runs as another user now, so that only root can kill it.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def _supervised_launch(wanted: Launch, grace: float) -> Launch:
    """Return the launch of the supervisor, in the directory of its command."""
    # `-I -S`: no user site, no `PYTHON*` variables, no site-packages. It starts quickly, and
    # no file in its directory can shadow a module.
    program = [sys.executable, "-I", "-S", _SUPERVISOR]
    about = [str(os.getpid()), str(grace), wanted.program, *wanted.argv]
    return Launch(sys.executable, program + about, wanted.cwd)
