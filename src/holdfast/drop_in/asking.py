"""
Asks a person on the terminal of a caller.

The server reads that terminal only while a question is open. When the caller is gone it has
to let go at once: what is typed next is for somebody else.
"""

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO, cast

from holdfast.approvals import TerminalApprover

__all__ = ["approver_on"]

_FLAGS = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC

_MOST = 4096
"""Bytes of a line; a terminal gives no longer ones."""


class _TypedLines:
    """Lines of a terminal, until `close`; what `TerminalApprover` needs of a file."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, _FLAGS | os.O_NONBLOCK)
        self._closed, self._close = os.pipe2(os.O_CLOEXEC)
        self._reading = threading.Lock()

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def readline(self) -> str:
        """Return the next line; nothing at the end, or once it is closed."""
        with self._reading:
            if self._fd < 0:
                return ""
            ready, _, _ = select.select([self._fd, self._closed], [], [])
            if self._closed in ready:
                return ""
            try:
                return os.read(self._fd, _MOST).decode("utf-8", "replace")
            except OSError:
                return ""  # the terminal is gone

    def close(self) -> None:
        """Let go of the terminal; a thread that reads is woken."""
        os.write(self._close, b"x")
        with self._reading:
            for fd in (self._fd, self._closed, self._close):
                os.close(fd)
            self._fd = -1


@contextmanager
def approver_on(pid: int, number: int) -> Iterator[TerminalApprover]:
    """
    Return somebody to ask, at the terminal that a process has as a descriptor.

    Raises:
        OSError: It cannot be opened.
    """
    path = f"/proc/{pid}/fd/{number}"
    lines = _TypedLines(path)
    try:
        with open(
            os.open(path, _FLAGS), "w", encoding="utf-8", errors="backslashreplace"
        ) as target:
            yield TerminalApprover(cast("TextIO", lines), target)
    finally:
        lines.close()
