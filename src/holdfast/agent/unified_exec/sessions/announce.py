"""Tells listeners about one command: that it began, what it writes, how it ended."""

from holdfast.agent.unified_exec.hooks import StartRequest
from holdfast.agent.unified_exec.sessions.command_session import (
    UNKNOWN_EXIT,
    CommandSession,
    Consumer,
)
from holdfast.agent.unified_exec.sessions.session_events import (
    CommandBegan,
    CommandEnded,
    InputSent,
    InputWanted,
    Listeners,
    OutputDelta,
    OutputMissing,
)
from holdfast.base.dialect import limits
from holdfast.environments.collect.head_tail import Captured
from holdfast.events import Gap, WaitingFor

__all__ = ["DELTA_BYTES", "MOST_DELTAS", "Announcer", "DeltaCutter", "announce_failed_start"]

DELTA_BYTES = limits.TOOL_DELTA_BYTES
"""Bytes of one piece, at most."""

MOST_DELTAS = limits.TOOL_DELTAS
"""Pieces of one command, at most; its transcript goes on."""


class DeltaCutter:
    """
    Takes the output of one command as it comes, and returns it in pieces for listeners.

    A piece has at most 8,192 bytes and does not end inside a character. Bytes that are not UTF-8
    pass through as they are.
    """

    def __init__(self) -> None:
        # The beginning of a character whose rest has not come.
        self._rest = b""
        self._left = MOST_DELTAS

    def feed(self, data: bytes) -> list[bytes]:
        """Return the pieces that are complete now."""
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
        """Return what is left at the end: a character that was never finished."""
        rest, self._rest = self._rest, b""
        return self._counted([rest] if rest else [])

    def _counted(self, pieces: list[bytes]) -> list[bytes]:
        del pieces[self._left :]
        self._left -= len(pieces)
        if not self._left:
            self._rest = b""
        return pieces


def _unfinished(last: bytes) -> int:
    """Return how many of the last three bytes begin a character that is not complete."""
    for length in range(1, len(last) + 1):
        byte = last[-length]
        if byte & 0xC0 == 0x80:
            # A continuation byte: the first byte of the character is further left.
            continue
        needed = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4
        return length if byte >= 0xC2 and byte <= 0xF4 and needed > length else 0
    return 0


class Announcer(Consumer):
    """
    The news of one session, each told in its order and once.

    It is a consumer of the session's output. What comes before `begin` is not sent
    live: the begin carries it, and the end everything.
    """

    def __init__(self, listeners: Listeners, session: CommandSession) -> None:
        self._listeners = listeners
        self._session = session
        # None before the begin was told, and after the end was.
        self._deltas: DeltaCutter | None = None
        self._began = False
        self._ended = False
        # True if the begin was told by an earlier attempt of the same call.
        self._continues = False
        self.pruned = False
        """True if it is killed to make room for another one."""
        self.output_lost = False
        """True if output was lost since somebody has set this to False."""

    def begin(self) -> None:
        """Tell that the command runs; live output is told from here on."""
        session = self._session
        self._began = True
        self._deltas = DeltaCutter()
        if self._continues or not self._listeners.any:
            # Without a listener the early output need not be put together.
            return
        self._listeners.tell(
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
        """Tell this command and its first attempt as one: one begin, and the end of this one."""
        self._continues = self._began = first.give_way()

    def give_way(self) -> bool:
        """Leave the end to the next attempt of the same call; return True if a begin was told."""
        self._ended = True
        return self._began

    def input_sent(self, stdin: str) -> None:
        """Tell that a `write_stdin` is over."""
        session = self._session
        self._listeners.tell(
            InputSent(call_id=session.call_id, session_id=session.session_id, stdin=stdin)
        )

    def end(self) -> None:
        """Tell the end of a command that is settled; does nothing before, or a second time."""
        session = self._session
        if self._ended or not self._began or not session.settled.is_set():
            return
        self._ended = True
        if self._deltas is not None and self._listeners.want_deltas:
            self._tell_deltas(self._deltas.finish())
        self._deltas = None
        if not self._listeners.any:
            # Without a listener the transcript need not be put together.
            return
        # Set, since the session is settled.
        assert session.ended_at is not None
        exit_code = session.exit_code
        self._listeners.tell(
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
        """Tell live output."""
        if self._deltas is not None and self._listeners.want_deltas:
            self._tell_deltas(self._deltas.feed(data))

    def gap(self, gap: Gap) -> None:
        """Tell that output is lost."""
        self.output_lost = True
        session = self._session
        self._listeners.tell(
            OutputMissing(
                call_id=session.call_id,
                session_id=session.session_id,
                first_seq=gap.first_seq,
                last_seq=gap.last_seq,
            )
        )

    def input_wanted(self, kind: WaitingFor) -> None:
        """Tell that the command waits for input."""
        session = self._session
        if self._began:
            self._listeners.tell(
                InputWanted(call_id=session.call_id, session_id=session.session_id, kind=kind)
            )

    def settled(self) -> None:
        """Tell the end of a command that nobody waits on; a call that does tells it itself."""
        if not self._session.lock.locked():
            self.end()

    def _tell_deltas(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self._listeners.tell(OutputDelta(call_id=self._session.call_id, data=piece))


def announce_failed_start(
    listeners: Listeners,
    request: StartRequest,
    failure: str,
    duration: float,
    *,
    declined: bool = False,
) -> None:
    """Tell of a command that could not be started as one that began and ended."""
    listeners.tell(
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
    listeners.tell(
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
