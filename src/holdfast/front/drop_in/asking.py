"""
Asks for approval on the terminal of a caller.

The server reads the terminal only while a question is open. When the caller has ended, it stops
reading immediately, since the next keys are for the person's shell.
"""

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO, cast

from holdfast.agent.approvals import TerminalApprover
from holdfast.engine.linux.proc import stat_fields
from holdfast.front.drop_in.caller import Caller
from holdfast.front.drop_in.quiet_terminal import Terminals

__all__ = ["approver_on"]

# O_NOCTTY: the terminal must not become the controlling one of the server.
_FLAGS = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC

# Most bytes of a line: the line discipline of a terminal does not deliver longer ones.
_MOST = 4096


class _TypedLines:
    """
    Lines of a terminal, until `close` or the end of the process that asked.

    They also end when another job of the terminal is in the foreground: input is for that job.

    It implements the part of a file that `TerminalApprover` needs.
    """

    def __init__(self, path: str, caller: int) -> None:
        self._caller = caller
        self._fd = os.open(path, _FLAGS | os.O_NONBLOCK)
        try:
            # By the time the caller's shell shows its prompt, the pidfd is readable. `close` may
            # come later: a server on a busy machine has other things to do first.
            self._ended = os.pidfd_open(caller)
        except OSError:
            os.close(self._fd)
            raise
        # A pipe wakes `select`: closing a descriptor in another thread would not.
        self._closed, self._close = os.pipe2(os.O_CLOEXEC)
        self._reading = threading.Lock()

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def readline(self) -> str:
        """Return the next line; empty at the end, or once the caller no longer waits."""
        with self._reading:
            if self._fd < 0:
                return ""
            ready, _, _ = select.select([self._fd, self._closed, self._ended], [], [])
            if self._closed in ready or self._ended in ready:
                return ""
            try:
                if not _is_in_foreground(self._caller):
                    return ""
                return os.read(self._fd, _MOST).decode("utf-8", "replace")
            except OSError:
                # The terminal has hung up.
                return ""

    def close(self) -> None:
        """Stop reading the terminal; wakes a thread that is reading."""
        os.write(self._close, b"x")
        with self._reading:
            for fd in (self._fd, self._closed, self._close, self._ended):
                os.close(fd)
            self._fd = -1


def _is_in_foreground(pid: int) -> bool:
    """Return False if a process is in a background job of its terminal."""
    fields = stat_fields(f"/proc/{pid}")
    group, in_front = int(fields[2]), int(fields[5])
    return in_front in (group, -1)


@contextmanager
def approver_on(caller: Caller, number: int, terminals: Terminals) -> Iterator[TerminalApprover]:
    """
    Yield an approver that asks on a terminal, given by a descriptor of another process.

    Args:
        caller: The process.
        number: Its descriptor.
        terminals: Commands and questions on all terminals.

    Raises:
        OSError: The terminal cannot be opened.
    """
    path = f"/proc/{caller.pid}/fd/{number}"
    lines = _TypedLines(path, caller.pid)
    try:
        with open(
            os.open(path, _FLAGS), "w", encoding="utf-8", errors="backslashreplace"
        ) as target:
            escapes = caller.environ.get("TERM", "dumb") not in ("", "dumb")
            turn = terminals.turn(caller.terminal_device, path, escapes=escapes)
            yield TerminalApprover(cast("TextIO", lines), target, turn=turn)
    finally:
        lines.close()
