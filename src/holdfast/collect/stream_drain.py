"""
Reads the output of one process up to its end, where each stream has windows of its own.

Standard output may be over while standard error still drains. As in `holdfast.collect.drain`,
quiet means quiet where the process runs: the far side is asked before a stream is given up.
"""

import asyncio
from collections.abc import Iterable
from typing import Self

from holdfast.backends import ExecProcess
from holdfast.collect.drain import Drain, Question
from holdfast.events import ProcessEvent, StreamEnded
from holdfast.protocol.process import OutputChunk, OutputStream, ReadResponse

__all__ = ["StreamDrain"]


class StreamDrain:
    """
    The output of one process, as far as each of its streams is waited for.

    An async iterator over chunks. One task may wait at a time, and a wait that is cancelled
    loses nothing. What came before the exit is always handed out. After the exit, a stream
    is over:

    - at its end, or when `finish` was called for it;
    - else when `quiet` seconds have passed without a byte of it;
    - at the latest `limit` seconds after the exit. Chunks that exist by then are still
      handed out, `last_pass` of each stream at most.

    The iteration ends when every stream is over, and not before the exit.

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
        Begin to read; the process waits for this reader from here on.

        Args:
            process: Nobody else has asked for its events.
            streams: The streams that it has.
            quiet: Seconds without a byte; `None` for no such window.
            limit: Seconds after the exit.
            last_pass: Chunks of each stream that are handed out after the limit.
        """
        self._source = _Source(process)
        self._loop = asyncio.get_running_loop()
        self._quiet = quiet
        self._limit = limit
        # The streams that are not over, with the chunks of each that the last pass may take.
        self._open = dict.fromkeys(streams, last_pass)
        # The time of the last byte of each, or that of the exit, by the loop's clock.
        self._since: dict[OutputStream, float] = {}
        self._exit_time: float | None = None
        # True in the last pass: the limit is over.
        self._past_limit = False
        # The streams whose end has not come.
        self._unended = set(self._open)
        self.given_up: set[OutputStream] = set()
        """Streams that were over before their end and before `finish`."""

    @property
    def exited(self) -> bool:
        """True once the exit has come here, in its place among the output."""
        return self._source.verdict is not None

    @property
    def still_open(self) -> bool:
        """True until the end of all streams has come, which a Codex server tells at the close."""
        return bool(self._unended) and not self._source.closed

    @property
    def last_seq(self) -> int:
        """The number of the last event that was read."""
        return self._source.last_seq

    def note_exit(self) -> None:
        """
        Count the limit from now on: the process has exited.

        For a reader that may be far behind. Otherwise the limit counts from the moment at
        which the exit is met among the output.
        """
        if self._exit_time is None:
            self._exit_time = self._loop.time()

    def finish(self, stream: OutputStream) -> None:
        """Drop what else comes of a stream, and do not wait for its end."""
        self._open.pop(stream, None)

    def close(self) -> None:
        """Read no more; harmless a second time."""
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
        """Return the next chunk if it is here already and has at most `most` bytes."""
        source = self._source
        while not source.over and not (self.exited and not self._open):
            # At the limit it has to be asked first what else exists.
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
        """Return the next event, or `None` at the end."""
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
        """Return the time of the exit; begins the windows when it is met among the output."""
        self.note_exit()
        assert self._exit_time is not None  # by now
        if not self._since:
            self._since = dict.fromkeys(self._open, self._loop.time())
        return self._exit_time

    async def _within_windows(self, now: float, end: float) -> ProcessEvent | None:
        """Wait for an event; `None` if a window has ended, or the far side has answered."""
        due = end
        if self._quiet is not None:
            due = min(end, min(self._since[stream] for stream in self._open) + self._quiet)
        if now < due:
            return await self._source.take_until(due)
        event = await self._source.ask(final=False)
        if event is None and (answer := self._source.answer) is not None:
            self._judge(*answer)
        return event

    def _judge(self, question: Question, answer: ReadResponse) -> None:
        """
        Give up the streams that were quiet where the process runs.

        A byte is written before it arrives here. So a stream whose last byte came a whole
        window before the question, and of which the answer has no later byte, was quiet there
        for at least that long.
        """
        assert self._quiet is not None  # nothing is asked otherwise
        if answer.closed:
            return  # the rest, and the end, are on their way
        first = answer.chunks[0].seq if answer.chunks else answer.next_seq
        if first != question.after_seq + 1:
            return  # the server has forgotten chunks that are on their way
        news = {chunk.stream for chunk in answer.chunks}
        for stream in [name for name in self._open if name not in news]:
            if self._since[stream] + self._quiet <= question.asked:
                del self._open[stream]
                self.given_up.add(stream)


class _Source(Drain):
    """The events, and questions to the far side that outlive the arrival of other events."""

    _page = None

    def __init__(self, process: ExecProcess) -> None:
        super().__init__(process, quiet=None, limit=None, stream_ends=True)
        self.answer: tuple[Question, ReadResponse] | None = None
        """The last question and its answer."""

    @property
    def over(self) -> bool:
        """True after the close."""
        return self.closed or self._shut

    @property
    def seen_all(self) -> bool:
        """True after the exit, once all has come that is known to be on its way."""
        return self.verdict is not None and self.last_seq >= self._promised

    @property
    def asked_finally(self) -> bool:
        """True once the far side has answered for the last time."""
        return self._final

    async def take(self) -> ProcessEvent | None:
        """Wait for the next event."""
        return await self._take()

    def take_ready(self, most: int) -> OutputChunk | None:
        """Return the next event if it is here already, and output of at most `most` bytes."""
        chunk = None if self._events is None else self._events.take_output(most)
        if chunk is not None:
            self._note_event(chunk)
        return chunk

    async def take_until(self, deadline: float) -> ProcessEvent | None:
        """Wait for the next event; `None` if the deadline passes."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._take()
        except TimeoutError:
            return None

    async def ask(self, *, final: bool) -> ProcessEvent | None:
        """Ask what exists; return an event if one comes first, else `None` with the answer."""
        self.answer = None
        return await self._event_or_answer(0.0, final=final)

    def _event_came(self) -> None:
        # A stream that is written all the time must not keep another one from being asked for.
        pass

    def _answered(self, question: Question, answer: ReadResponse) -> None:
        super()._answered(question, answer)
        self.answer = question, answer
