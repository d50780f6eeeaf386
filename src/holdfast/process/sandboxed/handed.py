"""
A sandboxed start that another process of the same user makes, with what is made here.

That process keeps its own standard streams, terminal, umask and resource limits for the
command: it starts bubblewrap itself. From here it gets the arguments, the stage, and one
end of the line to the stage. This side waits until the sandbox is built, refuses and
remembers network attempts, passes signals on, and learns how the command ended.
"""

import asyncio
import os
import platform
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from holdfast.errors import SpawnFailed
from holdfast.process.executable_lookup import Launch
from holdfast.process.limits.rlimits import Bounds, make_bounds
from holdfast.process.sandboxed.child import first_child
from holdfast.process.sandboxed.init_channel import StageReport
from holdfast.process.sandboxed.launch import (
    Enclosure,
    complete,
    first_process,
    readable,
    split_environment,
)
from holdfast.process.sandboxed.network_denials import NetworkAttempts
from holdfast.protocol.process import NetworkAttempt, ProcessLimits
from holdfast.sandbox.bubblewrap.init.program import STAGE_PATH, CallersSession, make_stage
from holdfast.sandbox.bubblewrap.mount_check import Planned

__all__ = ["HANDED_FDS", "HandedStart"]

HANDED_FDS = 4
"""Descriptors beside the empty ones: arguments, stage, report, and who the first process is."""

_BUILD_LIMIT = 30.0
"""Seconds a sandbox may take to be built; a file system that does not answer can hang it."""


_END_LIMIT = 10.0
"""Seconds to wait for the end of what was abandoned."""

_LOOK_AGAIN = 0.05
"""Seconds until those who are left are looked for; most are gone sooner."""


