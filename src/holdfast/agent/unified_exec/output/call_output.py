"""
The output of one call as it comes, for the extras that a call may ask for.

It selects lines (`head`, `tail`, `grep`) and watches for what ends the wait early (`wait_for`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Self

from holdfast.agent.unified_exec.arguments.tool_arguments import OutputArguments
from holdfast.agent.unified_exec.output.search_thread import SearchThread
from holdfast.agent.unified_exec.output.selection import Selected, Selection, Selector
from holdfast.agent.unified_exec.sessions.command_session import CommandSession, Consumer
from holdfast.agent.unified_exec.waiting.input_watch import QUIET
from holdfast.agent.unified_exec.waiting.stream_search import StreamSearch
from holdfast.agent.unified_exec.waiting.wait_for import WaitFor, Watch
from holdfast.base.errors import InvalidParams
from holdfast.environments.environment import Environment
from holdfast.events import Gap, WaitingFor
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["CallOutput", "OutputSearch"]

# Seconds between two searches, while less than a piece waits.
_INTERVAL = 0.01

# Bytes that are handed to the thread at once; between two pieces it is seen how it goes.
_PIECE = 64 << 10

# Bytes that wait, from which on the command is not read.
_ROOM = 256 << 10


class OutputSearch:
    """
    Hands output to a selector and to the search of a stream, in order.

    A search that is certain to be short is done in the event loop, all others in a thread. Output
    that comes faster than every 10 ms is searched together: each byte of a stream of single bytes
    would otherwise cost a search of all that a match may reach back to.
    """

    def __init__(
        self,
        thread: SearchThread,
        selector: Selector | None,
        stream: StreamSearch | None,
        searched: Callable[[], None],
    ) -> None:
        """
        Args:
            thread: Where long searches are done.
            selector: Gets all output, if there is one.
            stream: Gets all output until it has a match, if there is one.
            searched: Called in the event loop after each search.
        """
        self._thread = thread
        self._selector = selector
        self._stream = stream
        self._searched = searched
        self._loop = asyncio.get_running_loop()
        # Output, and numbers of bytes that are left out before the next one.
        self._steps: deque[bytes | int] = deque()
        self._size = 0
        self._running: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_search = 0.0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._closed = False

    def feed(self, data: bytes) -> None:
        """Take output; it is searched now or within 10 ms, or as soon as the thread is free."""
        if self._closed or not data:
            return
        self._steps.append(data)
        self._size += len(data)
        if self._size > _ROOM:
            self._has_room.clear()
        self._schedule()

    def leave_out(self, size: int) -> None:
        """Note that so many bytes before the next output are not kept for this call."""
        self._steps.append(size)

    async def room(self) -> None:
        """Wait until more output may come."""
        await self._has_room.wait()

    async def finish(self) -> Selected | None:
        """Search what is left, and return the selected lines, if lines are selected."""
        while self._steps or self._running is not None:
            self._search_next()
            if self._running is not None:
                await asyncio.wait([self._running])
        self.close()
        if self._failure is not None:
            raise self._failure
        if self._selector is None:
            return None
        if self._selector.is_quick(0, ends=True):
            return self._selector.selected()
        return await self._thread.run(self._selector.selected)

    def close(self) -> None:
        """Search no more; harmless a second time."""
        self._closed = True
        self._steps.clear()
        self._size = 0
        self._has_room.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        if self._running is not None or self._closed or not self._steps:
            return
        if self._size >= _PIECE or self._loop.time() >= self._next_search:
            self._search_next()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._next_search, self._search_next)

    def _search_next(self) -> None:
        """Search the next piece of what waits, here or in the thread."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running is not None or not self._steps:
            return
        steps: list[bytes | int] = []
        size = 0
        while self._steps and size < _PIECE:
            step = self._steps.popleft()
            steps.append(step)
            size += len(step) if isinstance(step, bytes) else 0
        self._size -= size
        if self._is_quick(size):
            self._search(steps)
            self._after()
        else:
            self._running = self._thread.run(lambda: self._search(steps))
            self._running.add_done_callback(self._done)

    def _is_quick(self, size: int) -> bool:
        return (self._selector is None or self._selector.is_quick(size)) and (
            self._stream is None or self._stream.is_quick(size)
        )

    def _search(self, steps: list[bytes | int]) -> None:
        for step in steps:
            if isinstance(step, int):
                if self._selector is not None:
                    self._selector.leave_out(step)
                continue
            if self._selector is not None:
                self._selector.feed(step)
            if self._stream is not None:
                self._stream.feed(step)

    def _done(self, running: asyncio.Future[None]) -> None:
        self._running = None
        if running.cancelled():
            # The tools were closed.
            self.close()
            return
        if running.exception() is not None:
            self._failure = running.exception()
            self.close()
            return
        self._after()

    def _after(self) -> None:
        self._next_search = self._loop.time() + _INTERVAL
        if self._size <= _ROOM:
            self._has_room.set()
        self._searched()
        self._schedule()


