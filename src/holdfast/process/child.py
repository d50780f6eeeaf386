"""A started child and the descriptors that lead to it, as one thing to hand over or close."""

import asyncio
import os
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from holdfast.process.executable_lookup import Launch
from holdfast.process.group import kill_left, left_since
from holdfast.process.limits.rlimit_marks import kill_by_rlimit_soon
from holdfast.process.process_tree import kill_tree
from holdfast.process.pty import open_terminal
from holdfast.process.spawn import spawn
from holdfast.protocol.process import OutputStream

if TYPE_CHECKING:
    from holdfast.process.limits.cgroup import CommandCgroup

__all__ = ["Child", "owned_pids"]

_DEV_NULL = -1
_READ, _WRITE = 0, 1

_END_LIMIT = 2.0
"""Seconds that a killed child is waited for; it needs some thousandths."""

_owned: set[int] = set()


def owned_pids() -> frozenset[int]:
    """The children that somebody here watches and will reap; all others are orphans."""
    return frozenset(_owned)


class Child:
    """
    One child and every descriptor that leads to it.

    The descriptors belong to whoever takes them, but for the one of the process
    itself: that and its number are given back by `reap`.
    """

    __slots__ = (
        "_left_since",
        "_reaped",
        "_waiter",
        "cgroup",
        "mark",
        "outputs",
        "pid",
        "pidfd",
        "stdin",
        "terminal",
    )

    def __init__(
        self, pid: int, pidfd: int, stdin: int | None, outputs: list[tuple[OutputStream, int]]
    ) -> None:
        self.pid = pid
        """Also the id of its session and of its group."""
        self.pidfd = pidfd
        """Readable once the child has exited."""
        self.stdin = stdin
        """Non-blocking; on a terminal the same descriptor as its output."""
        self.outputs = outputs
        """What the child writes to, non-blocking."""
        self.terminal = outputs[0][1] if outputs[0][0] == "pty" else None
        """The master of its terminal, if it has one."""
        self.cgroup: CommandCgroup | None = None
        """What limits it and all that it starts, if anything does."""
        self.mark: int | None = None
        """By which all that it starts is found, if it has limits (`limits.rlimit_marks`)."""
        self._reaped = False
        self._waiter: asyncio.Future[None] | None = None
        # When it was reaped, if its group was not empty then; see `process.group`.
        self._left_since: float | None = None
        _owned.add(pid)

    def exit_status(self) -> os.waitid_result | None:
        """
        How it ended, if it did. It stays a zombie, and its number its own, until `reap`.

        Raises:
            ChildProcessError: Somebody else in this process has reaped it.
        """
        return os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def signal_code(self, number: int) -> int:
        """What the wire tells of an end by this signal [output.exit-code]."""
        return 1 if self.terminal is not None else 128 + number

    def signal(self, number: int) -> None:
        """
        Send a signal to its group.

        Raises:
            OSError: The system refused.
        """
        os.killpg(self.pid, number)

    def kill_tree(self) -> None:
        """
        Kill its group and what is below it in others; with a mark, daemons too.

        Raises:
            OSError: The system refused.
        """
        try:
            kill_tree(self.pid)
        finally:
            if self.mark is not None:
                kill_by_rlimit_soon(self.mark)

    def kill_group(self) -> None:
        """Kill it, or what it left in its group if it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def kill_left(self) -> bool:
        """
        Kill what it left in its group; call this after its exit, `reap` or not.

        Returns:
            True if there was something to kill.

        Raises:
            OSError: The system refused.
        """
        if self._reaped:
            return self._left_since is not None and kill_left(self.pid, self._left_since)
        try:
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False  # somebody else has reaped it: the number may be anybody's
        return kill_left(self.pid)

    def kill_all_left(self) -> None:
        """
        Kill what it left in its group after its exit; with a mark, wherever that went.

        Raises:
            OSError: The system refused.
        """
        if self.mark is not None:
            kill_by_rlimit_soon(self.mark)
        self.kill_left()

    @property
    def left_something(self) -> bool:
        """True if its group was not empty at `reap`; False means for good that it is."""
        return self._left_since is not None

    def lingers(self, then: Callable[[], None]) -> bool:
        """Whether more than its output has to be waited for; if so, `then` is called after it."""
        return False

    def reap(self) -> None:
        """
        Forget a child that has ended, or was killed and is about to.

        In an event loop, one that takes its time is forgotten when it has ended: a process that
        waits for a dead mount cannot be killed. Elsewhere that is waited for.
        """
        if self._reap_now():
            self._reaped_at_last()
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            ended = select.poll()
            ended.register(self.pidfd, select.POLLIN)
            ended.poll()
            self._reap_now()
            self._reaped_at_last()
        else:
            loop.add_reader(self.pidfd, self._reap_in, loop)

    async def wait_reaped(self, limit: float = _END_LIMIT) -> None:
        """Wait until `reap` has done its work, for so many seconds at most."""
        if not self._reaped:
            self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._waiter], timeout=limit)

    def _reap_in(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._reap_now():
            loop.remove_reader(self.pidfd)
            self._reaped_at_last()

    def _reap_now(self) -> bool:
        """Take note of its end; `False` if it has not ended yet."""
        try:
            if os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG) is None:
                return False
            self._left_since = left_since(self.pid)
        except BlockingIOError:
            return False
        except ChildProcessError:
            pass  # somebody else has: the number may be anybody's
        return True

    def _reaped_at_last(self) -> None:
        """Let go of what was kept until its end."""
        self._reaped = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        os.close(self.pidfd)
        _owned.discard(self.pid)
        if self.cgroup is not None:
            self.cgroup.release()

    def discard(self) -> None:
        """End it and let go of all it had: of a start that failed."""
        self.kill_group()
        for fd in {fd for _, fd in self.outputs} | ({self.stdin} - {None}):
            assert fd is not None  # taken out above
            os.close(fd)
        self.reap()

    @classmethod
    def on_pipes(
        cls,
        launch: Launch,
        env: Mapping[str, str],
        *,
        pipe_stdin: bool = False,
        pipe_stderr: bool = True,
        pass_fds: Sequence[int] = (),
    ) -> Self:
        """
        Start with a pipe for each stream; those that are not wanted are `/dev/null`.

        What is in `pass_fds` it finds as 3, 4 and so on.

        Raises:
            SpawnFailed: Nothing was started and nothing is left open.
        """
        ours: list[int] = []
        theirs: list[int] = []
        try:
            out = _pipe(ours, theirs, _READ)
            outputs: list[tuple[OutputStream, int]] = [("stdout", out)]
            err_end = stdin_end = _DEV_NULL
            stdin: int | None = None
            if pipe_stderr:
                outputs.append(("stderr", _pipe(ours, theirs, _READ)))
                err_end = theirs[-1]
            if pipe_stdin:
                stdin = _pipe(ours, theirs, _WRITE)
                stdin_end = theirs[-1]
            pid = spawn(
                launch.program,
                launch.argv,
                cwd=launch.cwd,
                env=env,
                stdio=(stdin_end, theirs[0], err_end),
                pass_fds=pass_fds,
            )
            pidfd = _open_pidfd(pid)
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        return cls(pid, pidfd, stdin, outputs)

    @classmethod
    def on_terminal(
        cls,
        launch: Launch,
        env: Mapping[str, str],
        *,
        rows: int,
        cols: int,
        pass_fds: Sequence[int] = (),
        controlling: bool = True,
    ) -> Self:
        """
        Start with a terminal of its own, as its controlling one unless told otherwise.

        Raises:
            SpawnFailed: Nothing was started and nothing is left open.
        """
        master, slave = open_terminal(rows, cols)
        try:
            try:
                pid = spawn(
                    launch.program,
                    launch.argv,
                    cwd=launch.cwd,
                    env=env,
                    stdio=os.ttyname(slave),
                    pass_fds=pass_fds,
                    controlling=controlling,
                )
            finally:
                # Linux ends a terminal with EIO, and only when no copy of the slave
                # is left: one kept here would make the output look endless.
                os.close(slave)
            pidfd = _open_pidfd(pid)
        except BaseException:
            os.close(master)
            raise
        return cls(pid, pidfd, master, [("pty", master)])


def _pipe(ours: list[int], theirs: list[int], our_end: int) -> int:
    """Make a pipe, note its ends, and return ours, the only one that does not block."""
    ends = os.pipe()
    ours.append(ends[our_end])
    theirs.append(ends[1 - our_end])
    os.set_blocking(ends[our_end], False)
    return ends[our_end]


def _open_pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        # No descriptor left to watch it with: it must not run unwatched.
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
