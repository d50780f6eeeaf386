"""
Moves what a descriptor delivers into the log: the first half of the path of a byte.

One `read` of up to 64 KiB becomes one entry. A pump can be held while a reader of
the log is too slow; the kernel's buffer then fills and the process waits.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable

from holdfast.process.output import OutputLog
from holdfast.protocol.process import OutputStream

__all__ = ["CHUNK", "OutputPump"]

CHUNK = 64 << 10
"""
Bytes read at once, and so the largest chunk.

The real server reads 8 KiB; fewer, larger chunks are most of what makes a stream
fast, and every client takes them.
"""

_READS_PER_WAKEUP = 8
"""Reads before the event loop gets to look at others."""

_BULK_PIPE = 1 << 20
"""Bytes of buffer for a pipe that turned out to carry a lot."""

_MAX_DRAIN = 2 * _BULK_PIPE
"""Bytes taken after an exit, at most: what a full pipe holds, and not what a child goes on writing."""


class OutputPump:
    """Reads one descriptor, which it owns, until its end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        stream: OutputStream,
        log: OutputLog,
        ended: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._stream = stream
        self._log = log
        self._ended = ended
        self._held = False
        self._bulk = stream == "pty"  # a terminal's buffer has one size
        self.open = True
        loop.add_reader(fd, self._readable)

    def hold(self) -> None:
        """Stop reading; harmless when it has stopped already."""
        if self.open and not self._held:
            self._held = True
            self._loop.remove_reader(self._fd)

    def release(self) -> None:
        """Read again."""
        if self.open and self._held:
            self._held = False
            self._loop.add_reader(self._fd, self._readable)

    def drain(self) -> None:
        """Take what is there already, without waiting, unless somebody cannot keep up."""
        taken = 0
        while self.open and not self._held and taken < _MAX_DRAIN:
            size = self._read()
            if size < 0:
                return
            taken += size

    def close(self) -> None:
        """Let go of the descriptor; what was not read is lost."""
        if not self.open:
            return
        self.open = False
        if not self._held:
            self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._ended()

    def _readable(self) -> None:
        for _ in range(_READS_PER_WAKEUP):
            if self._read() < CHUNK or self._held:
                # Less than asked for: the pipe is empty now. Or somebody cannot keep up.
                return

    def _read(self) -> int:
        """One read: its size, or -1 when there was nothing to read any more."""
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return -1
        except OSError:
            data = b""  # EIO: the last holder of the terminal is gone
        if not data:
            self.close()
            return -1
        self._log.append(self._stream, data)
        if len(data) == CHUNK and not self._bulk:
            self._enlarge()
        return len(data)

    def _enlarge(self) -> None:
        # A pipe is 64 KiB until it shows that it matters: then the writer and
        # this reader no longer take turns for each piece.
        self._bulk = True
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _BULK_PIPE)
        except OSError:
            pass  # the user's share of pipe memory is used up: slower, not wrong
