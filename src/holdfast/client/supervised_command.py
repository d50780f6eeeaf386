"""A command on pipes that cannot outlive this process; `child_supervisor.py` supervises it."""

import asyncio
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from holdfast.client import child_supervisor as keeper_program
from holdfast.errors import SpawnFailed
from holdfast.process.child import Child
from holdfast.process.executable_lookup import Launch, pipe_launch
from holdfast.protocol.secret_variables import PROGRAM_SECRETS
from holdfast.system_text import system_text

__all__ = ["GRACE", "KeptCommand", "command_environment"]

GRACE = 2.0
"""Seconds between the request to end and the kill [environments.command-group]."""

# Seconds a keeper may take to start a command; a machine that needs more is out of order.
_START_LIMIT = 30.0

# Seconds beyond the grace in which a keeper has to be done.
_SWEEP_LIMIT = 5.0

# Seconds that the loop may be held up by a keeper that nobody waits for.
_GIVE_UP_LIMIT = 1.0

# A script and not a module: `python -m` would import the package with all its dependencies.
_KEEPER = keeper_program.__file__


def command_environment(added: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this process without its secrets, plus `added`."""
    kept = {name: value for name, value in os.environ.items() if name not in PROGRAM_SECRETS}
    return {**kept, **added}


class KeptCommand:
    """
    A command in a process group of its own, and the keeper that ends its process tree.

    Whoever takes the descriptors of its streams has to close them.
    """

    def __init__(self, keeper: Child, control: socket.socket, grace: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._keeper = keeper
        self._control = control
        self._grace = grace
        self._closed = False
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(keeper.pidfd, self._has_exited)
        # Always a pipe: `start` asks for one.
        assert keeper.stdin is not None
        self.stdin = keeper.stdin
        self.stdout = keeper.outputs[0][1]
        self.stderr = keeper.outputs[1][1]
        self.pid: int | None = None
        """The pid of the command, which is also its process group id."""

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
            # A frozen program is its own `sys.executable`, which cannot run `child_supervisor.py`.
            raise SpawnFailed("there is no Python program to keep it with", program=argv[0])
        variables = command_environment(env or {})
        wanted = pipe_launch(argv, None, os.path.join(os.getcwd(), cwd or ""), variables)
        ours, theirs = socket.socketpair()
        try:
            # Closed here after the spawn: the keeper has its own copy, and only that may hold
            # the socket open.
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
        """Close its stdin and stdout; only if no transport owns them."""
        os.close(self.stdin)
        os.close(self.stdout)

    async def wait(self) -> None:
        """Wait until the keeper has exited: the command and everything below it has ended."""
        await asyncio.shield(self._exited)

    async def aclose(self) -> None:
        """End the command and everything below it; harmless when called again."""
        if self._closed:
            return
        self._closed = True
        # The end of the socket is what the keeper waits for.
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
        """
        Kill the command's process group, then the keeper; called when the keeper does not
        finish.
        """
        # The command first: a killed keeper could no longer clean up below it.
        self._kill_command()
        # Blocks the loop on purpose: this may be the last code that runs, and the keeper, with
        # nothing left to wait for, exits within milliseconds.
        poll = select.poll()
        poll.register(self._keeper.pidfd, select.POLLIN)
        poll.poll(_GIVE_UP_LIMIT * 1000)
        self._keeper.kill_group()

    async def _started(self, program: str) -> int:
        """Return the pid that the keeper reports, or raise the reason why there is none."""
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
            # The keeper was killed before it could end the command.
            self._kill_command()
        if not self._exited.done():
            self._exited.set_result(None)

    def _kill_command(self) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def _kept_launch(wanted: Launch, grace: float) -> Launch:
    """Return how to start the keeper, in the command's directory, with the command as arguments."""
    # `-I -S`: no user site, no `PYTHON*` variables, no site-packages. It starts quickly, and
    # no file in its directory can shadow a module.
    supervisor = [sys.executable, "-I", "-S", _KEEPER]
    about = [str(os.getpid()), str(grace), wanted.program, *wanted.argv]
    return Launch(sys.executable, supervisor + about, wanted.cwd)
