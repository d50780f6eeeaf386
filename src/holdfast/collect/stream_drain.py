"""
Reads the output of one process until its end, with time windows for each stream.

Stdout may have ended while stderr is still open. As in `holdfast.collect.drain`, the server is
asked before a silent stream is given up.
"""

import asyncio
from collections.abc import Iterable
from typing import Self

from holdfast.backends import ExecProcess
from holdfast.collect.drain import Drain, ReadInFlight
from holdfast.events import ProcessEvent, StreamEnded
from holdfast.protocol.process import OutputChunk, OutputStream, ReadResponse

__all__ = ["StreamDrain"]


class StreamDrain:
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
        Begin to read; from here on, the process waits for this reader.

        Args:
            process: Process whose events nobody else reads.
            streams: Streams of the process.
            quiet: Seconds without a byte after the exit; `None` for no such window.
            limit: Seconds after the exit.
            last_pass: Chunks of each stream that are returned after the limit.
        """
        self._source = _Source(process)
        self._loop = asyncio.get_running_loop()
        self._quiet = quiet
        self._limit = limit
        # Streams that have not ended, each with the chunks that may still follow the limit.
        self._open = dict.fromkeys(streams, last_pass)
        # Time of the last byte of each stream, or of the exit, by the loop's clock.
        self._since: dict[OutputStream, float] = {}
        self._exit_time: float | None = None
        # True after the limit.
        self._past_limit = False
        # Streams without a `StreamEnded` so far.
        self._unended = set(self._open)
        self.given_up: set[OutputStream] = set()
        """Streams that were given up before their end."""

    @property
    def exited(self) -> bool:
        """True once the exit event was read, after the output before it."""
        return self._source.verdict is not None

    @property
    def still_open(self) -> bool:
        """True until all streams have ended; a Codex server reports that with `Closed` only."""
        return bool(self._unended) and not self._source.closed

    @property
    def last_seq(self) -> int:
        """Number of the last event that was read."""
        return self._source.last_seq

    def note_exit(self) -> None:
        """
        Start the limit now, since the process has exited.

        For a reader that may be far behind; otherwise the limit starts at the exit event.
        """
        if self._exit_time is None:
            self._exit_time = self._loop.time()

    def finish(self, stream: OutputStream) -> None:
        """Ignore the rest of a stream, and do not wait for its end."""
        self._open.pop(stream, None)

    def close(self) -> None:
        """Stop reading; a second call does nothing."""
        self._source.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OutputChunk:
        while (event := await self._next_event()) is not None:
            if type(event) is StreamEnded:
                self._unended.discard(event.stream)
                self._open.pop(event.stream, None)
            elif type(event) is OutputChunk and self._wanted(event.stream):
                return event
        self._open.clear()
        self.close()
        raise StopAsyncIteration

    def take_ready(self, most: int) -> OutputChunk | None:
        """Return the next chunk if it has arrived and has at most `most` bytes, or None."""
        source = self._source
        while not source.over and not (self.exited and not self._open):
            # At the limit, the server has to be asked first.
            if source.seen_all and self._loop.time() >= self._exit_seen() + self._limit:
                return None
            chunk = source.take_ready(most)
            if chunk is None or self._wanted(chunk.stream):
                return chunk
        return None

    def _wanted(self, stream: OutputStream) -> bool:
        left = self._open.get(stream)
        if left is None:
            return False
        if self.exited:
            self._since[stream] = self._loop.time()
            if self._past_limit:
                if left == 0:
                    del self._open[stream]
                    self.given_up.add(stream)
                    return False
                self._open[stream] = left - 1
        return True

    async def _next_event(self) -> ProcessEvent | None:
        """Return the next event, or None at the end."""
        source = self._source
        while not source.over:
            if self.exited and not self._open:
                return None
            if not source.seen_all:
                event = await source.take()
            elif (now := self._loop.time()) >= (end := self._exit_seen() + self._limit):
                if source.asked_finally:
                    self.given_up.update(self._open)
                    return None
                self._past_limit = True
                event = await source.ask(final=True)
            else:
                event = await self._within_windows(now, end)
            if event is not None:
                return event
        return None

    def _exit_seen(self) -> float:
        """Return the time of the exit; the first call starts the quiet windows."""
        self.note_exit()
        # `note_exit` has set it.
        assert self._exit_time is not None
        if not self._since:
            self._since = dict.fromkeys(self._open, self._loop.time())
        return self._exit_time

    async def _within_windows(self, now: float, end: float) -> ProcessEvent | None:
        """Wait for an event; None if a window has ended, or the server has responded."""
        due = end
        if self._quiet is not None:
            due = min(end, min(self._since[stream] for stream in self._open) + self._quiet)
        if now < due:
            return await self._source.take_until(due)
        event = await self._source.ask(final=False)
        if event is None and (answer := self._source.answer) is not None:
            self._judge(*answer)
        return event

    def _judge(self, question: ReadInFlight, answer: ReadResponse) -> None:
        """
        Give up the streams that were silent on the server.

        A byte is written before it arrives here. So a stream was silent for a whole window
        under two conditions. Its last byte arrived that long before the question, and the
        response has no later one.
        """
        # Without a quiet window the server is not asked.
        assert self._quiet is not None
        if answer.closed:
            # The rest of the output and its end are in flight.
            return
        first = answer.chunks[0].seq if answer.chunks else answer.next_seq
        if first != question.after_seq + 1:
            # The server has evicted chunks that are in flight, so the response is incomplete.
            return
        news = {chunk.stream for chunk in answer.chunks}
        for stream in [name for name in self._open if name not in news]:
            if self._since[stream] + self._quiet <= question.asked:
                del self._open[stream]
                self.given_up.add(stream)


class _Source(Drain):
    """Events of a process; a running question survives the arrival of events."""

    _page = None

    def __init__(self, process: ExecProcess) -> None:
        super().__init__(process, quiet=None, limit=None, stream_ends=True)
        self.answer: tuple[ReadInFlight, ReadResponse] | None = None
        """Last question and its response."""

    @property
    def over(self) -> bool:
        """True after `Closed` or `close`."""
        return self.closed or self._shut

    @property
    def seen_all(self) -> bool:
        """True after the exit, once all events have arrived that are known to exist."""
        return self.verdict is not None and self.last_seq >= self._promised

    @property
    def asked_finally(self) -> bool:
        """True once the server has responded to the last question."""
        return self._final

    async def take(self) -> ProcessEvent | None:
        """Wait for the next event."""
        return await self._take()

    def take_ready(self, most: int) -> OutputChunk | None:
        """Return the next event if it has arrived and is a chunk of at most `most` bytes."""
        chunk = None if self._events is None else self._events.take_output(most)
        if chunk is not None:
            self._note_event(chunk)
        return chunk

    async def take_until(self, deadline: float) -> ProcessEvent | None:
        """Wait for the next event; None if the deadline passes."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._take()
        except TimeoutError:
            return None

    async def ask(self, *, final: bool) -> ProcessEvent | None:
        """Ask the server; return an event if one comes first, else None and set `answer`."""
        self.answer = None
        return await self._event_or_answer(0.0, final=final)

    def _event_came(self) -> None:
        # Otherwise a stream that is written all the time would cancel every question about
        # the other one.
        pass

    def _answered(self, question: ReadInFlight, answer: ReadResponse) -> None:
        super()._answered(question, answer)
        self.answer = question, answer
