"""A started child process: its pidfd, its pipes or terminal, its cgroup, and what it leaves."""

import asyncio
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Self

from holdfast.engine.linux.proc import stat_fields
from holdfast.engine.process.executable_lookup import Launch
from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.process.limits.rlimit_marks import kill_by_rlimit_soon
from holdfast.engine.process.process_tree import kill_tree
from holdfast.engine.process.pty import open_terminal
from holdfast.engine.process.spawn import Caller, spawn
from holdfast.events import Verdict
from holdfast.wire.protocol.process import OutputStream

if TYPE_CHECKING:
    from holdfast.engine.process.limits.cgroup import CommandCgroup

__all__ = ["Child", "kill_left", "left_since", "owned_pids"]

# -- what an exited child left in its group, such as a server in the background
#
# Every child leads a session and a process group, both with its pid as their id. The kernel does
# not reuse a number while a process, a group or a session has it. So a group is safe to signal
# while its leader is a zombie. Once the leader is reaped, a check has to make sure that the number
# still means the same group.

# Clock ticks per second: the unit of start times in `/proc/PID/stat`.
_TICKS = os.sysconf("SC_CLK_TCK")

# Indices of the fields of `/proc/PID/stat` after the command name, see proc(5).
_STATE, _GROUP, _SESSION, _THREADS, _STARTED = 0, 2, 3, 17, 19


class _Member(NamedTuple):
    """A live process of a group."""

    pid: int
    started: int
    """Start time in clock ticks since boot."""


def left_since(group: int) -> float | None:
    """
    Return the current time if a group outlives its leader, which was just reaped, else None.

    The time is in seconds since boot. Pass it to `kill_left` later.
    """
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        # The usual case. One system call is all that this check costs it.
        return None
    except PermissionError:
        # The group has members, but all of them belong to other users.
        pass
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def kill_left(group: int, since: float | None = None) -> bool:
    """
    Kill the processes left in the group of a child that has exited.

    Args:
        group: The pid of the child, reaped or not.
        since: None while the child is a zombie; after that, the result of `left_since`.

    Returns:
        True if a live process was in the group. Zombies do not count.

    Raises:
        OSError: The kernel refused.
    """
    members = _live_members(group)
    if not members or (since is not None and not _is_same(group, members, since)):
        return False
    os.killpg(group, signal.SIGKILL)
    return True


def _is_same(group: int, members: list[_Member], since: float) -> bool:
    """
    Return True if the members were left by the leader that was reaped at `since`.

    Two findings mean that the number was reused: a process has it as its pid, or no member is
    older than the reaping. No process can join a session from outside. In doubt nothing is
    killed, rather than a process of somebody else.
    """
    if os.path.exists(f"/proc/{group}"):
        return False
    return any(member.started <= int(since * _TICKS) for member in members)


def _live_members(group: int) -> list[_Member]:
    """Return the live processes of the group that are also in the session of the same id."""
    found: list[_Member] = []
    number = str(group).encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        # The process may end between the listing and the read.
        with suppress(OSError):
            words = stat_fields(f"/proc/{name}")
            if words[_GROUP] != number or words[_SESSION] != number:
                continue
            # The state is that of the main thread: others may run on after it has ended.
            if words[_STATE] not in (b"Z", b"X") or int(words[_THREADS]) > 1:
                found.append(_Member(int(name), int(words[_STARTED])))
    return found


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
            # Another part of this process has reaped it, so the pid may belong to another process.
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
            # Right after the reaping, before the number of the group can be reused.
            self._left_since = left_since(self.pid)
        except BlockingIOError:
            return False
        except ChildProcessError:
            # Another part of this process has reaped it, so the pid may belong to another process,
            # and the state of the group is unknown.
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
            # Even after a success: a copy of the child's end would keep its output from ending.
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
