"""
Events of a model's commands, and their listeners.

Every listener has its own bounded queue. A slow listener loses live output, but never the begin or
end of a command.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

import msgspec

from holdfast.agent.unified_exec.hooks import StartRequest
from holdfast.agent.unified_exec.sessions.command_session import (
    UNKNOWN_EXIT,
    CommandSession,
    Consumer,
)
from holdfast.base.dialect import limits
from holdfast.environments.collect.head_tail import Captured
from holdfast.events import Gap, Verdict, WaitingFor

__all__ = [
    "DELTA_BYTES",
    "MOST_DELTAS",
    "Announcer",
    "CommandBegan",
    "CommandEnded",
    "DeltaCutter",
    "InputSent",
    "InputWanted",
    "Listener",
    "Listeners",
    "OutputDelta",
    "OutputMissing",
    "ToolEvent",
    "announce_failed_start",
]

# Most queued pieces of live output; beyond that, the oldest are dropped.
QUEUED_DELTAS = 64

# Most other queued events. A listener this far behind is closed: it has stopped reading.
QUEUED_EVENTS = 4_096

QUEUED_BYTES = 32 << 20
"""
Most bytes of queued events; beyond that, the oldest begins and ends lose their output.

If that is not enough, because of scripts and input, the listener is closed.
"""


class CommandBegan(msgspec.Struct, frozen=True, kw_only=True):
    """A command was started; it may have ended already. Sent once, before its other events."""

    call_id: str
    """The id of the `exec_command` call that started it; the same in all its events."""
    session_id: int | None
    """The session number for the model; None if it could not be started."""
    command: tuple[str, ...]
    """The argv."""
    script: str
    """The script as the model wrote it."""
    cwd: str
    environment_id: str
    tty: bool
    early: Captured = Captured()
    """
    Output before this event, up to 1 MiB.

    It is not repeated as live output. To show all output, show this and then each `OutputDelta`.
    For a listener that is far behind it is shortened, as in `CommandEnded`.
    """


class OutputDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of live output after the first 150 ms, both streams merged."""

    call_id: str
    data: bytes
    """At most 8,192 bytes, cut between characters."""

    @property
    def text(self) -> str:
        """The piece as text; invalid UTF-8 becomes U+FFFD."""
        return self.data.decode(errors="replace")


class InputSent(msgspec.Struct, frozen=True, kw_only=True):
    """A `write_stdin` call has ended that sent input, or whose command still runs."""

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
    """Output of a command was lost: the server no longer had it."""

    call_id: str
    session_id: int
    first_seq: int
    last_seq: int


class CommandEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A command has ended. Sent exactly once for each `CommandBegan`."""

    call_id: str
    session_id: int | None
    exit_code: int
    """-1 if the tools killed it, it could not be started, or its end is unknown."""
    output: Captured
    """
    Its whole output, up to 1 MiB: the head and the tail.

    For a listener with more than 32 MiB of newer output to read, all of it counts as omitted.
    """
    duration: float
    """Seconds since its start."""
    verdict: Verdict | None
    """The verdict, if known."""
    failure: str | None = None
    """The reason why it could not be started, or followed to its end."""
    declined: bool = False
    """True if the approver declined it: it never ran."""
    pruned: bool = False
    """True if it was killed because too many other commands were started."""

    @property
    def ok(self) -> bool:
        """True if the exit code is 0."""
        return self.exit_code == 0

    @property
    def text(self) -> str:
        """The output as text, followed by the failure, if any."""
        return "\n".join(filter(None, (self.output.text, self.failure)))


ToolEvent = CommandBegan | OutputDelta | InputSent | InputWanted | OutputMissing | CommandEnded


class Listener:
    """
    Events from now on, for one reader. An async iterator; close it when done.

    Only one task may wait for the next event at a time. A cancelled wait loses nothing.
    """

    def __init__(self, close: Callable[["Listener"], None], *, deltas: bool) -> None:
        self.deltas = deltas
        """True if it wants live output."""
        self.dropped = 0
        """Number of pieces of live output lost because it was too slow."""
        self.overflowed = False
        """True if it was closed because it was too far behind."""
        self._close = close
        # Each with its position in the overall order, so that the oldest live output is found
        # immediately, even behind many other events.
        self._deltas: deque[tuple[int, OutputDelta]] = deque()
        self._events: deque[tuple[int, ToolEvent]] = deque()
        self._count = 0
        self._queued_bytes = 0
        self._more = asyncio.Event()
        self._closed = False

    def put(self, event: ToolEvent) -> None:
        """Queue an event; if necessary, drop the oldest live output."""
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
        """Drop the output of the oldest events until the rest is within the bound."""
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
        """Stop receiving events; queued ones can still be read."""
        if not self._closed:
            self._closed = True
            self._more.set()
            self._close(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()


def _size(event: ToolEvent) -> int:
    """Return the size of an event; 0 for live output, which has a separate bound."""
    if type(event) is CommandEnded:
        return len(event.output.head) + len(event.output.tail)
    if type(event) is CommandBegan:
        return len(event.early.head) + len(event.early.tail) + len(event.script)
    return len(event.stdin) if type(event) is InputSent else 0


def _without_output(event: ToolEvent) -> ToolEvent:
    """Return the event with its output counted as omitted; the same event if it has none."""
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
        """True if there is a listener."""
        return bool(self._listeners)

    @property
    def want_deltas(self) -> bool:
        """True if a listener wants live output; otherwise it need not be split."""
        return any(listener.deltas for listener in self._listeners)

    def add(self, *, deltas: bool) -> Listener:
        """Return a new listener; it is closed if there will be no more events."""
        listener = Listener(self._remove, deltas=deltas)
        self._listeners.append(listener)
        if self._closed:
            listener.close()
        return listener

    def _remove(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def send(self, event: ToolEvent) -> None:
        """Send an event to all listeners that want it, without waiting."""
        for listener in tuple(self._listeners):
            if listener.deltas or type(event) is not OutputDelta:
                listener.put(event)

    def close(self) -> None:
        """Close all listeners, including those added later."""
        self._closed = True
        for listener in tuple(self._listeners):
            listener.close()


# -- the events of one command


DELTA_BYTES = limits.TOOL_DELTA_BYTES
"""Most bytes in one piece."""

MOST_DELTAS = limits.TOOL_DELTAS
"""Most pieces per command; the transcript continues."""


class DeltaCutter:
    """
    Splits the live output of one command into pieces for listeners.

    A piece has at most 8,192 bytes and does not end inside a character. Invalid UTF-8 is passed on
    unchanged.
    """

    def __init__(self) -> None:
        # The beginning of an incomplete character.
        self._rest = b""
        self._left = MOST_DELTAS

    def feed(self, data: bytes) -> list[bytes]:
        """Add output and return the complete pieces."""
        if not self._left:
            return []
        if self._rest:
            data = self._rest + data
        pieces: list[bytes] = []
        at = 0
        while len(data) - at >= DELTA_BYTES and len(pieces) < self._left:
            end = at + DELTA_BYTES - _unfinished(data[at + DELTA_BYTES - 3 : at + DELTA_BYTES])
            pieces.append(data[at:end])
            at = end
        end = len(data) - _unfinished(data[max(at, len(data) - 3) :])
        if end > at:
            pieces.append(data[at:end])
        self._rest = data[end:]
        return self._counted(pieces)

    def finish(self) -> list[bytes]:
        """Return the rest at the end: an incomplete character."""
        rest, self._rest = self._rest, b""
        return self._counted([rest] if rest else [])

    def _counted(self, pieces: list[bytes]) -> list[bytes]:
        del pieces[self._left :]
        self._left -= len(pieces)
        if not self._left:
            self._rest = b""
        return pieces


def _unfinished(last: bytes) -> int:
    """Return how many of the last three bytes belong to an incomplete character."""
    for length in range(1, len(last) + 1):
        byte = last[-length]
        if byte & 0xC0 == 0x80:
            # A continuation byte: the first byte of the character precedes it.
            continue
        needed = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4
        return length if byte >= 0xC2 and byte <= 0xF4 and needed > length else 0
    return 0


class Announcer(Consumer):
    """
    Sends the events of one session, in order and once each.

    It is a consumer of the session's output. Output before `begin` is not sent live: the begin
    event contains it, and the end event contains everything.
    """

    def __init__(self, listeners: Listeners, session: CommandSession) -> None:
        self._listeners = listeners
        self._session = session
        # None before the begin event and after the end event.
        self._deltas: DeltaCutter | None = None
        self._began = False
        self._ended = False
        # True if an earlier attempt of the same call has sent the begin event.
        self._continues = False
        self.pruned = False
        """True if the command was killed to make room for another."""
        self.output_lost = False
        """True if output was lost since this was last set to False."""

    def begin(self) -> None:
        """Announce the command; live output is sent from now on."""
        session = self._session
        self._began = True
        self._deltas = DeltaCutter()
        if self._continues or not self._listeners.any:
            # Without a listener the early output need not be assembled.
            return
        self._listeners.send(
            CommandBegan(
                call_id=session.call_id,
                session_id=session.session_id,
                command=session.argv,
                script=session.script,
                cwd=session.cwd,
                environment_id=session.environment_id,
                tty=session.tty,
                early=session.output.transcript,
            )
        )

    def continue_from(self, first: "Announcer") -> None:
        """Announce this command and its first attempt as one: with one begin and one end."""
        self._continues = self._began = first.give_way()

    def give_way(self) -> bool:
        """Leave the end to the next attempt of the same call; return True if the begin was sent."""
        self._ended = True
        return self._began

    def input_sent(self, stdin: str) -> None:
        """Announce the end of a `write_stdin` call."""
        session = self._session
        self._listeners.send(
            InputSent(call_id=session.call_id, session_id=session.session_id, stdin=stdin)
        )

    def end(self) -> None:
        """Announce the end of a settled command; idempotent, and does nothing before `begin`."""
        session = self._session
        if self._ended or not self._began or not session.settled.is_set():
            return
        self._ended = True
        deltas, self._deltas = self._deltas, None
        if not self._listeners.any:
            # Without a listener the transcript need not be assembled.
            return
        if deltas is not None and self._listeners.want_deltas:
            self._send_deltas(deltas.finish())
        # The session is settled.
        assert session.ended_at is not None
        exit_code = session.exit_code
        self._listeners.send(
            CommandEnded(
                call_id=session.call_id,
                session_id=session.session_id,
                exit_code=UNKNOWN_EXIT if exit_code is None else exit_code,
                output=session.output.transcript,
                duration=session.ended_at - session.started,
                verdict=session.verdict,
                failure=session.failure,
                pruned=self.pruned,
            )
        )

    # -- called by the reader of the session

    def output(self, seq: int, data: bytes) -> None:
        """Send live output."""
        if self._deltas is not None and self._listeners.want_deltas:
            self._send_deltas(self._deltas.feed(data))

    def gap(self, gap: Gap) -> None:
        """Announce that output was lost."""
        self.output_lost = True
        session = self._session
        self._listeners.send(
            OutputMissing(
                call_id=session.call_id,
                session_id=session.session_id,
                first_seq=gap.first_seq,
                last_seq=gap.last_seq,
            )
        )

    def input_wanted(self, kind: WaitingFor) -> None:
        """Announce that the command waits for input."""
        session = self._session
        if self._began:
            self._listeners.send(
                InputWanted(call_id=session.call_id, session_id=session.session_id, kind=kind)
            )

    def settled(self) -> None:
        """Announce the end of a command without a waiting call, which would do so itself."""
        if not self._session.lock.locked():
            self.end()

    def _send_deltas(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self._listeners.send(OutputDelta(call_id=self._session.call_id, data=piece))


def announce_failed_start(
    listeners: Listeners,
    request: StartRequest,
    failure: str,
    duration: float,
    *,
    declined: bool = False,
) -> None:
    """Announce a command that could not be started, as one that began and ended."""
    listeners.send(
        CommandBegan(
            call_id=request.call_id,
            session_id=None,
            command=request.argv,
            script=request.script,
            cwd=request.cwd.shown,
            environment_id=request.environment_id,
            tty=request.tty,
        )
    )
    listeners.send(
        CommandEnded(
            call_id=request.call_id,
            session_id=None,
            exit_code=UNKNOWN_EXIT,
            output=Captured(),
            duration=duration,
            verdict=None,
            failure=failure,
            declined=declined,
        )
    )
