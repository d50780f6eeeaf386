"""
The output of one call as it comes, for the extras that a call may ask for.

It selects lines (`head`, `tail`, `grep`) and watches for what ends the wait early (`wait_for`).
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Self

from holdfast.agent.unified_exec.arguments.tool_arguments import OutputArguments
from holdfast.agent.unified_exec.output.output_search import OutputSearch
from holdfast.agent.unified_exec.output.search_thread import SearchThread
from holdfast.agent.unified_exec.output.selection import Selected, Selection, Selector
from holdfast.agent.unified_exec.sessions.command_session import CommandSession, Consumer
from holdfast.agent.unified_exec.waiting.input_watch import QUIET
from holdfast.agent.unified_exec.waiting.wait_for import WaitFor, Watch
from holdfast.base.errors import InvalidParams
from holdfast.environments.environment import Environment
from holdfast.events import Gap, WaitingFor
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["CallOutput"]


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
        selection = Selection(head=arguments.head, tail=arguments.tail, grep=arguments.grep)
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
