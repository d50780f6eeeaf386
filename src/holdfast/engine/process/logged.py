"""
A process with its output log: what a server needs in addition to the seam `ExecProcess`.

`LocalProcess` is one by itself. A process of another backend becomes one when its events are
followed into a log (`server.backend_processes`).
"""

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine
from time import monotonic
from typing import Any

from msgspec import UNSET

from holdfast.backends import ExecProcess, Ready
from holdfast.base.errors import InvalidParams
from holdfast.engine.process.event_stream import EventReaders, LogEventStream
from holdfast.engine.process.io.log import OutputLog
from holdfast.events import Reason, Verdict
from holdfast.wire.protocol.process import (
    Enforcement,
    ProcessSummary,
    ReadResponse,
    StartParams,
    WriteStatus,
    check_read,
)

__all__ = ["ACCEPTED", "LONGEST_WAIT", "LoggedProcess", "sandbox_type"]

ACCEPTED = Ready(WriteStatus.ACCEPTED)
"""The answer of a write that was accepted at once."""

# Seconds. Clients may ask for 2**64 milliseconds, which overflows the timers of event loops.
LONGEST_WAIT = 1e6


def sandbox_type(params: StartParams) -> str:
    """Return the kind of sandbox of a process that was started with these params."""
    # A profile that isolates nothing counts too [sandbox.type].
    return "none" if params.sandbox is None else "linuxSeccomp"


class LoggedProcess(ExecProcess):
    """
    An `ExecProcess` that answers from its log, plus what the owner of the process needs.

    Its methods answer at once where they can; see `backends.Ready`.
    """

    remote = False
    process_id = ""
    sandbox_type = "none"
    pid: int | None = None
    enforcement: Enforcement | None = None
    input_refused = False
    """True if it had a stdin and was terminated: no more input is written."""
    left_something = True
    """True if processes of its group may have outlived it; known after the close."""

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
        # The reason of our kill, if there was one; it becomes the reason of the verdict.
        self._killed: Reason | None = None
        # True if the owner is gone, so that further output has no reader.
        self._abandoned = False
        self._readers: EventReaders | None = None

    # The log alone decides, so that a process never looks exited before its exit is in there.
    @property
    def running(self) -> bool:
        """True until the exit of the process itself; its descendants do not count."""
        return self.log.verdict is None

    @property
    def verdict(self) -> Verdict | None:
        return self.log.verdict

    def open_events(self) -> EventReaders:
        """Keep all output for the first reader of events; called before there is any."""
        self._readers = EventReaders(self.log, self.log.hold, self.log.release)
        return self._readers

    def events(
        self, after_seq: int = 0, *, gaps: bool = False, stream_ends: bool = False
    ) -> LogEventStream:
        readers = self._readers or self.open_events()
        return readers.stream(after_seq, gaps=gaps, stream_ends=stream_ends)

    def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> Coroutine[Any, Any, ReadResponse]:
        # A client may poll repeatedly, so this needs no task.
        if wait > 0 and not self.log.has_news(after_seq):
            return self._read_later(after_seq, max_bytes, wait)
        try:
            check_read(after_seq, max_bytes, wait)
        except InvalidParams as error:
            return Ready.failed(error)
        return Ready(self.log.read(after_seq, max_bytes))

    async def _read_later(self, after_seq: int, max_bytes: int | None, wait: float) -> ReadResponse:
        check_read(after_seq, max_bytes, wait)
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

    async def exited(self) -> Verdict:
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

    async def wait(self) -> Verdict:
        # A read of 0 bytes at the end of the log returns at the next entry, whatever that is.
        while not self.log.closed:
            await self._read_later(self.log.next_seq, 0, LONGEST_WAIT)
        # The exit always comes before the close.
        assert self.log.verdict is not None
        return self.log.verdict

    async def ask_to_end(self, reason: Reason) -> None:
        """Send SIGTERM as `signal` does; the verdict will have this reason, however it ends."""
        if self.running and self._killed is None:
            self._killed = reason
        await self.signal("SIGTERM")
        # A stopped process handles the signal only once it continues.
        await self.signal("SIGCONT")

    @abstractmethod
    def kill_group(self, reason: Reason) -> None:
        """Kill its process group, whether it has exited or not; for an owner that is leaving."""

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
