"""
Prepares a sandboxed command that another process of the same user starts.

The other process executes bubblewrap (`bwrap`) itself, so that the command has its standard
streams, terminal, umask and rlimits. From here it gets bwrap's options, the init program, and
one end of the channel to that program. This side waits until the sandbox is built, records
refused network attempts, forwards signals, and learns the exit status of the command.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from holdfast.engine.process.executable_lookup import Launch
from holdfast.engine.sandbox.bubblewrap.bwrap_launch import BwrapStart, SandboxSpec
from holdfast.engine.sandbox.bubblewrap.init_program import CallersSession
from holdfast.engine.sandbox.bubblewrap.mount_check import Planned
from holdfast.engine.sandbox.bubblewrap.network_denials import NetworkAttempts
from holdfast.engine.sandbox.bubblewrap.sandboxed_child import first_child
from holdfast.wire.protocol.process import NetworkAttempt, ProcessLimits

__all__ = ["DelegatedStart"]

# Seconds to wait until no process of an abandoned sandbox is left.
_END_LIMIT = 10.0


class DelegatedStart:
    """
    One command that another process starts in a sandbox.

    Send `descriptors` to that process and call `sent()`; then wait for `built()` and `ended()`.
    Call `close()` in any case: it kills all processes that are left inside.
    """

    def __init__(
        self,
        spec: SandboxSpec,
        launch: Launch,
        env: Mapping[str, str],
        *,
        numbers: Sequence[int],
        owner: int,
        caller: CallersSession,
        limits: ProcessLimits | None,
        to_verify: Sequence[Planned],
        private_mounts: bool,
        ended: Callable[[], None],
        stand_in: tuple[str, str] | None = None,
    ) -> None:
        self._ended = ended
        self._attempts: NetworkAttempts | None = None
        self._init: int | None = None
        self._init_fd: int | None = None
        # Signals that came before the pid of the command was known.
        self._early: list[int] = []
        self._start = BwrapStart(
            spec,
            launch,
            env,
            numbers=numbers,
            owner=owner,
            limits=limits,
            to_verify=to_verify,
            caller=caller,
            empty_streams=caller.empty_streams,
            mounts=() if stand_in is None else ("--ro-bind", *stand_in),
        )
        self.descriptors = self._start.descriptors
        """The descriptors to send, in the order of `numbers`."""
        self.private_mounts = private_mounts
        """True if the other process has to make a private mount namespace for bwrap."""
        self.program = spec.launcher
        """The path of bwrap, which the other process has to execute."""
        self.argv = self._start.argv
        """The arguments of bwrap."""
        self.env = self._start.env
        """The environment of bwrap."""

    def sent(self) -> None:
        """Close our copies of the descriptors that were sent."""
        self._start.sent()

    async def built(self) -> bool:
        """
        Wait until the command is about to run; return False if bwrap has failed.

        Raises:
            SpawnFailed: The sandbox is not as planned, or takes too long.
            OSError: The kernel refused to move it into its cgroup.
        """
        if not await self._start.built():
            return False
        self._attempts = self._start.take_attempts()
        self._init, self._init_fd = self._start.take_init()
        # Only now the pid of PID 1 is known, by which the command is found.
        for number in self._early:
            self.signal(number)
        return True

    @property
    def init_pid(self) -> int | None:
        """Pid of the sandbox's PID 1 in our pid namespace; None before `built`."""
        return self._init

    async def abandon(self) -> None:
        """
        Kill all processes of the sandbox, after the process that started it was killed.

        A sandbox that is not built yet ends by itself: PID 1 sees that its owner has ended.
        """
        self.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_LIMIT):
                await self._start.channel.hung_up()

    def signal(self, number: int) -> None:
        """Send a signal to the command only; one that comes too early is sent after `built`."""
        if self._init is None:
            if number not in self._early:
                self._early.append(number)
            return
        # Looked up each time: PID 1 may not have forked the command yet, or have reaped it.
        command = first_child(self._init)
        if command is not None:
            with suppress(ProcessLookupError):
                os.kill(command, number)

    def kill(self) -> None:
        """Kill PID 1 of the sandbox; the kernel then kills all other processes inside."""
        if self._init_fd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)

    async def ended(self) -> os.waitid_result | None:
        """Wait until the sandbox is empty; return the command's exit status, if reported."""
        if self._init_fd is not None:
            loop = asyncio.get_running_loop()
            over = asyncio.Event()
            loop.add_reader(self._init_fd, over.set)
            try:
                await over.wait()
            finally:
                loop.remove_reader(self._init_fd)
        return self._start.channel.end()

    @property
    def network_attempts(self) -> tuple[NetworkAttempt, ...]:
        """Attempts of the command to reach the network, which the sandbox refused."""
        return () if self._attempts is None else self._attempts.made

    def close(self) -> None:
        """Kill all processes that are left inside, and release all resources."""
        self.kill()
        self._start.close()
        if self._attempts is not None:
            self._attempts.close()
        if self._init_fd is not None:
            os.close(self._init_fd)
            self._init_fd = None
        self._ended()