class CallOutput(Consumer):
    """A consumer of the output of one session, for the time of one call."""

    def __init__(
        self,
        selector: Selector | None,
        watch: Watch | None,
        wake: asyncio.Event,
        thread: SearchThread,
    ) -> None:
        """Make one with `open`."""
        self.wake = wake
        """Set when the wait is to end early."""
        self._selector = selector
        self._watch = watch
        stream = None if watch is None else watch.stream
        self._search: OutputSearch | None = None
        if selector is not None or stream is not None:
            self._search = OutputSearch(thread, selector, stream, self._searched)
        self._selected: Selected | None = None
        self._wants_input = False
        self._attached = False

    @classmethod
    async def open(
        cls,
        arguments: OutputArguments,
        environment: Environment,
        sandbox: SandboxContext | None,
        *,
        tty: bool,
        thread: SearchThread,
    ) -> Self:
        """
        Check what a call asks for, before anything is started.

        Args:
            arguments: What the model asked for; they are `selective`.
            environment: Where the command runs.
            sandbox: What it may touch.
            tty: True if it has a terminal, and so can wait for input.
            thread: Where its output is searched.

        Raises:
            InvalidParams: It cannot be done; the text names the argument.
        """
        selection = Selection.of(arguments)
        wake = asyncio.Event()
        selector = None
        if selection:
            # A pattern may take long to compile.
            make = partial(Selector, selection)
            selector = make() if selection.grep is None else await thread.run(make)
        watch = None
        asked = arguments.wait_for
        if asked is not None:
            if asked.input and not tty:
                raise InvalidParams("`wait_for.input` needs a command with `tty`")
            wait_for = WaitFor(
                pattern=asked.pattern,
                quiet=None if asked.quiet_ms is None else asked.quiet_ms / 1000,
                port=asked.port,
                input=asked.input,
            )
            watch = await Watch.open(
                wait_for,
                wake.set,
                thread=thread,
                files=None if asked.port is None else environment.filesystem,
                sandbox=sandbox,
            )
        found = cls(selector, watch, wake, thread)
        found._wants_input = asked is not None and asked.input
        return found

    def attach(self, session: CommandSession) -> None:
        """
        Take the output of a session from now on, until the end of `following`.

        For a command that was just started: in the moments before the wait of its call it may
        write more than is kept for the call.
        """
        self._attached = True
        session.consumers.append(self)
        session.search = self._search

    @contextmanager
    def following(self, session: CommandSession) -> Iterator[None]:
        """Take the output of a session in the block, from the first byte not yet reported."""
        if not self._attached:
            waiting = session.output.unreported
            self._feed(waiting.head)
            if waiting.omitted and self._search is not None:
                self._search.leave_out(waiting.omitted)
            self._feed(waiting.tail)
            self.attach(session)
        if session.settled.is_set():
            self.settled()
        # Of this block: they are cancelled at its end.
        watching: list[asyncio.Task[None]] = []
        if self._watch is not None:
            loop = asyncio.get_running_loop()
            watching.append(loop.create_task(self._watch.run()))
            session.look_for_input()
            if self._wants_input:
                watching.append(loop.create_task(_look_again(session)))
        try:
            yield
        except BaseException:
            if self._search is not None:
                self._search.close()
            raise
        finally:
            session.consumers.remove(self)
            session.search = None
            for task in watching:
                task.cancel()

    async def finish(self) -> None:
        """Search what has come up to the end of `following`."""
        if self._search is not None:
            self._selected = await self._search.finish()

    @property
    def ended_by(self) -> str | None:
        """The condition that ended the wait, with what is known about it."""
        if self._watch is None or self._watch.met is None:
            return None
        return f"{self._watch.met} ({self._watch.detail})"

    @property
    def pattern_given_up(self) -> bool:
        """True if the pattern of `wait_for` was too slow to be looked for to the end."""
        return self._watch is not None and self._watch.pattern_given_up

    def selected(self) -> Selected | None:
        """Return the lines that the call asked for, after `finish`; None if it asked for all."""
        return self._selected

    # -- Consumer

    def output(self, seq: int, data: bytes) -> None:
        """Take bytes that the command wrote."""
        self._feed(data)

    def gap(self, gap: Gap) -> None:
        """Note that output is missing."""
        if self._selector is not None:
            self._selector.gap(gap.first_seq, gap.last_seq)

    def input_wanted(self, kind: WaitingFor) -> None:
        """Note that the command waits for input on its terminal."""
        if self._watch is not None:
            self._watch.input_found(kind)

    def settled(self) -> None:
        """End the wait."""
        self.wake.set()

    def _feed(self, data: bytes) -> None:
        if not data:
            return
        if self._watch is not None:
            self._watch.output_came()
        if self._search is not None:
            self._search.feed(data)

    def _searched(self) -> None:
        if self._watch is not None:
            self._watch.searched()


async def _look_again(session: CommandSession) -> None:
    """
    Look again and again whether a quiet command waits for input, ever more seldom.

    A quiet command is looked at once. One that works without output at first, and reads its
    terminal later without a prompt, would never be found. A call of 30 s makes six looks.
    """
    pause = 2 * QUIET
    while True:
        await asyncio.sleep(pause)
        session.look_for_input()
        pause *= 2
