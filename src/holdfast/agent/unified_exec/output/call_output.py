"""
The live output of one call, for the extras that a call may request.

It selects lines (`head`, `tail`, `grep`) and watches for conditions that end the wait (`wait_for`).
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

# Seconds between two searches while less than a piece is waiting.
_INTERVAL = 0.01

# Bytes per search in the thread; the result is checked after each piece.
_PIECE = 64 << 10

# Waiting bytes above which the command's output is not read.
_ROOM = 256 << 10


class OutputSearch:
    """
    Passes output to a selector and a stream search, in order.

    Searches that are certain to be short run in the event loop, all others in a thread. Output that
    arrives within 10 ms is searched together: otherwise each byte of a stream of single bytes would
    cost a search as far back as a match may begin.
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
            thread: Runs long searches.
            selector: Receives all output; None for no selection.
            stream: Receives all output until it has a match; None for no search.
            searched: Called in the event loop after each search.
        """
        self._thread = thread
        self._selector = selector
        self._stream = stream
        self._searched = searched
        self._loop = asyncio.get_running_loop()
        # Output, and counts of bytes left out before the next output.
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
        """Add output; it is searched now, within 10 ms, or as soon as the thread is free."""
        if self._closed or not data:
            return
        self._steps.append(data)
        self._size += len(data)
        if self._size > _ROOM:
            self._has_room.clear()
        self._schedule()

    def leave_out(self, size: int) -> None:
        """Note that `size` bytes before the next output are not kept for this call."""
        self._steps.append(size)

    async def room(self) -> None:
        """Wait until there is room for more output."""
        await self._has_room.wait()

    async def finish(self) -> Selected | None:
        """Search the rest, and return the selected lines; None without a selection."""
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
        """Stop searching; idempotent."""
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
        """Search the next waiting piece, in the event loop or the thread."""
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
    """A consumer of a session's output during one call."""

    def __init__(
        self,
        selector: Selector | None,
        watch: Watch | None,
        wake: asyncio.Event,
        thread: SearchThread,
    ) -> None:
        """Use `open` instead."""
        self.wake = wake
        """Set when the wait should end early."""
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
        Check the request of a call before a command is started.

        Args:
            arguments: The arguments of the call, which are `selective`.
            environment: Where the command runs.
            sandbox: The sandbox of the command.
            tty: True if the command has a terminal, so it may wait for input.
            thread: Searches the output.

        Raises:
            InvalidParams: An argument cannot be used; the text names it.
        """
        selection = Selection.of(arguments)
        wake = asyncio.Event()
        selector = None
        if selection:
            # Compiling a pattern may take long.
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
        Consume the output of a session from now until the end of `following`.

        For a command that was just started: before its call begins to wait, it may write more than
        is kept for the call.
        """
        self._attached = True
        session.consumers.append(self)
        session.search = self._search

    @contextmanager
    def following(self, session: CommandSession) -> Iterator[None]:
        """Consume the output of a session in the block, from the first unreported byte."""
        if not self._attached:
            waiting = session.output.unreported
            self._feed(waiting.head)
            if waiting.omitted and self._search is not None:
                self._search.leave_out(waiting.omitted)
            self._feed(waiting.tail)
            self.attach(session)
        if session.settled.is_set():
            self.settled()
        # Cancelled at the end of the block.
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
        """Search the output up to the end of `following`."""
        if self._search is not None:
            self._selected = await self._search.finish()

    @property
    def ended_by(self) -> str | None:
        """The condition that ended the wait, with its details."""
        if self._watch is None or self._watch.met is None:
            return None
        return f"{self._watch.met} ({self._watch.detail})"

    @property
    def pattern_given_up(self) -> bool:
        """True if the search for the pattern of `wait_for` was too slow and given up."""
        return self._watch is not None and self._watch.pattern_given_up

    def selected(self) -> Selected | None:
        """Return the requested lines, after `finish`; None if the call asked for all."""
        return self._selected

    # -- Consumer

    def output(self, seq: int, data: bytes) -> None:
        """Receive bytes that the command wrote."""
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
    Check repeatedly, with growing pauses, whether a quiet command waits for input.

    A quiet command is otherwise checked once, which would miss one that first works without
    output and later reads its terminal without a prompt. A call of 30 s checks six times.
    """
    pause = 2 * QUIET
    while True:
        await asyncio.sleep(pause)
        session.look_for_input()
        pause *= 2
