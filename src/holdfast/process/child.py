"""A started child and the descriptors that lead to it, as one thing to hand over or close."""

import os
from collections.abc import Mapping
from contextlib import ExitStack

from holdfast.process.program import Launch
from holdfast.process.pty import open_terminal
from holdfast.process.spawn import spawn
from holdfast.protocol.process import OutputStream

__all__ = ["Child"]

_DEV_NULL = -1
_READ, _WRITE = 0, 1


class Child:
    """
    One child and every descriptor that leads to it.

    Each attribute belongs to whoever takes it; nothing here closes them again.
    """

    __slots__ = ("outputs", "pid", "pidfd", "stdin", "terminal")

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

    @classmethod
    def on_pipes(
        cls,
        launch: Launch,
        env: Mapping[str, str],
        *,
        pipe_stdin: bool = False,
        pipe_stderr: bool = True,
    ) -> "Child":
        """
        Start with a pipe for each stream; those that are not wanted are `/dev/null`.

        Raises:
            SpawnFailed: Nothing was started and nothing is left open.
        """
        with ExitStack() as undo, ExitStack() as theirs:

            def pipe(our_end: int) -> tuple[int, int]:
                """A pipe as our end and the child's; only ours does not block."""
                ends = os.pipe()
                undo.callback(os.close, ends[our_end])
                theirs.callback(os.close, ends[1 - our_end])
                os.set_blocking(ends[our_end], False)
                return ends[our_end], ends[1 - our_end]

            out, out_end = pipe(_READ)
            outputs: list[tuple[OutputStream, int]] = [("stdout", out)]
            err_end = stdin_end = _DEV_NULL
            stdin: int | None = None
            if pipe_stderr:
                err, err_end = pipe(_READ)
                outputs.append(("stderr", err))
            if pipe_stdin:
                stdin, stdin_end = pipe(_WRITE)
            pid = spawn(
                launch.program,
                launch.argv,
                cwd=launch.cwd,
                env=env,
                stdio=(stdin_end, out_end, err_end),
            )
            pidfd = _open_pidfd(pid)
            undo.pop_all()  # it runs: our ends are the caller's from here on
        return cls(pid, pidfd, stdin, outputs)

    @classmethod
    def on_terminal(
        cls, launch: Launch, env: Mapping[str, str], *, rows: int, cols: int
    ) -> "Child":
        """
        Start with a terminal of its own as its controlling one.

        Raises:
            SpawnFailed: Nothing was started and nothing is left open.
        """
        with ExitStack() as undo:
            master, slave = open_terminal(rows, cols)
            undo.callback(os.close, master)
            try:
                pid = spawn(
                    launch.program,
                    launch.argv,
                    cwd=launch.cwd,
                    env=env,
                    stdio=os.ttyname(slave),
                )
            finally:
                # Linux ends a terminal with EIO, and only when no copy of the slave
                # is left: one kept here would make the output look endless.
                os.close(slave)
            pidfd = _open_pidfd(pid)
            undo.pop_all()  # it runs: the master is the caller's from here on
        return cls(pid, pidfd, master, [("pty", master)])


def _open_pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        # No descriptor left to watch it with: it must not run unwatched.
        os.killpg(pid, 9)
        os.waitpid(pid, 0)
        raise
