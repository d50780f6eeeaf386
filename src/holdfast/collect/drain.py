"""
Reads the events of one process until its output has ended.

After an exit, a child of the process may keep its output open for ever. So the output is read
until it is closed, until nothing was written for a while, or until a hard limit. Over a slow
connection, silence may only mean that bytes are in flight. So the server is asked before the
rest is given up.
"""

import asyncio
from typing import NamedTuple, Self

from holdfast.backends import EventStream, ExecProcess
from holdfast.collect import QUIET
from holdfast.errors import HoldfastError
from holdfast.events import Closed, Exited, ProcessEvent, Verdict
from holdfast.protocol.process import ReadResponse

__all__ = ["DRAIN_LIMIT", "Drain", "ReadInFlight"]

DRAIN_LIMIT = 2.0
"""Seconds after an exit that end the reading, though something else still writes."""


class Drain:
    """
    Events of one process, until its output has ended.

    An async iterator. One task may wait at a time, and cancelling a wait loses nothing. There
    is no limit until the exit. After it, the iteration ends:

    - with `Closed`, the end of the output;
    - or when nothing was written for `quiet` seconds, by the clock of the server. A remote
      server is asked by a `read` that waits so long. Output in its response is in flight, and
      is waited for however slow the connection is;
    - at the latest `limit` seconds after the exit. All output until then is still returned.

    While the connection is lost, the iteration waits for it.

    Raises (while iterating):
        OutputLost: As `ExecProcess.events`.
        ConnectionLost: As `ExecProcess.events`.
    """

    # Bytes that the server is asked for: one is enough to know that there is more.
    _page: int | None = 1

    def __init__(
        self,
        process: ExecProcess,
        *,
        after_seq: int = 0,
        gaps: bool = False,
        quiet: float | None = QUIET,
        limit: float | None = DRAIN_LIMIT,
        stream_ends: bool = False,
    ) -> None:
        """
        Begin to read; from here on, the process waits for this reader.

        Args:
            process: Process to read.
            after_seq: Last `seq` that the caller has; before the exit of the process.
            gaps: See `ExecProcess.events`.
            quiet: Seconds without output after the exit; `None` for no such window.
            limit: Seconds after the exit; `None` for no limit.
            stream_ends: See `ExecProcess.events`.
        """
        self.quiet = quiet
        self.limit = limit
        self.verdict: Verdict | None = None
        """Verdict of the process, once its exit was returned."""
        self.exit_time = 0.0
        """Time of the exit event, in seconds of the loop's clock."""
        self.closed = False
        """True after `Closed`. False after the iteration: another process holds the output."""
        self.last_seq = after_seq
        """Number of the last event that was returned."""
        self._process = process
        self._stream_ends = stream_ends
        self._events: EventStream | None = process.events(
            after_seq, gaps=gaps, stream_ends=stream_ends
        )
        self._loop = asyncio.get_running_loop()
        # Events up to this number exist on the server, and are waited for.
        self._promised = 0
        # True if the server was asked after the limit: nothing is read beyond its response.
        self._final = False
        # Start of the current wait without events.
        self._silent_since: float | None = None
        # Running `read` request. It outlives a cancelled wait.
        self._question: ReadInFlight | None = None
        self._shut = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ProcessEvent:
        event = await self.next(quiet=self.quiet, limit=self.limit)
        if event is None:
            raise StopAsyncIteration
        return event

    async def next(self, *, quiet: float | None, limit: float | None) -> ProcessEvent | None:
        """
        Return the next event, or None at the end by these windows.

        After None it can be called again, with the same or longer windows, and returns the
        output since then.
        """
        while not (self.closed or self._shut):
            if self.verdict is None or self.last_seq < self._promised:
                event = await self._take()
            elif limit is not None and self._loop.time() >= self.exit_time + limit:
                if self._final:
                    self._final = False
                    return None
                event = await self._event_or_answer(0.0, final=True)
            else:
                self._final = False
                end = None if limit is None else self.exit_time + limit
                event = await self._event_or_silence(quiet, end)
                now = self._loop.time()
                if event is None and quiet is not None and (end is None or now < end):
                    wait = max(0.0, quiet if end is None else min(quiet, end - now))
                    event = await self._event_or_answer(wait, final=False)
                    if event is None and self.last_seq >= self._promised:
                        self._silent_since = None
                        return None
            if event is not None:
                return event
        return None

    @property
    def ready(self) -> bool:
        """True if `next` would return without waiting."""
        return self.closed or (self._events is not None and self._events.ready)

    def pause(self) -> None:
        """
        Stop reading until the next call of `next`; the process does not wait meanwhile.

        Reading then continues after the last number, with a `Gap` for events that were evicted.
        No task may be waiting for an event, except if `close` calls this.
        """
        if self._events is not None:
            self._events.close()
            self._events = None
        self._drop_question()

    def close(self) -> None:
        """Stop reading; a second call does nothing."""
        self._shut = True
        self.pause()

    # -- one wait each

    async def _take(self) -> ProcessEvent | None:
        """Wait for the next event; None if the stream has ended without one."""
        if self._events is None:
            self._events = self._process.events(
                self.last_seq, gaps=True, stream_ends=self._stream_ends
            )
        try:
            event = await anext(self._events)
        except StopAsyncIteration:
            # The stream began after `Closed`, or `close` was called during the wait.
            self.closed = not self._shut
            return None
        except HoldfastError:
            # The next call fails as well, or continues after the lost events.
            self.pause()
            raise
        self._note_event(event)
        if type(event) is Exited:
            self.verdict = event.verdict
            self._exit_came()
        elif type(event) is Closed:
            self.closed = True
            self._drop_question()
        return event

    def _note_event(self, event: ProcessEvent) -> None:
        self.last_seq = event.seq
        self._silent_since = None
        self._event_came()

    def _exit_came(self) -> None:
        self.exit_time = self._loop.time()

    def _event_came(self) -> None:
        """Drop a running question: its response would describe the state before this event."""
        if self._question is not None and not self._question.final:
            self._drop_question()

    async def _event_or_silence(
        self, quiet: float | None, end: float | None
    ) -> ProcessEvent | None:
        """Wait for an event, at most until the end of the quiet window or `end`."""
        if self._question is not None and not self._question.final:
            # A cancelled wait has already asked the server.
            return None
        if self._silent_since is None:
            self._silent_since = self._loop.time()
        deadlines = [] if end is None else [end]
        if quiet is not None:
            deadlines.append(self._silent_since + quiet)
        try:
            async with asyncio.timeout_at(min(deadlines, default=None)):
                return await self._take()
        except TimeoutError:
            return None

    async def _event_or_answer(self, wait: float, *, final: bool) -> ProcessEvent | None:
        """
        Ask the server what exists after the last number; return an event if one comes first.

        Otherwise the response is stored in `_promised`. Events are returned meanwhile: a full
        queue of events would block the connection, and with it the response.
        """
        if self._question is None or self._question.final is not final:
            self._drop_question()
            # Not awaited here: `_drop_question` cancels it if the response is not needed.
            task = self._loop.create_task(self._ask(wait, final))
            task.add_done_callback(_note_failure)
            self._question = ReadInFlight(task, final, self.last_seq, self._loop.time())
        question = self._question
        task = question.task
        if not task.done():
            patience = asyncio.timeout(None)
            waiting = True

            def answered(_: object) -> None:
                # An event may have arrived in the same iteration of the loop.
                if waiting:
                    patience.reschedule(0)

            try:
                async with patience:
                    task.add_done_callback(answered)
                    try:
                        return await self._take()
                    finally:
                        waiting = False
                        task.remove_done_callback(answered)
            except TimeoutError:
                pass
        self._question = None
        self._answered(question, task.result())
        return None

    def _answered(self, question: "ReadInFlight", answer: ReadResponse) -> None:
        """Store the number of the last event that exists on the server."""
        self._promised = answer.next_seq - 1
        if answer.closed:
            self._promised = max(self._promised, self.last_seq + 1)
        self._final = question.final

    async def _ask(self, wait: float, final: bool) -> ReadResponse:
        if not self._process.remote:
            # A local process needs no question. But a busy loop may run this timer before it
            # has polled the pipes, so it gets a few iterations.
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            wait = 0.0
        # Before the limit, one chunk is enough to know that there is more.
        return await self._process.read(self.last_seq, None if final else self._page, wait)

    def _drop_question(self) -> None:
        question, self._question = self._question, None
        if question is not None:
            question.task.cancel()


class ReadInFlight(NamedTuple):
    """Running `read` request."""

    task: asyncio.Task[ReadResponse]
    final: bool
    """True for the last request, after the limit."""
    after_seq: int
    """Number after which it asks for events."""
    asked: float
    """Time of the request, in seconds of the loop's clock."""


def _note_failure(task: asyncio.Task[ReadResponse]) -> None:
    """Retrieve an exception that may stay unread: the events fail for the same reason."""
    if not task.cancelled():
        task.exception()


# Iterations of the event loop after which all descriptors have been polled.
_TURNS = 2
