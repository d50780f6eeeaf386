"""
Reads the events of one process until its output has ended.

After an exit, a child of the process may keep its output open for ever. The output is therefore
read until it is closed, until it has been silent for a while, or until a hard limit. Over a slow
connection, silence may only mean that bytes are in flight, so the server is asked before the rest
is given up. Stdout may end while stderr is still open: `StreamDrain` waits for each stream
separately.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple, Self

from holdfast.backends import EventStream, ExecProcess
from holdfast.base.errors import HoldfastError
from holdfast.environments.collect import QUIET
from holdfast.events import Closed, Exited, ProcessEvent, StreamEnded, Verdict
from holdfast.wire.protocol.process import OutputChunk, OutputStream, ReadResponse

__all__ = ["DRAIN_LIMIT", "Drain", "StreamDrain"]

DRAIN_LIMIT = 2.0
"""Seconds after an exit at which reading stops, even if another process still writes."""

# Iterations of the event loop after which all descriptors have been polled.
_TURNS = 2


class _ReadInFlight(NamedTuple):
    """Running `read` request."""

    task: asyncio.Task[ReadResponse]
    final: bool
    """True for the last request, sent after the limit."""
    after_seq: int
    """`seq` after which events are requested."""
    asked: float
    """Time of the request, in seconds of the loop's clock."""


