"""
A process as a server needs it: its output log, and the ways to act on it.

`LocalProcess` is one by itself. A process behind the seam `ExecProcess` becomes one through
`server.backend_processes`. Observers get this type, whichever it is.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from time import monotonic

from msgspec import UNSET

from holdfast.engine.process.io.log import OutputLog
from holdfast.events import Reason, Verdict, WaitingFor
from holdfast.wire.protocol.process import (
    Enforcement,
    ProcessSummary,
    ReadResponse,
    StartParams,
    WriteStatus,
)

__all__ = ["LONGEST_WAIT", "ServedProcess", "sandbox_type"]

# Seconds. Clients may ask for 2**64 milliseconds, which overflows the timers of event loops.
LONGEST_WAIT = 1e6


def sandbox_type(params: StartParams) -> str:
    """Return the kind of sandbox of a process that was started with these params."""
    # A profile that isolates nothing counts too, as in the real server [sandbox.type].
    return "none" if params.sandbox is None else "linuxSeccomp"


class ServedProcess(ABC):
    """
    A running or exited process, its log, and the ways to act on it.

    A method that can answer at once does so without a coroutine, and returns an awaitable only
    if it has to wait: a task per request would double the cost of a short one.
    """

    pid: int | None
    """Its pid where it runs; None if that is not known."""
    enforcement: Enforcement | None
    """The layers of its sandbox; None without one, or if they are not known."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, params: StartParams, log: OutputLog
    ) -> None:
        """
        Args:
            loop: Runs everything here.
            params: The request of its start, with the client's own id.
            log: An empty log, which takes the output, the exit and the close.
        """
        self.process_id = params.process_id
        self.argv = params.argv
        self.tty = params.tty
        self.sandbox_type = sandbox_type(params)
        self.log = log
        # For the time that the journal reports; not the wall clock, which may be set.
        self.started = monotonic()
        self._loop = loop

    # The log alone decides, so that a process never looks exited before its exit is in there.
    @property
    def running(self) -> bool:
        """True until the exit of the process itself; its descendants do not count."""
        return self.log.verdict is None

    @property
    @abstractmethod
    def left_something(self) -> bool:
        """True if processes of its group may have outlived it; known after the close."""

    # -- output

    def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse | Awaitable[ReadResponse]:
        """Return the entries after a number; an awaitable if there are none and `wait` is not 0."""
        # A client that polls asks again and again, so this needs no task.
        if wait <= 0 or self.log.has_news(after_seq):
            return self.log.read(after_seq, max_bytes)
        return self._read_later(after_seq, max_bytes, wait)

    async def _read_later(self, after_seq: int, max_bytes: int | None, wait: float) -> ReadResponse:
        deadline = self._loop.time() + min(wait, LONGEST_WAIT)
        try:
            async with asyncio.timeout_at(deadline):
                while not self.log.has_news(after_seq):
                    woken: asyncio.Future[None] = self._loop.create_future()

                    def wake(future: asyncio.Future[None] = woken) -> None:
                        if not future.done():
                            future.set_result(None)

                    self.log.wake_once(wake)
                    try:
                        await woken
                    finally:
                        # After a timeout or a cancellation it is still registered.
                        self.log.forget_waker(wake)
        except TimeoutError:
            # Not an error: the answer then has no chunks, only the state.
            pass
        return self.log.read(after_seq, max_bytes)

    async def wait_exited(self) -> Verdict:
        """Wait for the exit and return its verdict; output may still follow."""
        exited: asyncio.Future[None] = self._loop.create_future()

        def done() -> None:
            if not exited.done():
                exited.set_result(None)

        # Called at once for a process that has exited already.
        self.log.when_exited(done)
        try:
            await exited
        finally:
            self.log.forget_exit_callback(done)
        # The callback is called after the verdict is set.
        assert self.log.verdict is not None
        return self.log.verdict

    async def wait_closed(self) -> None:
        """Wait until the process has exited and all its output has ended."""
        # A read of 0 bytes at the end of the log returns at the next entry, whatever that is.
        while not self.log.closed:
            await self._read_later(self.log.next_seq, 0, LONGEST_WAIT)

    @abstractmethod
    def hold_output(self, holder: object) -> None:
        """
        Stop reading its output, so that the process blocks; for a reader that cannot keep up.

        What it has written by its exit is read all the same.
        """

    @abstractmethod
    def release_output(self, holder: object) -> None:
        """Read again, unless another holder is left; harmless without a hold."""

    # -- input

    @abstractmethod
    def write(self, data: bytes, write_id: str) -> "WriteStatus | asyncio.Future[WriteStatus]":
        """
        Write to its stdin, once per id; return a future while its queue is full.

        Raises:
            StdinClosed: The process was terminated.
            InvalidRequest: The queued input exceeds a limit.
        """

    @abstractmethod
    def close_stdin(self) -> Awaitable[None] | None:
        """
        Close its stdin once the queued input is written, so that it reads end of file.

        Raises:
            InvalidRequest: The process has a terminal, which cannot be closed in one direction.
        """

    @abstractmethod
    def resize(self, rows: int, cols: int) -> Awaitable[None] | None:
        """
        Change the size of its terminal.

        Raises:
            InvalidRequest: The process has no terminal.
        """

    @abstractmethod
    def waiting_for(self) -> WaitingFor | Awaitable[WaitingFor]:
        """Return the input that the process waits for; see `ExecProcess.waiting_for`."""

    # -- ending

    @abstractmethod
    def signal(self, number: int) -> Awaitable[None] | None:
        """
        Send a signal to its process group; do nothing once it has exited.

        Raises:
            OperationFailed: The system refused.
        """

    @abstractmethod
    def ask_to_end(self, reason: Reason) -> Awaitable[None] | None:
        """
        Send SIGTERM to its process group; its verdict will have this reason, however it ends.

        Raises:
            OperationFailed: The system refused.
        """

    def summary(self) -> ProcessSummary:
        """Return the row of this process in the answer to `process/list`."""
        verdict = self.log.verdict
        return ProcessSummary(
            process_id=self.process_id,
            # The wire has a number here, and no process has the number 0.
            pid=self.pid or 0,
            argv=self.argv,
            tty=self.tty,
            running=self.running,
            closed=self.log.closed,
            exit_code=None if verdict is None else verdict.exit_code,
            reason=None if verdict is None else verdict.reason.value,
            next_seq=self.log.next_seq,
            sandbox_type=self.sandbox_type,
            enforcement=UNSET if self.enforcement is None else self.enforcement,
        )
