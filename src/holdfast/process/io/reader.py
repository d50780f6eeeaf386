"""
Moves what a descriptor delivers into the log: the first half of the path of a byte.

One `read` of up to 64 KiB becomes one entry. A pump can be held while a reader of
the log is too slow; the kernel's buffer then fills and the process waits. The end of
its stream is noted in the log too.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from holdfast.process.io.epoll import readers_of
from holdfast.protocol.process import OutputStream

__all__ = ["CHUNK", "OutputReader", "Sink"]

logger = logging.getLogger(__name__)

CHUNK = 64 << 10
"""
Bytes read at once, and so the largest chunk.

The real server reads 8 KiB; fewer, larger chunks are most of what makes a stream
fast, and every client takes them.
"""

# Bytes a terminal hands out at once, however much it has.
_TERMINAL_READ = 4096

# Reads before the event loop gets to look at others.
_READS_PER_WAKEUP = 8

# Bytes of buffer for a pipe that turned out to carry a lot.
_BULK_PIPE = 1 << 20

# Bytes that one `drain` takes, at most.
#
# What a full pipe holds, and not what a child in the background goes on writing.
_MAX_DRAIN = 2 * _BULK_PIPE


# Seconds until a terminal that nobody has open is looked at again.
_LOOK_AGAIN = 0.1


class Sink(Protocol):
    """Takes what is read: a log, or what stands before one."""

    def append(self, stream: OutputStream, data: bytes) -> None: ...

    def end_stream(self, stream: OutputStream) -> None: ...


class OutputReader:
    """
    Reads one descriptor, which it owns, until its end.

    A terminal ends when nobody has it open and its process has gone: to close it
    earlier would hang up on a process that is about to exit, and on one that
    opens it again by its name.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        stream: OutputStream,
        log: Sink,
        ended: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._readers = readers_of(loop)
        self._fd = fd
        self._stream = stream
        self._log = log
        self._ended = ended
        self._take = self._take_from_terminal if stream == "pty" else self._take_from_pipe
        self._held = False
        self._deserted = False
        self._polled = False
        self._enlarged = False
        self._log_failed = False
        self.open = True
        self.process_gone = False
        """Set by the owner: from then on a terminal may end."""
        self._poll()

    def hold(self) -> None:
        """Stop reading; harmless when it has stopped already."""
        self._held = True
        self._poll()

    def release(self) -> None:
        """Read again."""
        self._held = False
        self._poll()

    def drain(self) -> None:
        """
        Take what is there already, without waiting: 2 MiB at most.

        Also while it is held. A process that has exited writes no more, so its last bytes
        are told before its exit, and before its pipes are closed, whoever is behind.
        """
        taken = 0
        while self.open and taken < _MAX_DRAIN:
            size = self._take()
            if size == 0:
                return
            taken += size

    def close(self) -> None:
        """Let go of the descriptor and note the end; what was not read is lost."""
        if not self.open:
            return
        self.open = False
        self._poll()
        os.close(self._fd)
        self._log.end_stream(self._stream)
        self._ended()

    def _poll(self) -> None:
        """Have the event loop watch the descriptor exactly while it is to be read."""
        wanted = self.open and not self._held and not self._deserted
        if wanted != self._polled:
            self._polled = wanted
            if wanted:
                self._readers.add(self._fd, self._readable)
            else:
                self._readers.remove(self._fd)

    def _readable(self) -> None:
        for _ in range(_READS_PER_WAKEUP):
            if self._take() < CHUNK or self._held:
                # Less than asked for: it is empty now. Or somebody cannot keep up.
                return

    def _take_from_pipe(self) -> int:
        """One read into the log: its size, 0 if there was nothing."""
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self.close()
            return 0
        self._append(data)
        if len(data) == CHUNK and not self._enlarged:
            # A pipe is 64 KiB until it shows that it matters: then the writer and
            # this reader no longer take turns for each piece. When the user's share
            # of pipe memory is used up it stays small: slower, not wrong.
            self._enlarged = True
            with suppress(OSError):
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _BULK_PIPE)
        return len(data)

    def _append(self, data: bytes) -> None:
        """Log output; a log that fails, as a full disk makes one, must not hide the exit."""
        try:
            self._log.append(self._stream, data)
        except Exception:
            # It would fail for every chunk.
            if not self._log_failed:
                self._log_failed = True
                logger.exception("the log of a process failed, and lost some of its output")

    def _take_from_terminal(self) -> int:
        """As from a pipe, but several reads make one entry."""
        pieces: list[bytes] = []
        size = 0
        ended = False
        while size <= CHUNK - _TERMINAL_READ:
            try:
                piece = os.read(self._fd, _TERMINAL_READ)
            except BlockingIOError:
                break
            except OSError:
                # EIO: the last holder of the terminal is gone.
                piece = b""
            if not piece:
                ended = True
                break
            pieces.append(piece)
            size += len(piece)
        if pieces:
            self._append(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if ended and self.process_gone:
            self.close()
        elif ended and not self._deserted:
            self._deserted = True
            self._poll()
            self._loop.call_later(_LOOK_AGAIN, self._look_again)
        return size

    def _look_again(self) -> None:
        self._deserted = False
        self._poll()
