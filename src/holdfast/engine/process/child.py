"""A started child process, with its pidfd, pipes or terminal, and cgroup."""

import asyncio
import os
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from holdfast.engine.process.executable_lookup import Launch
from holdfast.engine.process.group import kill_left, left_since
from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.process.limits.rlimit_marks import kill_by_rlimit_soon
from holdfast.engine.process.process_tree import kill_tree
from holdfast.engine.process.pty import open_terminal
from holdfast.engine.process.spawn import Caller, spawn
from holdfast.events import Verdict
from holdfast.wire.protocol.process import OutputStream

if TYPE_CHECKING:
    from holdfast.engine.process.limits.cgroup import CommandCgroup

__all__ = ["Child", "owned_pids"]

# `spawn` opens `/dev/null` for a negative descriptor.
_DEV_NULL = -1
# Our end of a pipe, as an index into the result of `os.pipe`.
_READ, _WRITE = 0, 1

# Seconds to wait for a killed child; the kernel usually needs a few milliseconds.
_END_LIMIT = 2.0

# Pids whose exit status belongs to a `Child`. The search for orphans must not reap them.
_owned: set[int] = set()


def owned_pids() -> frozenset[int]:
    """Return the pids that a `Child` will reap; all other children of this process are orphans."""
    return frozenset(_owned)


class Child:
    """
    One child process and the descriptors that lead to it.

    The caller closes the descriptors of the streams. `reap` closes the pidfd and frees the pid.
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
        """Process id, which is also the id of its session and of its process group."""
        self.pidfd = pidfd
        """Readable once the child has exited."""
        self.stdin = stdin
        """Non-blocking; on a terminal the same descriptor as its output."""
        self.outputs = outputs
        """Our ends of the streams that the child writes to, non-blocking."""
        self.terminal = outputs[0][1] if outputs[0][0] == "pty" else None
        """The master of its terminal, if it has one."""
        self.cgroup: CommandCgroup | None = None
        """The cgroup of the child and its descendants, if their memory or number is limited."""
        self.mark: int | None = None
        """Mark that its descendants inherit, if it has limits (see `limits.rlimit_marks`)."""
        self._reaped = False
        # Set by `wait_reaped`, completed by `reap`.
        self._waiter: asyncio.Future[None] | None = None
        # Time of the reaping, if its group was not empty then; see `process.group`.
        self._left_since: float | None = None
        _owned.add(pid)

    def exit_status(self) -> os.waitid_result | None:
        """
        Return the exit status, or None if the child still runs.

        The child stays a zombie until `reap`, so its pid is not given to another process.

        Raises:
            ChildProcessError: Another part of this process has reaped the child.
        """
        return os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def signal_code(self, number: int) -> int:
        """Return the exit code that the protocol has for a death by signal [output.exit-code]."""
        # 1 for every signal on a terminal [output.exit-code.signal].
        return 1 if self.terminal is not None else 128 + number

    def complete_verdict(self, verdict: Verdict, log: OutputLog) -> Verdict:
        """Return the verdict with all that the child knows about its end; `log` is evidence."""
        return verdict

    def signal(self, number: int) -> None:
        """
        Send a signal to the child's process group.

        Raises:
            OSError: The kernel refused.
        """
        os.killpg(self.pid, number)

    def kill_tree(self) -> None:
        """
        Kill the child's group and its descendants in other groups; with a mark, daemons too.

        Raises:
            OSError: The kernel refused.
        """
        try:
            kill_tree(self.pid)
        finally:
            # Even if the group is gone: daemons have left it, and are found by their mark only.
            if self.mark is not None:
                kill_by_rlimit_soon(self.mark)

    def kill_group(self) -> None:
        """Kill the child's process group, which may outlive the child."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def kill_left(self) -> bool:
        """
        Kill the processes that the child left in its group; call this after its exit.

        Works before and after `reap`.

        Returns:
            True if there was something to kill.

        Raises:
            OSError: The kernel refused.
        """
        if self._reaped:
            return self._left_since is not None and kill_left(self.pid, self._left_since)
        try:
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            # Another part of this process has reaped it: the pid may be anybody's by now.
            return False
        return kill_left(self.pid)

    def kill_all_left(self) -> None:
        """
        Kill the processes that the exited child left in its group; with a mark, daemons too.

        Raises:
            OSError: The kernel refused.
        """
        if self.mark is not None:
            kill_by_rlimit_soon(self.mark)
        self.kill_left()

    @property
    def left_something(self) -> bool:
        """True if the group was not empty at `reap`; once False, it stays empty for good."""
        return self._left_since is not None

    def call_when_empty(self, callback: Callable[[], None]) -> bool:
        """
        Return True if a sandbox still holds processes, and call back once it is empty.

        Returns False, and calls nothing, if there is nothing to wait for.
        """
        return False

    def reap(self) -> None:
        """
        Reap a child that has exited, or was killed and is about to exit.

        In an event loop this returns at once and reaps the child when it has exited: a process
        that waits for a dead mount cannot be killed. Without a loop it blocks until then.
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
        """Wait until `reap` has reaped the child, for `limit` seconds at most."""
        if not self._reaped:
            self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._waiter], timeout=limit)

    def _reap_in(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._reap_now():
            loop.remove_reader(self.pidfd)
            self._reaped_at_last()

    def _reap_now(self) -> bool:
        """Reap the child if it has exited; return False if it still runs."""
        try:
            if os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG) is None:
                return False
            # Right after the reaping, while nobody can have reused the number of the group.
            self._left_since = left_since(self.pid)
        except BlockingIOError:
            return False
        except ChildProcessError:
            # Another part of this process has reaped it: the pid may be anybody's by now, so
            # nothing is said about the group.
            pass
        return True

    def _reaped_at_last(self) -> None:
        """Release everything that was kept until the child was reaped."""
        self._reaped = True
        # The waiter may have given up after its time limit.
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        os.close(self.pidfd)
        _owned.discard(self.pid)
        if self.cgroup is not None:
            self.cgroup.release()

    def discard(self) -> None:
        """Kill the child of a failed start, close its descriptors and reap it."""
        self.kill_group()
        # A set: on a terminal, stdin and output are the same descriptor.
        for fd in {fd for _, fd in self.outputs} | ({self.stdin} - {None}):
            # For the type checker, which does not see that the line above removes None.
            assert fd is not None
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
        call: Caller | None = None,
    ) -> Self:
        """
        Start a child with a pipe for each stream; streams that are not wanted are `/dev/null`.

        The child gets `pass_fds` as descriptors 3, 4 and so on; for `call` see `spawn`.

        Raises:
            SpawnFailed: Nothing was started, and no descriptor is left open.
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
                call=call,
            )
            pidfd = _open_pidfd(pid)
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            # Also after a success: a copy of the child's end would keep its output from ending.
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
        call: Caller | None = None,
    ) -> Self:
        """
        Start a child on a new terminal, by default as its controlling terminal.

        For `pass_fds` and `call` see `spawn`.

        Raises:
            SpawnFailed: Nothing was started, and no descriptor is left open.
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
                    call=call,
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
    """Make a pipe, append its ends to `ours` and `theirs`, and return ours."""
    ends = os.pipe()
    ours.append(ends[our_end])
    theirs.append(ends[1 - our_end])
    # Only our end: programs expect blocking streams.
    os.set_blocking(ends[our_end], False)
    return ends[our_end]


def _open_pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        # No descriptor is left for the pidfd, and no command may run unwatched.
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
