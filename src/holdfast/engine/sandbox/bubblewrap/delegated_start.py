"""
Prepares a sandboxed command that another process of the same user starts.

The other process executes bubblewrap (`bwrap`) itself, so that the command has its standard
streams, terminal, umask and rlimits. From here it gets bwrap's options, the init program, and
one end of the channel to that program. This side waits until the sandbox is built, records
refused network attempts, forwards signals, and learns the exit status of the command.
"""

import asyncio
import os
import platform
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from holdfast.engine.process.executable_lookup import Launch
from holdfast.engine.process.limits.rlimits import PreparedLimits, prepare_limits
from holdfast.engine.sandbox.bubblewrap.bwrap_launch import (
    SandboxSpec,
    encode_options,
    info_file,
    init_process,
    memory_fd,
    split_environment,
    wait_built,
)
from holdfast.engine.sandbox.bubblewrap.init_channel import InitChannel
from holdfast.engine.sandbox.bubblewrap.init_program import (
    INIT_PATH,
    CallersSession,
    make_init_program,
)
from holdfast.engine.sandbox.bubblewrap.mount_check import Planned
from holdfast.engine.sandbox.bubblewrap.network_denials import NetworkAttempts
from holdfast.engine.sandbox.bubblewrap.sandboxed_child import first_child
from holdfast.wire.protocol.process import NetworkAttempt, ProcessLimits

__all__ = ["DELEGATED_FDS", "DelegatedStart"]

# Descriptors beside the empty ones: options, init program, channel, the pidfd of the other
# process, and bwrap's `--info-fd`.
DELEGATED_FDS = 5

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
        args_fd, program_fd, report_fd, owner_fd, info_fd, *_ = numbers
        # The ends of the other process, open until they are sent.
        self._theirs = ExitStack()
        self._to_verify = to_verify
        self._ended = ended
        # Before bwrap is started: whatever it makes on the disk is newer.
        self._since = time.time()
        self._attempts: NetworkAttempts | None = None
        self._init: int | None = None
        self._init_fd: int | None = None
        # Signals that came before the pid of the command was known.
        self._early: list[int] = []
        with ExitStack() as undo:
            undo.callback(self._theirs.close)
            self._channel = InitChannel()
            undo.callback(self._channel.close)
            self._theirs.callback(self._channel.theirs.close)
            # PID 1 of the sandbox counts as a process of the command.
            none = PreparedLimits([], None)
            prepared = none if limits is None else prepare_limits(limits, extra_processes=1)
            self._cgroup = prepared.cgroup
            if prepared.cgroup is not None:
                undo.callback(prepared.cgroup.release)
            self._info = info_file(undo)
            self.env, moved = split_environment(env, launch.cwd)
            """The environment of bwrap."""
            mounts = () if stand_in is None else ("--ro-bind", *stand_in)
            options = [*spec.options, *mounts]
            options += ["--as-pid-1", "--perms", "0500", "--file", str(program_fd), INIT_PATH]
            options += [*moved, "--chdir", launch.cwd, "--info-fd", str(info_fd)]
            # Only a command with a cgroup, or mounts to check, has to wait for our go-ahead.
            wait = bool(to_verify) or prepared.cgroup is not None
            program = _init_program(
                spec, launch, caller, prepared, report=report_fd, owner=owner_fd, wait=wait
            )
            self.descriptors = self._descriptors(spec, options, program, owner)
            """The descriptors to send, in the order of `numbers`."""
            undo.pop_all()
        self.private_mounts = private_mounts
        """True if the other process has to make a private mount namespace for bwrap."""
        self.program = spec.launcher
        """The path of bwrap, which the other process has to execute."""
        self.argv = ["bwrap", "--args", str(args_fd), "--", INIT_PATH]
        """The arguments of bwrap."""

    def _descriptors(
        self, spec: SandboxSpec, options: Sequence[str], program: bytes, owner: int
    ) -> list[int]:
        """Open the descriptors of the other process, `owner`; `_theirs` closes them."""
        pidfd = os.pidfd_open(owner)
        self._theirs.callback(os.close, pidfd)
        empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._theirs.callback(os.close, empty)
        return [
            memory_fd(encode_options(options), self._theirs),
            memory_fd(program, self._theirs),
            self._channel.theirs.fileno(),
            pidfd,
            self._info,
            *[empty] * spec.empty_fds,
        ]

    def sent(self) -> None:
        """Close our copies of the descriptors that were sent."""
        # As long as a copy is open here, the end of the other process cannot be seen.
        self._theirs.close()

    async def built(self) -> bool:
        """
        Wait until the command is about to run; return False if bwrap has failed.

        Raises:
            SpawnFailed: The sandbox is not as planned, or takes too long.
            OSError: The kernel refused to move it into its cgroup.
        """
        if not await wait_built(self._channel, self._to_verify, self._cgroup, since=self._since):
            return False
        listener = self._channel.take_listener()
        if listener is not None:
            self._attempts = NetworkAttempts(listener)
        self._init, self._init_fd = init_process(self._info)
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
                await self._channel.hung_up()

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
        return self._channel.end()

    @property
    def network_attempts(self) -> tuple[NetworkAttempt, ...]:
        """Attempts of the command to reach the network, which the sandbox refused."""
        return () if self._attempts is None else self._attempts.made

    def close(self) -> None:
        """Kill all processes that are left inside, and release all resources."""
        self.kill()
        self._theirs.close()
        # An init program that is not ready yet fails to send its message, and exits.
        self._channel.close()
        if self._attempts is not None:
            self._attempts.close()
        for fd in (self._info, self._init_fd):
            if fd is not None:
                os.close(fd)
        self._init_fd = None
        if self._cgroup is not None:
            self._cgroup.release()
        self._ended()


def _init_program(
    spec: SandboxSpec,
    launch: Launch,
    caller: CallersSession,
    prepared: PreparedLimits,
    *,
    report: int,
    owner: int,
    wait: bool,
) -> bytes:
    """Return the init program for a command in the session of another process."""
    return make_init_program(
        platform.machine(),
        program=launch.program,
        argv=launch.argv,
        report=report,
        owner=owner,
        filter_program=spec.filter,
        listen=spec.listen,
        landlock=spec.landlock,
        limits=prepared.each,
        wait=wait,
        caller=caller,
        empty_streams=caller.empty_streams,
    )