class Drain:
    """
    Events of one process, until its output has ended.

    An async iterator. One task may wait at a time, and cancelling a wait loses nothing. There
    is no limit until the exit. After it, the iteration ends:

    - with `Closed`, the end of the output;
    - or after `quiet` seconds without output, by the clock of the server. A remote server is
      asked with a `read` that waits this long. Output in its response is in flight, and is
      awaited however slow the connection is;
    - at the latest `limit` seconds after the exit. All output until then is returned.

    While the connection is lost, the iteration waits for it.

    Raises (while iterating):
        OutputLost: As `ExecProcess.events`.
        ConnectionLost: As `ExecProcess.events`.
    """

    # `max_bytes` of the request: one byte is enough to know that there is more.
    _page: int | None = 1

    # True if an event makes the response out of date.
    _event_ends_question = True

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
        Begin to read; from now on, the process is slowed to the pace of this reader.

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
        self.exit_time: float | None = None
        """Time of the exit event, or of `note_exit`, in seconds of the loop's clock."""
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
        # Events up to this number exist on the server, and are awaited.
        self._promised = 0
        # True once the server was asked after the limit: nothing beyond its response is read.
        self._final = False
        # Start of the current wait without events.
        self._silent_since: float | None = None
        # Running `read` request; it outlives a cancelled wait.
        self._question: _ReadInFlight | None = None
        # True once the window has ended without output.
        self._silent = False
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
        Return the next event, or None once one of these windows ends the reading.

        After None, another call with the same or longer windows returns later output.
        """
        if self.verdict is None and not (self.closed or self._shut):
            event = await self._take()
            if event is not None:
                return event
        self._silent = False
        while not self._is_over():
            # Set with the verdict.
            assert self.exit_time is not None
            end = None if limit is None else self.exit_time + limit
            if self.last_seq < self._promised:
                event = await self._take()
            elif end is None or self._loop.time() < end:
                self._final = False
                event = await self._within_window(quiet, end)
            elif self._final:
                self._final = False
                return None
            else:
                event = await self._event_or_answer(0.0, final=True)
            if event is not None:
                return event
        return None

    def _is_over(self) -> bool:
        """Return True after the exit, if no more events are awaited."""
        return self.closed or self._shut or self._silent

    def note_exit(self) -> None:
        """
        Start the limit now: the process has exited.

        For a reader that may be far behind. Otherwise the limit starts at the exit event.
        """
        if self.exit_time is None:
            self.exit_time = self._loop.time()

    @property
    def ready(self) -> bool:
        """True if `next` would return without waiting."""
        return self.closed or (self._events is not None and self._events.ready)

    def pause(self) -> None:
        """
        Stop reading until the next call of `next`, without backpressure on the process.

        Reading resumes after the last number, with a `Gap` for events that were evicted.
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
        self.last_seq = event.seq
        self._silent_since = None
        question = self._question
        if question is not None and self._event_ends_question and not question.final:
            self._drop_question()
        if type(event) is Exited:
            self.verdict = event.verdict
            self.note_exit()
        elif type(event) is Closed:
            self.closed = True
            self._drop_question()
        return event

    async def _take_until(self, deadline: float | None) -> ProcessEvent | None:
        """Wait for the next event; None if the deadline passes."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._take()
        except TimeoutError:
            return None

    async def _within_window(self, quiet: float | None, end: float | None) -> ProcessEvent | None:
        """Wait for an event until the quiet window has passed here and on the server."""
        # A cancelled wait may have asked the server already.
        if self._question is None or self._question.final:
            if self._silent_since is None:
                self._silent_since = self._loop.time()
            deadlines = [] if end is None else [end]
            if quiet is not None:
                deadlines.append(self._silent_since + quiet)
            event = await self._take_until(min(deadlines, default=None))
            if event is not None or self._is_over():
                return event
        now = self._loop.time()
        if quiet is None or (end is not None and now >= end):
            return None
        wait = max(0.0, quiet if end is None else min(quiet, end - now))
        event = await self._event_or_answer(wait, final=False)
        if event is None and self.last_seq >= self._promised:
            self._silent_since = None
            self._silent = True
        return event

    async def _event_or_answer(self, wait: float, *, final: bool) -> ProcessEvent | None:
        """
        Ask the server for output after the last number; return an event if one arrives first.

        Otherwise the response is stored in `_promised`. Events are returned meanwhile: a full
        queue of events would block the connection, and with it the response.
        """
        if self._question is None or self._question.final is not final:
            self._drop_question()
            # Not awaited here: `_drop_question` cancels it if the response is not needed.
            task = self._loop.create_task(self._ask(wait, final))
            task.add_done_callback(_note_failure)
            self._question = _ReadInFlight(task, final, self.last_seq, self._loop.time())
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

    def _answered(self, question: _ReadInFlight, answer: ReadResponse) -> None:
        """Store the number of the last event that exists on the server."""
        self._promised = answer.next_seq - 1
        if answer.closed:
            self._promised = max(self._promised, self.last_seq + 1)
        self._final = question.final

    async def _ask(self, wait: float, final: bool) -> ReadResponse:
        if not self._process.remote:
            # A local process need not be asked. But a busy loop may run this timer before it
            # has polled the pipes, so let it run a few iterations.
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            wait = 0.0
        # Before the limit, one chunk is enough to know that there is more.
        return await self._process.read(self.last_seq, None if final else self._page, wait)

    def _drop_question(self) -> None:
        question, self._question = self._question, None
        if question is not None:
            question.task.cancel()


class StreamDrain(Drain):
    """
    Output of one process, until each of its streams has ended.

    An async iterator over chunks. One task may wait at a time, and cancelling a wait loses
    nothing. Output before the exit is always returned. After the exit, a stream ends:

    - with its `StreamEnded`, or when `finish` was called for it;
    - or when `quiet` seconds have passed without a byte of it;
    - at the latest `limit` seconds after the exit. Chunks that exist by then are still
      returned, at most `last_pass` of each stream.

    The iteration ends when every stream has ended, and not before the exit.

    Raises (while iterating):
        OutputLost: As `ExecProcess.events`.
        ConnectionLost: As `ExecProcess.events`.
    """

    _page = None

    # Otherwise constant output on one stream would cancel every question about the other.
    _event_ends_question = False

    def __init__(
        self,
        process: ExecProcess,
        streams: Iterable[OutputStream],
        *,
        quiet: float | None,
        limit: float,
        last_pass: int,
    ) -> None:
        """
        Begin to read; from now on, the process is slowed to the pace of this reader.

        Args:
            process: Process whose events have no other reader.
            streams: Streams of the process.
            quiet: Seconds without a byte after the exit; `None` for no such window.
            limit: Seconds after the exit.
            last_pass: Chunks of each stream that are returned after the limit.
        """
        super().__init__(process, quiet=quiet, limit=limit, stream_ends=True)
        # Streams that have not ended, each with the chunks that may still follow the limit.
        self._open = dict.fromkeys(streams, last_pass)
        # Time of the last byte of each stream, or of the exit, by the loop's clock.
        self._since: dict[OutputStream, float] = {}
        # Streams without a `StreamEnded` so far.
        self._unended = set(self._open)
        self.given_up: set[OutputStream] = set()
        """Streams that were given up before their end."""

    @property
    def still_open(self) -> bool:
        """True until all streams have ended; some servers only report that with `Closed`."""
        return bool(self._unended) and not self.closed

    def finish(self, stream: OutputStream) -> None:
        """Ignore the rest of a stream, and do not wait for its end."""
        self._open.pop(stream, None)

    async def __anext__(self) -> OutputChunk:
        while (event := await self.next(quiet=self.quiet, limit=self.limit)) is not None:
            if type(event) is StreamEnded:
                self._unended.discard(event.stream)
                self._open.pop(event.stream, None)
            elif type(event) is Exited:
                self._since = dict.fromkeys(self._open, self._loop.time())
            elif type(event) is OutputChunk and self._wanted(event.stream):
                return event
        if not (self.closed or self._shut):
            # The limit has passed.
            self.given_up.update(self._open)
        self._open.clear()
        self.close()
        raise StopAsyncIteration

    def take_ready(self, most: int) -> OutputChunk | None:
        """Return the next chunk if it has arrived and has at most `most` bytes, or None."""
        while self._events is not None and not self._is_over():
            if self.verdict is not None and self.last_seq >= self._promised:
                # Set with the verdict.
                assert self.exit_time is not None
                # At the limit, the server has to be asked first.
                if self.limit is not None and self._loop.time() >= self.exit_time + self.limit:
                    return None
            chunk = self._events.take_output(most)
            if chunk is None:
                return None
            self.last_seq = chunk.seq
            if self._wanted(chunk.stream):
                return chunk
        return None

    def _is_over(self) -> bool:
        return super()._is_over() or (self.verdict is not None and not self._open)

    def _wanted(self, stream: OutputStream) -> bool:
        left = self._open.get(stream)
        if left is None:
            return False
        if self.verdict is not None:
            self._since[stream] = self._loop.time()
            if self._final or (self._question is not None and self._question.final):
                if left == 0:
                    del self._open[stream]
                    self.given_up.add(stream)
                    return False
                self._open[stream] = left - 1
        return True

    async def _within_window(self, quiet: float | None, end: float | None) -> ProcessEvent | None:
        """Wait for an event until one of the windows ends here, and then for the server."""
        # `limit` is not None.
        assert end is not None
        due = end
        if quiet is not None:
            due = min(end, min(self._since[stream] for stream in self._open) + quiet)
        # At the limit, `next` asks the last question.
        if due == end or self._loop.time() < due:
            return await self._take_until(due)
        return await self._event_or_answer(0.0, final=False)

    def _answered(self, question: _ReadInFlight, answer: ReadResponse) -> None:
        """
        Give up the streams that were silent on the server.

        Bytes arrive here after they were written. So a stream was silent for a whole window if
        its last byte arrived that long before the question, and the response has no later one.
        """
        super()._answered(question, answer)
        # After a close, the rest of the output and its end are in flight.
        if question.final or answer.closed:
            return
        # Without a quiet window the server is not asked.
        assert self.quiet is not None
        first = answer.chunks[0].seq if answer.chunks else answer.next_seq
        if first != question.after_seq + 1:
            # The server has evicted chunks that are in flight, so the response is incomplete.
            return
        news = {chunk.stream for chunk in answer.chunks}
        for stream in [name for name in self._open if name not in news]:
            if self._since[stream] + self.quiet <= question.asked:
                del self._open[stream]
                self.given_up.add(stream)


def _note_failure(task: asyncio.Task[ReadResponse]) -> None:
    """Retrieve an exception that may stay unread: the events fail for the same reason."""
    if not task.cancelled():
        task.exception()