class HandedStart:
    """
    One command that another process starts in a sandbox.

    Send `descriptors` there and call `sent()`; then wait for `built()` and `ended()`. Close
    it at the end, whatever happened: that kills what is left inside.
    """

    def __init__(
        self,
        enclosure: Enclosure,
        launch: Launch,
        env: Mapping[str, str],
        *,
        numbers: Sequence[int],
        caller: CallersSession,
        limits: ProcessLimits | None,
        to_verify: Sequence[Planned],
        ended: Callable[[], None],
        stand_in: tuple[str, str] | None = None,
    ) -> None:
        args_fd, stage_fd, report_fd, info_fd, *_ = numbers
        self._theirs = ExitStack()
        self._to_verify = to_verify
        self._ended = ended
        self._since = time.time()
        self._attempts: NetworkAttempts | None = None
        self._first: int | None = None
        self._first_fd: int | None = None
        # Signals that came before it was known whom to send them to.
        self._early: list[int] = []
        with ExitStack() as undo:
            undo.callback(self._theirs.close)
            self._report = StageReport()
            undo.callback(self._report.close)
            self._theirs.callback(self._report.theirs.close)
            self._inode = self._report.their_inode
            # The first process inside is counted, too.
            none = Bounds([], None)
            bounds = none if limits is None else make_bounds(limits, extra_processes=1)
            self._cgroup = bounds.cgroup
            if bounds.cgroup is not None:
                undo.callback(bounds.cgroup.release)
            self._told, their_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            undo.callback(os.close, self._told)
            self._theirs.callback(os.close, their_end)
            plain, moved = split_environment(env, launch.cwd)
            options = [
                *enclosure.options,
                *(() if stand_in is None else ("--ro-bind", *stand_in)),
                *("--as-pid-1", "--perms", "0500", "--file", str(stage_fd), STAGE_PATH),
                *moved,
                *("--chdir", launch.cwd),
                *("--info-fd", str(info_fd)),
            ]
            arguments = b"".join([os.fsencode(option) + b"\0" for option in options])
            stage = make_stage(
                platform.machine(),
                program=launch.program,
                argv=launch.argv,
                report=report_fd,
                filter_program=enclosure.filter,
                listen=enclosure.listen,
                landlock=enclosure.landlock,
                limits=bounds.each,
                wait=bool(to_verify) or bounds.cgroup is not None,
                caller=caller,
                empty_streams=caller.empty_streams,
            )
            empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            self._theirs.callback(os.close, empty)
            self.descriptors = [
                readable(arguments, self._theirs),
                readable(stage, self._theirs),
                self._report.theirs.fileno(),
                their_end,
                *[empty] * enclosure.empty_fds,
            ]
            """What the process has to get, in the order of the numbers."""
            undo.pop_all()
        self.program = enclosure.launcher
        """What it has to execute, with these arguments and variables."""
        self.argv = ["bwrap", "--args", str(args_fd), "--", STAGE_PATH]
        self.env = plain

    def sent(self) -> None:
        """Close this side's copies of what the process has got."""
        self._theirs.close()

    async def built(self) -> bool:
        """
        Wait until the command is about to run; False if bubblewrap has failed.

        Raises:
            SpawnFailed: The sandbox is not as it has to be, or takes too long.
            OSError: The kernel does not let it into its cgroup.
        """
        try:
            async with asyncio.timeout(_BUILD_LIMIT):
                ready = await complete(
                    self._report, self._to_verify, self._cgroup, since=self._since
                )
        except TimeoutError:
            raise SpawnFailed(
                f"the sandbox was not built within {_BUILD_LIMIT:.0f} seconds"
            ) from None
        if not ready:
            return False
        listener = self._report.take_listener()
        if listener is not None:
            self._attempts = NetworkAttempts(listener)
        self._first, self._first_fd = first_process(self._told)
        for number in self._early:
            self.signal(number)
        return True

    @property
    def first(self) -> int | None:
        """The pid of the first process inside, as seen from here."""
        return self._first

    async def abandon(self) -> None:
        """
        End everything, after the process that started it was killed.

        bubblewrap then dies with it. If it was about to start the first process inside, that
        waits for ever, and nobody was told its pid. But it has the other end of the report.
        """
        self.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_LIMIT):
                while True:
                    try:
                        async with asyncio.timeout(_LOOK_AGAIN):
                            return await self._report.hung_up()
                    except TimeoutError:
                        await asyncio.to_thread(_kill_holders, self._inode)

    def signal(self, number: int) -> None:
        """Send a signal to the command, and to nothing else inside; later, if it has not begun."""
        if self._first is None:
            if number not in self._early:
                self._early.append(number)
            return
        command = first_child(self._first)
        if command is not None:
            with suppress(ProcessLookupError):
                os.kill(command, number)

    def kill(self) -> None:
        """Kill everything inside."""
        if self._first_fd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first_fd, signal.SIGKILL)

    async def ended(self) -> os.waitid_result | None:
        """Wait until nothing inside is left; how the command ended, if that was told."""
        if self._first_fd is not None:
            loop = asyncio.get_running_loop()
            over = asyncio.Event()
            loop.add_reader(self._first_fd, over.set)
            try:
                await over.wait()
            finally:
                loop.remove_reader(self._first_fd)
        return self._report.end()

    @property
    def network_attempts(self) -> tuple[NetworkAttempt, ...]:
        """What the sandbox kept from the network."""
        return () if self._attempts is None else self._attempts.made

    def close(self) -> None:
        """Kill what is left, and let go of everything."""
        self.kill()
        self._theirs.close()
        # A stage that is not ready yet finds nobody to tell, and ends.
        self._report.close()
        if self._attempts is not None:
            self._attempts.close()
        for fd in (self._told, self._first_fd):
            if fd is not None:
                os.close(fd)
        self._first_fd = None
        if self._cgroup is not None:
            self._cgroup.release()
        self._ended()


def _kill_holders(inode: int) -> None:
    """Kill the processes of this user that have a socket."""
    wanted = f"socket:[{inode}]"
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with suppress(OSError):
            folder = f"/proc/{name}/fd"
            if any(os.readlink(f"{folder}/{fd}") == wanted for fd in os.listdir(folder)):
                os.kill(int(name), signal.SIGKILL)
