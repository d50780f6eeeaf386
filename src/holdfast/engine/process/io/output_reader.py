"""
Reads output from a pipe or a terminal into the log of a process.

One `read` of up to 64 KiB becomes one entry. Reading can be held while a client is too slow:
the pipe then fills and the process blocks. The log gets the end of the stream too. The
descriptors of all processes of an event loop share one epoll instance.
"""

import asyncio
import fcntl
import logging
import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol
from weakref import WeakKeyDictionary

from holdfast.wire.protocol.process import OutputStream

__all__ = ["CHUNK", "OutputReader", "Readers", "Sink", "readers_of"]

# -- the epoll instance of an event loop
#
# A short command has three watched descriptors: its stdout, its stderr and its pidfd. With
# `add_reader` of uvloop each costs six calls of `epoll_ctl` and an object of its own, a tenth of
# the whole start. Here each costs one call to begin and one to end (`scripts/bench --without
# shared-epoll`).

# Descriptors that are served in one turn of the event loop. epoll reports the others next time.
_MOST_READY = 256

_by_loop: "WeakKeyDictionary[asyncio.AbstractEventLoop, Readers]" = WeakKeyDictionary()


def readers_of(loop: asyncio.AbstractEventLoop) -> "Readers":
    """
    Return the readers of an event loop, which live as long as it does.

    Raises:
        OSError: There is no descriptor left to make them.
    """
    # Weak keys: a loop that is closed and dropped takes its readers along.
    readers = _by_loop.get(loop)
    if readers is None:
        readers = _by_loop[loop] = Readers(loop)
    return readers


