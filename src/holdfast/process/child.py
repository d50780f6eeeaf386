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
    def on_pipes(cls, launch: Launch, env: Mapping[str, str], *, pipe_stdin: bool) -> "Child":
        """
        Start with a pipe for each stream, and `/dev/null` or a pipe to read from.

        Raises:
            SpawnFailed: Nothing was started and nothing is left open.
        """
        with ExitStack() as undo, ExitStack() as theirs:

            def pipe() -> tuple[int, int]:
                reader, writer = os.pipe()
                return reader, writer

            out, out_end = pipe()
            undo.callback(os.close, out)
            theirs.callback(os.close, out_end)
            err, err_end = pipe()
            undo.callback(os.close, err)
            theirs.callback(os.close, err_end)
            stdin: int | None = None
            stdin_end = _DEV_NULL
            if pipe_stdin:
                stdin_end, stdin = pipe()
                undo.callback(os.close, stdin)
                theirs.callback(os.close, stdin_end)
                os.set_blocking(stdin, False)
            # Only our ends: the child shares its own with what it starts.
            os.set_blocking(out, False)
            os.set_blocking(err, False)
            pid = spawn(
                launch.program,
                launch.argv,
                cwd=launch.cwd,
                env=env,
                stdio=(stdin_end, out_end, err_end),
            )
            pidfd = _open_pidfd(pid)
            undo.pop_all()  # it runs: our ends are the caller's from here on
        return cls(pid, pidfd, stdin, [("stdout", out), ("stderr", err)])

    @classmethod
    def on_terminal(cls, launch: Launch, env: Mapping[str, str], *, rows: int, cols: int) -> "Child":
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
