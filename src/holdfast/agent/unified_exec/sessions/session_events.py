"""
Events of the commands that a model runs, and who listens to them.

Every listener has a queue of its own with a bound. A listener that does not keep up loses
live output, never the news that a command began or ended.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

import msgspec

from holdfast.environments.collect.head_tail import Captured
from holdfast.events import Verdict, WaitingFor

__all__ = [
    "CommandBegan",
    "CommandEnded",
    "InputSent",
    "InputWanted",
    "Listener",
    "Listeners",
    "OutputDelta",
    "OutputMissing",
    "ToolEvent",
]

# Pieces of live output that wait for a listener; of more, the oldest are dropped.
QUEUED_DELTAS = 64

# Other events that wait. A listener that is so far behind is closed: it reads no more.
QUEUED_EVENTS = 4_096

QUEUED_BYTES = 32 << 20
"""
Bytes of the events that wait; of more, the oldest begins and ends lose their output.

A listener for which that is not enough, because of scripts and input, is closed.
"""


class CommandBegan(msgspec.Struct, frozen=True, kw_only=True):
    """A command runs, or has run and is over already. Sent once, before everything else."""

    call_id: str
    """The id of the `exec_command` that started it; all its events carry it."""
    session_id: int | None
    """The number by which the model knows it; None if it could not be started."""
    command: tuple[str, ...]
    """The argv."""
    script: str
    """The text the model gave."""
    cwd: str
    environment_id: str
    tty: bool
    early: Captured = Captured()
    """
    Output before this event, up to 1 MiB.

    None of it is live output. To show all output as it arrives, show this and then each
    `OutputDelta`. For a listener that is far behind it is shortened like that of a
    `CommandEnded`.
    """


class OutputDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of live output, both streams as one; the first 150 ms are not in it."""

    call_id: str
    data: bytes
    """At most 8,192 bytes, cut between characters."""

    @property
    def text(self) -> str:
        """The piece as text; bytes that are no UTF-8 become U+FFFD."""
        return self.data.decode(errors="replace")


class InputSent(msgspec.Struct, frozen=True, kw_only=True):
    """A `write_stdin` is over: it sent input, or its command still runs."""

    call_id: str
    session_id: int
    stdin: str


class InputWanted(msgspec.Struct, frozen=True, kw_only=True):
    """A command on a terminal waits for input."""

    call_id: str
    session_id: int
    kind: WaitingFor
    """`LINE`, `PASSWORD` or `KEY`."""


class OutputMissing(msgspec.Struct, frozen=True, kw_only=True):
    """Output of a command is lost: its server kept it no longer."""

    call_id: str
    session_id: int
    first_seq: int
    last_seq: int


class CommandEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A command is over. Sent exactly once for each `CommandBegan`."""

    call_id: str
    session_id: int | None
    exit_code: int
    """-1 if it was killed by the tools, could not be started, or its end is not known."""
    output: Captured
    """
    All it wrote from its first byte, up to 1 MiB: its beginning and its end.

    All of it counts as omitted for a listener with more than 32 MiB of newer output to read.
    """
    duration: float
    """Seconds since its start."""
    verdict: Verdict | None
    """The verdict, if known."""
    failure: str | None = None
    """The reason why it could not be started, or not be followed to its end."""
    declined: bool = False
    """True if somebody was asked about it and said no: it never ran."""
    pruned: bool = False
    """True if it was killed because too many others were started."""

    @property
    def ok(self) -> bool:
        """True if it ended with code 0."""
        return self.exit_code == 0

    @property
    def text(self) -> str:
        """The output as text, and the failure behind it if there is one."""
        return "\n".join(filter(None, (self.output.text, self.failure)))


ToolEvent = CommandBegan | OutputDelta | InputSent | InputWanted | OutputMissing | CommandEnded


class Listener:
    """
    The events from now on, for one reader. An async iterator; close it when done.

    One task may wait for the next event at a time. A wait that is cancelled loses nothing.
    """

    def __init__(self, close: Callable[["Listener"], None], *, deltas: bool) -> None:
        self.deltas = deltas
        """True if it wants live output."""
        self.dropped = 0
        """Pieces of live output that it lost because it did not keep up."""
        self.overflowed = False
        """True if it was closed because it was too far behind."""
        self._close = close
        # Each with its position in the order of all. The oldest live output is found at once,
        # however many other events are before it.
        self._deltas: deque[tuple[int, OutputDelta]] = deque()
        self._events: deque[tuple[int, ToolEvent]] = deque()
        self._count = 0
        self._queued_bytes = 0
        self._more = asyncio.Event()
        self._closed = False

    def put(self, event: ToolEvent) -> None:
        """Queue an event; the oldest live output makes room for it if need be."""
        if self._closed:
            return
        self._count += 1
        if type(event) is OutputDelta:
            if len(self._deltas) >= QUEUED_DELTAS:
                self._deltas.popleft()
                self.dropped += 1
            self._deltas.append((self._count, event))
            self._more.set()
            return
        if len(self._events) >= QUEUED_EVENTS:
            self.overflowed = True
            self.close()
            return
        self._events.append((self._count, event))
        self._queued_bytes += _size(event)
        if self._queued_bytes > QUEUED_BYTES:
            self._drop_output()
            if self._queued_bytes > QUEUED_BYTES:
                self.overflowed = True
                self.close()
        self._more.set()

    def _drop_output(self) -> None:
        """Take the output from the oldest events, until what is left is within the bound."""
        for at, (position, event) in enumerate(self._events):
            left = _without_output(event)
            if left is not event:
                self._events[at] = (position, left)
                self._queued_bytes -= _size(event) - _size(left)
                if self._queued_bytes <= QUEUED_BYTES:
                    return

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ToolEvent:
        while not (self._events or self._deltas):
            if self._closed:
                raise StopAsyncIteration
            self._more.clear()
            await self._more.wait()
        if self._deltas and (not self._events or self._deltas[0][0] < self._events[0][0]):
            return self._deltas.popleft()[1]
        event = self._events.popleft()[1]
        self._queued_bytes -= _size(event)
        return event

    def close(self) -> None:
        """Take no more events; those that are queued can still be read."""
        if not self._closed:
            self._closed = True
            self._more.set()
            self._close(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()


def _size(event: ToolEvent) -> int:
    """Return the bytes of an event that count; live output has a bound of its own."""
    if type(event) is CommandEnded:
        return len(event.output.head) + len(event.output.tail)
    if type(event) is CommandBegan:
        return len(event.early.head) + len(event.early.tail) + len(event.script)
    return len(event.stdin) if type(event) is InputSent else 0


def _without_output(event: ToolEvent) -> ToolEvent:
    """Return an event with its output counted as omitted; the same one if it has none."""
    if type(event) is CommandEnded and event.output.size > event.output.omitted:
        return msgspec.structs.replace(event, output=_omitted(event.output))
    if type(event) is CommandBegan and event.early.size > event.early.omitted:
        return msgspec.structs.replace(event, early=_omitted(event.early))
    return event


def _omitted(output: Captured) -> Captured:
    return Captured(omitted=output.size, marker=output.marker)


class Listeners:
    """All listeners of one set of tools."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._closed = False

    @property
    def any(self) -> bool:
        """True if somebody listens."""
        return bool(self._listeners)

    @property
    def want_deltas(self) -> bool:
        """True if somebody wants live output: it need not be cut for nobody."""
        return any(listener.deltas for listener in self._listeners)

    def add(self, *, deltas: bool) -> Listener:
        """Return a new listener; a closed one if there will be no more events."""
        listener = Listener(self._remove, deltas=deltas)
        self._listeners.append(listener)
        if self._closed:
            listener.close()
        return listener

    def _remove(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def tell(self, event: ToolEvent) -> None:
        """Give an event to all listeners that want it; never waits."""
        for listener in tuple(self._listeners):
            if listener.deltas or type(event) is not OutputDelta:
                listener.put(event)

    def close(self) -> None:
        """Close all of them, and those that are added later."""
        self._closed = True
        for listener in tuple(self._listeners):
            listener.close()
