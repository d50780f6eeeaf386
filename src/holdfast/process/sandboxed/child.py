"""
A child inside a sandbox, as seen from outside.

Three processes make up a sandbox: the launcher, which is our child; the first
process inside, which the kernel kills all others with; and the command. The
launcher holds no signal and no terminal: those belong to the command.
"""

import asyncio
import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress

from holdfast.process.child import Child
from holdfast.process.sandboxed.init_channel import StageReport
from holdfast.process.sandboxed.network_denials import NetworkAttempts
from holdfast.protocol.process import OutputStream

__all__ = ["EnclosedChild", "first_child"]


class EnclosedChild(Child):
    """The launcher of a sandbox, which stands for the command inside."""

    __slots__ = ("_waits", "attempts", "ended", "first", "report")

    def __init__(
        self, pid: int, pidfd: int, stdin: int | None, outputs: list[tuple[OutputStream, int]]
    ) -> None:
        super().__init__(pid, pidfd, stdin, outputs)
        self.ended: Callable[[], None] = lambda: None
        """Called when it is reaped."""
        self.first: int | None = None
        """A descriptor of the first process inside: readable once all of them are gone."""
        self.report: StageReport | None = None
        """How the start of the command itself went."""
        self.attempts: NetworkAttempts | None = None
        """What it tried to reach, if that is told."""
        self._waits = False

    def exit_status(self) -> os.waitid_result | None:
        """How the command ended; how the launcher did, if nobody inside was left to tell."""
        launchers = super().exit_status()
        if launchers is None or self.report is None:
            return launchers
        return self.report.end() or launchers

    def signal_code(self, number: int) -> int:
        """On a terminal, too: the launcher says so [sandbox.exit-code]."""
        return 128 + number

    def signal(self, number: int) -> None:
        first = first_child(self.pid)
        if first is None:
            os.killpg(self.pid, number)  # it has ended, or is about to begin
        elif number == signal.SIGKILL:
            # The kernel ends all the others with it, a moment later: until then the
            # command could act on the end of its input. The launcher waits for all.
            with suppress(ProcessLookupError):
                os.killpg(_group_inside(first), signal.SIGSTOP)
            os.kill(first, number)
        else:
            # The first process is in the command's group on pipes, but nothing
            # that it does not handle reaches the first process of a namespace.
            os.killpg(_group_inside(first), number)

    def kill_tree(self) -> None:
        self.signal(signal.SIGKILL)  # nothing leaves a sandbox

    def kill_group(self) -> None:
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)

    def kill_left(self) -> bool:
        """
        Return False: a command in a sandbox leaves nothing.

        The first process inside ends with the command, and the kernel then kills all others.
        """
        return False

    @property
    def left_something(self) -> bool:
        """False, for the same reason."""
        return False

    def lingers(self, then: Callable[[], None]) -> bool:
        """
        Whether something inside may still run, although the command has ended.

        The launcher exits when the command does, which is a moment before the kernel
        has ended the rest.
        """
        if self.first is None or self._waits:
            return self._waits
        first = self.first
        ready = select.poll()
        ready.register(first, select.POLLIN)
        if ready.poll(0):
            return False
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(first)
            self._waits = False
            then()

        self._waits = True
        loop.add_reader(first, gone)
        return True

    def _reaped_at_last(self) -> None:
        super()._reaped_at_last()
        if self.first is not None:
            if self._waits:
                asyncio.get_running_loop().remove_reader(self.first)
            os.close(self.first)
            self.first = None
        for held in (self.report, self.attempts):
            if held is not None:
                held.close()
        self.ended()

    def discard(self) -> None:
        """End it and let go of all it had: of a start that failed or is no longer wanted."""
        # A launcher that dies while it starts the first process leaves that waiting for
        # ever. One that is stopped starts nothing more, so what there is can be killed.
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
            first = first_child(self.pid)
            if first is not None:
                os.kill(first, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for fd in {fd for _, fd in self.outputs} | ({self.stdin} - {None}):
            assert fd is not None  # taken out above
            os.close(fd)
        self.reap()


def first_child(pid: int) -> int | None:
    """The oldest child of a process: orphans that it took in come after it."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            first = file.read().split(maxsplit=1)
    except OSError:
        return None
    return int(first[0]) if first else None


def _group_inside(first: int) -> int:
    """The group of the command, as this side sees it."""
    command = first_child(first)
    with suppress(ProcessLookupError):
        return first if command is None else os.getpgid(command)
    return first