class Readers:
    """Calls back while descriptors can be read, as `add_reader` of an event loop does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # No reference to the loop, which is the weak key of `_by_loop` and could never be freed.
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._ready)

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        """
        Watch a descriptor until `remove`, which has to be called before it is closed.

        Raises:
            OSError: The kernel's limit of watched descriptors is reached.
        """
        # Level-triggered: what one turn does not read is reported again.
        self._epoll.register(fd, select.EPOLLIN)
        self._callbacks[fd] = callback

    def remove(self, fd: int) -> None:
        """Stop watching a descriptor; harmless if it is not watched."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def fileno(self) -> int:
        """Return the descriptor of the epoll instance."""
        return self._epoll.fileno()

    def _ready(self) -> None:
        for fd, _ in self._epoll.poll(0, _MOST_READY):
            # An earlier callback of this turn may have removed it. If the number is in use
            # again, the new callback is called with nothing to read, which all callbacks expect.
            callback = self._callbacks.get(fd)
            if callback is not None:
                try:
                    callback()
                except Exception as error:  # noqa: BLE001 - the others have their turn all the same
                    context = {"message": f"exception in {callback!r}", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(context)


# -- the output of one process


logger = logging.getLogger(__name__)

# Bytes read at once, and so the largest chunk.
#
# Large chunks are the main reason for our throughput, and every client accepts them.
CHUNK = 64 << 10

# Most bytes that one `read` of a terminal returns (N_TTY_BUF_SIZE).
_TERMINAL_READ = 4096

# Reads before other descriptors get their turn: one writer must not starve the event loop.
_READS_PER_WAKEUP = 8

# Bytes of kernel buffer for a pipe that carries much: the most that a user may set
# (fs.pipe-max-size). A fast path: `scripts/bench --without large-pipe`.
_BULK_PIPE = 1 << 20

# Bytes that one `drain` reads at most: all of a full pipe, but not for ever the output of a
# descendant in the background.
_MAX_DRAIN = 2 * _BULK_PIPE

# Wake-ups after which the event loop watches a descriptor itself.
#
# To begin with, all descriptors share one epoll instance, which is cheap for a short command. The
# kernel wakes a reader behind two instances later: it uses an idle core where the writer's own
# would do. An echo through `cat` takes longer: `scripts/bench --without watched-by-loop`.
_SHORT_COMMAND = 3

# Seconds until a terminal that no process has open is read again.
_LOOK_AGAIN = 0.1


class Sink(Protocol):
    """Receiver of output: a log, or a filter in front of one."""

    def append(self, stream: OutputStream, data: bytes) -> None: ...

    def end_stream(self, stream: OutputStream) -> None: ...


class OutputReader:
    """
    Reader of one descriptor, which it owns and closes at end of file.

    A terminal ends when no process has it open and its own process has exited. Closing it earlier
    would send SIGHUP to a process that is about to exit, or that opens the terminal again by its
    name.
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
        # True while no process has the terminal open: epoll would report EPOLLHUP all the time.
        self._deserted = False
        # True while the descriptor is watched: with those of other processes, or by the loop.
        self._polled = False
        self._wake_ups = 0
        # True once the event loop watches it itself; see `_SHORT_COMMAND`.
        self._by_loop = False
        self._enlarged = False
        self._log_failed = False
        self.open = True
        self.process_gone = False
        """Set by the owner at the exit of its process; from then on a terminal may end."""
        self._poll()

    def hold(self) -> None:
        """Stop reading; a second call does nothing."""
        self._held = True
        self._poll()

    def release(self) -> None:
        """Resume reading."""
        self._held = False
        self._poll()

    def drain(self) -> None:
        """
        Read the output that is in the kernel's buffer, up to 2 MiB, even while it is held.

        Called at the exit of the process, so that its last bytes are logged before the exit.
        """
        taken = 0
        while self.open and taken < _MAX_DRAIN:
            size = self._take()
            if size == 0:
                return
            taken += size

    def close(self) -> None:
        """Close the descriptor and log the end of the stream; unread output is lost."""
        if not self.open:
            return
        self.open = False
        self._poll()
        os.close(self._fd)
        self._log.end_stream(self._stream)
        # Dropped: a reader is part of a cycle, and the process behind this method is not.
        ended, self._ended = self._ended, _do_nothing
        ended()

    def _poll(self) -> None:
        """Watch the descriptor, or stop watching, according to the current state."""
        wanted = self.open and not self._held and not self._deserted
        if wanted != self._polled:
            self._polled = wanted
            if wanted and self._by_loop:
                self._loop.add_reader(self._fd, self._readable)
            elif wanted:
                self._readers.add(self._fd, self._readable)
            elif self._by_loop:
                self._loop.remove_reader(self._fd)
            else:
                self._readers.remove(self._fd)

    def _let_loop_watch(self) -> None:
        self._readers.remove(self._fd)
        try:
            self._loop.add_reader(self._fd, self._readable)
            self._by_loop = True
        except OSError:
            # The kernel's limit of watched descriptors is reached: it stays with the others.
            self._readers.add(self._fd, self._readable)

    def _readable(self) -> None:
        self._wake_ups += 1
        if self._wake_ups == _SHORT_COMMAND:
            self._let_loop_watch()
        for _ in range(_READS_PER_WAKEUP):
            if self._take() < CHUNK or self._held:
                # A short read means that the pipe is empty: another read would only cost time.
                # Or a listener of the log has just called `hold`.
                return

    def _take_from_pipe(self) -> int:
        """Log the result of one read; return its size, 0 if there was nothing to read."""
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self.close()
            return 0
        self._append(data)
        if len(data) == CHUNK and not self._enlarged:
            # A pipe has 64 KiB until it has been full once. With a larger one, the writer and this
            # reader need not take turns for each piece. The call fails if the user's share of pipe
            # memory is used up: then it stays slow.
            self._enlarged = True
            with suppress(OSError):
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _BULK_PIPE)
        return len(data)

    def _append(self, data: bytes) -> None:
        """Log output; an error of the log, such as a full disk, must not hide the exit."""
        try:
            self._log.append(self._stream, data)
        except Exception:
            # Once only: it would most likely fail for every chunk.
            if not self._log_failed:
                self._log_failed = True
                logger.exception("the log of a process failed, and lost some of its output")

    def _take_from_terminal(self) -> int:
        """Log the result of several reads as one entry; return its size."""
        pieces: list[bytes] = []
        size = 0
        ended = False
        while size <= CHUNK - _TERMINAL_READ:
            try:
                piece = os.read(self._fd, _TERMINAL_READ)
            except BlockingIOError:
                break
            except OSError:
                # EIO: no process has the slave open.
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


def _do_nothing() -> None:
    """Stand for a callback that was called."""
