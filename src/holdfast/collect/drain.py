"""
Reads the events of one process up to its end, and decides when that is.

After an exit, something that the process started may hold its output for ever. So the
output is read until it is closed, or until it was quiet for a moment, or until a hard limit.
Quiet means quiet where the process runs. Over a slow line nothing may have arrived here
while bytes are on their way; so the far side is asked before anything is given up.
"""

import asyncio
from typing import NamedTuple, Self

from holdfast.backends import EventStream, ExecProcess
from holdfast.errors import HoldfastError
from holdfast.events import Closed, Exited, ProcessEvent, Verdict
from holdfast.protocol.process import ReadResponse

__all__ = ["DRAIN_LIMIT", "QUIET", "Drain", "Question"]

QUIET = 0.25
"""Seconds without output, after an exit, that end the reading."""

DRAIN_LIMIT = 2.0
"""Seconds after an exit that end the reading, though something else still writes."""


class Drain:
    """
    The events of one process, up to the end of its output as far as that is waited for.

    An async iterator. One task may wait at a time, and a wait that is cancelled loses
    nothing. Until the exit it waits as long as it takes. After it, the iteration ends:

    - with `Closed`, the end of the output;
    - else when nothing was written for `quiet` seconds, by the clock of the process. A remote
      process is asked for that, with a `read` that waits so long. News in the answer are on
      their way, and are waited for however slow the line is;
    - at the latest `limit` seconds after the exit. Everything that was written until then
      is still handed out.

    A line that is down is waited for: it never ends while bytes may be on their way.

    Raises (while iterating):
        OutputLost: As `ExecProcess.events`.
        ConnectionLost: As `ExecProcess.events`.
    """

    _page: int | None = 1
    """Bytes that the far side is asked for."""

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
        Begin to read; the process waits for this reader from here on.

        Args:
            process: Whose events they are.
            after_seq: The last number the caller has; before the exit of the process.
            gaps: As for `ExecProcess.events`.
            quiet: Seconds without output; `None` for no such window.
            limit: Seconds after the exit; `None` for as long as it takes.
            stream_ends: As for `ExecProcess.events`.
        """
        self.quiet = quiet
        self.limit = limit
        self.verdict: Verdict | None = None
        """The end of the process, once its exit was handed out."""
        self.exit_time = 0.0
        """The time of that by the clock of the event loop."""
        self.closed = False
        """True after the end of the output. False at the end: somebody still holds it."""
        self.last_seq = after_seq
        """The number of the last event that was handed out."""
        self._process = process
        self._stream_ends = stream_ends
        self._events: EventStream | None = process.events(
            after_seq, gaps=gaps, stream_ends=stream_ends
        )
        self._loop = asyncio.get_running_loop()
        # Events up to this number exist where the process runs, and are waited for.
        self._promised = 0
        # True if that number was asked for after the limit: nothing is read beyond it.
        self._final = False
        # Since when somebody waits and nothing comes.
        self._silent_since: float | None = None
        # A question to the far side. It outlives a wait that is cancelled.
        self._question: Question | None = None
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
        Return the next event, or `None` at the end by these windows.

        After `None` it can be called again, with the same windows or with longer ones: what
        was written meanwhile is handed out then.
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
        """True if the next event is here already, or the end is."""
        return self.closed or (self._events is not None and self._events.ready)

    def pause(self) -> None:
        """
        Let the process go on without this reader, until the next call of `next`.

        That begins anew after the last number, with a `Gap` for what is kept nowhere by then.
        Nobody may be waiting for an event, unless it is `close` that calls this.
        """
        if self._events is not None:
            self._events.close()
            self._events = None
        self._drop_question()

    def close(self) -> None:
        """Read no more; harmless a second time."""
        self._shut = True
        self.pause()

    # -- one wait each

    async def _take(self) -> ProcessEvent | None:
        """Wait for the next event; `None` if the stream has ended without one."""
        if self._events is None:
            self._events = self._process.events(
                self.last_seq, gaps=True, stream_ends=self._stream_ends
            )
        try:
            event = await anext(self._events)
        except StopAsyncIteration:
            # It began behind the close, or was closed while somebody waited.
            self.closed = not self._shut
            return None
        except HoldfastError:
            self.pause()  # the next call fails as well, or goes on behind what was lost
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
        """Drop a question whose answer would be about what was before this event."""
        if self._question is not None and not self._question.final:
            self._drop_question()

    async def _event_or_silence(
        self, quiet: float | None, end: float | None
    ) -> ProcessEvent | None:
        """Wait for an event, but not beyond the quiet window or the end."""
        if self._question is not None and not self._question.final:
            return None  # somebody waited before, and has asked already
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
        Ask what there is after the last number, and return an event if one comes first.

        Otherwise the answer is noted as a promise. Events are handed out meanwhile: if they
        were not, a full queue could hold up the connection that brings the answer.
        """
        if self._question is None or self._question.final is not final:
            self._drop_question()
            # It belongs to this object, which cancels it when nobody needs the answer.
            task = self._loop.create_task(self._ask(wait, final))
            task.add_done_callback(_note_failure)
            self._question = Question(task, final, self.last_seq, self._loop.time())
        question = self._question
        task = question.task
        if not task.done():
            patience = asyncio.timeout(None)
            waiting = True

            def answered(_: object) -> None:
                if waiting:  # an event may have come in the same turn of the loop
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

    def _answered(self, question: "Question", answer: ReadResponse) -> None:
        """Note what exists where the process runs: it is waited for."""
        self._promised = answer.next_seq - 1
        if answer.closed:
            self._promised = max(self._promised, self.last_seq + 1)
        self._final = question.final

    async def _ask(self, wait: float, final: bool) -> ReadResponse:
        if not self._process.remote:
            # Quiet here is quiet there. But a busy event loop may see its timers before
            # what is in the pipes: let it look at those first.
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            wait = 0.0
        # One chunk is enough to know that there is more; after the limit all counts.
        return await self._process.read(self.last_seq, None if final else self._page, wait)

    def _drop_question(self) -> None:
        question, self._question = self._question, None
        if question is not None:
            question.task.cancel()


class Question(NamedTuple):
    """A `read` that is under way."""

    task: asyncio.Task[ReadResponse]
    final: bool
    """True if it asks for the last time, after the limit."""
    after_seq: int
    """The number after which it asks."""
    asked: float
    """The time of it by the clock of the event loop."""


def _note_failure(task: asyncio.Task[ReadResponse]) -> None:
    """See a failure that nobody may ask for any more: the events fail for the same reason."""
    if not task.cancelled():
        task.exception()


_TURNS = 2
"""Turns of the event loop in which it has certainly looked at all descriptors."""
