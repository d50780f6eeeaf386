"""
Reads the stderr of a sandboxed command if it is a regular file, to find a denial.

The command has the caller's own streams, so the server does not see its output. Only a regular
file can be read afterwards.
"""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

from holdfast.engine.sandbox.policy.denial import find_denial
from holdfast.wire.protocol.process import OutputChunk

__all__ = ["StderrFile"]

# Bytes to read from the end of the file: the reason of a failure is in the last lines.
_MOST_READ = 64 << 10


class StderrFile:
    """Stderr of a process, if it is a regular file; a context manager."""

    def __init__(self, pid: int) -> None:
        self._fd: int | None = None
        self._from = 0
        with suppress(OSError):
            path = f"/proc/{pid}/fd/2"
            # The open of a FIFO or a device would have side effects.
            if not stat.S_ISREG(os.stat(path).st_mode):
                return
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self._from = os.fstat(self._fd).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def denial(self, status: int, reasons: Mapping[str, str], cwd: str) -> str | None:
        """Return a line about a denial that the output of a failed command shows, or None."""
        if self._fd is None or not status:
            return None
        try:
            size = os.fstat(self._fd).st_size
            begin = max(self._from, size - _MOST_READ)
            said = os.pread(self._fd, _MOST_READ, begin)
        except OSError:
            return None
        chunks = [OutputChunk(seq=1, stream="stderr", chunk=said)]
        found = find_denial(status, chunks, reasons, cwd)
        if found is None:
            return None
        what = found.path or found.snippet or "something"
        what = "the network" if found.network else what
        why = f": {found.reason}" if found.reason else ""
        hint = f" ({found.hint})" if found.hint else ""
        return f"holdfast-sh: denied by the sandbox: {what}{why}{hint}"
