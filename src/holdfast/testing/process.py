"""A fake `ExecProcess` that does what a test says."""

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal, NamedTuple

from holdfast.errors import (
    HoldfastError,
    InvalidParams,
    InvalidRequest,
    Refused,
    RemoteError,
    Unsupported,
)
from holdfast.events import (
    Closed,
    Exited,
    Gap,
    ProcessEvent,
    Reason,
    StreamEnded,
    Verdict,
    WaitingFor,
)
from holdfast.process.arguments import check_input, check_read, check_streams, signal_number
from holdfast.process.event_stream import HIGH_WATER, EventReaders, LogEventStream
from holdfast.process.io.log import OutputLog
from holdfast.protocol import codes
from holdfast.protocol.handshake import Capabilities
from holdfast.protocol.paths import PathUri
from holdfast.protocol.process import (
    Enforcement,
    OutputChunk,
    OutputStream,
    ReadResponse,
    StartParams,
    StreamsAtEnd,
    TerminalSize,
    WriteStatus,
)
from holdfast.server.info import CAPABILITIES
from holdfast.testing.line import FakeLine

__all__ = [
    "CODEX",
    "HOLDFAST",
    "Asked",
    "Call",
    "FakeChild",
    "FakeProcess",
    "Termination",
    "as_refused",
]

HOLDFAST = CAPABILITIES
"""The extensions of a Holdfast server."""

CODEX = Capabilities()
"""A server without any of the extensions."""

Call = Literal["read", "write", "close_stdin", "resize", "waiting_for", "signal", "terminate"]
"""A method of a process that can be recorded and refused."""

_PIECE = 64 << 10
_LONGEST_WAIT = 1e6

# Pids beyond the kernel's default limit, so that a mistake signals no real process.
_pids = itertools.count(1_000_001)

_CODES: list[tuple[type[Refused], int]] = [
    (InvalidParams, codes.INVALID_PARAMS),
    (InvalidRequest, codes.INVALID_REQUEST),
    (Refused, codes.INTERNAL_ERROR),
]


class Asked(NamedTuple):
    """One recorded call, with its arguments in order."""

    call: Call
    arguments: tuple[object, ...] = ()


class Termination(NamedTuple):
    """One call of `terminate`."""

    tree: bool = False
    left: bool = False
    streams: StreamsAtEnd = "close"


def as_refused(error: Refused, *, remote: bool) -> Refused:
    """Return the error with the server's own as its cause, if it comes from a server."""
    if remote and error.__cause__ is None:
        code = next(code for kind, code in _CODES if isinstance(error, kind))
        error.__cause__ = RemoteError(code, str(error))
    return error


class FakeChild:
    """Something that a fake process started, and that may outlive it."""

    def __init__(self, ended: Callable[[], None], *, own_session: bool, holds_output: bool) -> None:
        self.pid = next(_pids)
        self.alive = True
        self.own_session = own_session
        """True if it left the group of the process; only `terminate(tree=True)` reaches it."""
        self.holds_output = holds_output
        """True if the output does not end before it does."""
        self._ended = ended
        self._task: asyncio.Task[object] | None = None

    def exit(self) -> None:
        """End it; harmless a second time."""
        if self.alive:
            self.alive = False
            if self._task is not None and self._task is not asyncio.current_task():
                self._task.cancel()
            self._ended()

    def play(self, program: Callable[[], Awaitable[object]]) -> None:
        """Do something in its name; the child ends with it, and it with the child."""
        self._task = asyncio.get_running_loop().create_task(self._play(program))

    async def _play(self, program: Callable[[], Awaitable[object]]) -> None:
        await program()
        self.exit()


class FakeProcess:
    """
    A process that does what a test says, in that order.

    Everything asked of it is recorded; wait for it with `until`. A backend makes it (see
    `FakeBackend`), or a test does. Needs a running event loop.

    Unless delayed or without a connection, an event arrives here at once. A slow reader makes
    it `held`; `output` continues all the same, `flow` waits.
    """

    def __init__(
        self,
        params: StartParams | None = None,
        *,
        remote: bool = False,
        capabilities: Capabilities = HOLDFAST,
        line: FakeLine | None = None,
    ) -> None:
        """
        Args:
            params: As it was started; by default `fake`, with a pipe for its input.
            remote: True for a process behind a connection.
            capabilities: What it can do, `HOLDFAST` or `CODEX`, or anything between.
            line: The connection it shares with others.
        """
        self.params = _default_params() if params is None else params
        self.process_id = self.params.process_id
        self.remote = remote
        self.capabilities = capabilities
        self.line = FakeLine(remote=remote) if line is None else line
        self.pid: int | None = next(_pids) if capabilities.process_ack else None
        self.enforcement: Enforcement | None = None
        """May be set by a test."""
        self.sandbox_type = "none" if self.params.sandbox is None else "linuxSeccomp"
        """May be set by a test."""
        self.dies_when_killed = True
        """False: `terminate` is recorded and answered, and the test says what follows."""
        self.input_limit: int | None = None
        """Bytes of unread input at which `write` waits; `None` means never."""
        self.waits_for = WaitingFor.NONE
        """The answer of `waiting_for` while it runs on a terminal, where its server can tell."""
        self.write_status: WriteStatus | None = None
        """The answer of every `write`, instead of taking the bytes."""

        self.asked: list[Asked] = []
        """Every call of the seam in order, also those that are refused or wait."""
        self.stdin_closed = False
        """True once it could read the end of its input."""
        self.signals: list[str] = []
        """Signals it got, by the names that were asked for."""
        self.sizes: list[tuple[int, int]] = []
        """Rows and columns it was resized to."""
        self.terminations: list[Termination] = []
        """Calls of `terminate`, also those that found nothing to kill."""
        self.holds: list[bool] = []
        """True whenever a reader made it wait, False whenever the last one caught up."""
        self.pipe_bytes = 0
        """Output of `flow` that nobody has taken yet, because it is held."""
        self.children: list[FakeChild] = []
        """Everything it started, see `child`."""
        self._begin()

    def _begin(self) -> None:
        """Set the state of a process that has just started."""
        # The log where it runs, and its copy on this side; the difference is under way. For a
        # local process both are always equal.
        self._there = OutputLog()
        self._here = OutputLog()
        self._under_way: deque[ProcessEvent] = deque()
        self._under_way_bytes = 0
        # Output of `flow` while it is held, like a pipe that nobody reads.
        self._pipe: list[tuple[bytes, OutputStream | None]] = []
        # Events that may still arrive while it is delayed; None if it is not delayed.
        self._let_through: int | None = None
        # Calls that were accepted while the connection was down.
        self._unsent: deque[Callable[[], object]] = deque()
        self._streams: list[OutputStream] = ["pty"] if self.params.tty else ["stdout", "stderr"]
        self._ended_streams: set[OutputStream] = set()
        self._killed = False
        self._terminated = False
        # `_closing`: the close waits only for children. `_kept`: a kill has kept the streams.
        self._closing = False
        self._kept = False
        self._refusals: dict[Call, HoldfastError] = {}
        self._write_ids: set[str] = set()
        self._writes = 0
        self._written = bytearray()
        self._unread = bytearray()
        self._pending_signals: deque[str] = deque()
        self._failure: HoldfastError | None = None
        self._holders: set[object] = set()
        self._when_killed: list[Callable[[], object]] = []
        self._readers = EventReaders(
            self._here, self._hold, self._release, can_hold=lambda: self._can_hold
        )
        self.line.watch(self._restored, self._fail)

    # -- what happens, as the test says it

    def output(self, data: bytes, stream: OutputStream | None = None) -> None:
        """
        Write some output as one event, even if readers hold it.

        Args:
            data: Must not be empty.
            stream: `stdout`, or `pty` on a terminal, unless given.

        Raises:
            RuntimeError: It is closed, or that stream has ended.
            TypeError: The data is not bytes.
            ValueError: There are no bytes.
        """
        if not isinstance(data, bytes):
            raise TypeError(f"output is bytes, not {type(data).__name__}")
        # Earlier output comes first.
        self._empty_pipe()
        stream = self._streams[0] if stream is None else stream
        if self._there.closed or stream in self._ended_streams:
            raise RuntimeError(f"process {self.process_id}: {stream} has ended")
        if not data:
            raise ValueError("an output event has at least one byte")
        self._happen(OutputChunk(seq=self._there.next_seq, stream=stream, chunk=data))

    async def flow(self, data: bytes, stream: OutputStream | None = None) -> None:
        """
        Write output as a real process does: in pieces, waiting while nobody takes them.

        It waits while a reader holds it, and while 1 MiB is under way. A pipe of 64 KiB
        takes some more before it waits. What is in the pipe comes out when the reader goes
        on, and before the exit, whoever is behind.
        """
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            await self.line.changes.wait(lambda: not self._stalled or self.pipe_bytes < _PIECE)
            if self._stalled:
                self._pipe.append((piece, stream))
                self.pipe_bytes += len(piece)
            else:
                self.output(piece, stream)
            await asyncio.sleep(0)

    @property
    def _stalled(self) -> bool:
        return self.held or self.line.held or self._under_way_bytes > HIGH_WATER

    def _empty_pipe(self) -> None:
        pipe, self._pipe, self.pipe_bytes = self._pipe, [], 0
        for piece, stream in pipe:
            self.output(piece, stream)

    def stream_ended(self, stream: OutputStream) -> None:
        """End one stream; the others go on. A Codex server does not tell of it."""
        if self._there.closed or stream in self._ended_streams:
            raise RuntimeError(f"process {self.process_id}: {stream} has ended already")
        self._empty_pipe()
        self._ended_streams.add(stream)
        # Only a Holdfast server reports the end of a stream.
        if self.capabilities.process_ack:
            self._happen(StreamEnded(stream, self._there.next_seq - 1))

    def exit(self, result: int | Verdict = 0) -> None:
        """
        Let it exit; its output is still open, until `close`.

        Args:
            result: The exit code, or all that is known of the end. A code of a process
                that was terminated has the reason `TERMINATED`.

        Raises:
            RuntimeError: It has exited already.
        """
        if self._there.verdict is not None:
            raise RuntimeError(f"process {self.process_id} has exited already")
        if not isinstance(result, Verdict):
            reason = Reason.TERMINATED if self._killed else Reason.EXITED
            result = Verdict(reason=reason, exit_code=result)
        self._empty_pipe()
        self._happen(Exited(self._there.next_seq, result))

    def close(self) -> None:
        """
        End all streams that have not ended, and the process with them.

        Raises:
            RuntimeError: It has not exited, or it is closed already.
        """
        if self._there.verdict is None:
            raise RuntimeError(f"process {self.process_id} has not exited: call exit() first")
        if self._there.closed:
            raise RuntimeError(f"process {self.process_id} is closed already")
        # In the order of a real process: streams end before the close.
        for stream in self._streams:
            if stream not in self._ended_streams:
                self.stream_ended(stream)
        self._happen(Closed(self._there.next_seq))

    def end(self, result: int | Verdict = 0) -> None:
        """Let it exit, and close it as soon as no child has its output open."""
        self.exit(result)
        self._closing = True
        self._close_if_done()

    def stop(self, verdict: Verdict) -> None:
        """End it and everything below it, whatever state it is in; for a backend that closes."""
        if self.running:
            self.exit(verdict)
        for child in self.children:
            child.exit()
        if not self._there.closed:
            self.close()

    def gap(self, count: int = 1) -> None:
        """Lose that many numbers: their output is kept nowhere any more."""
        if count < 1:
            raise ValueError(f"a gap has at least one number, not {count}")
        first = self._there.next_seq
        self._happen(Gap(first, first + count - 1))

    def child(self, *, own_session: bool = False, holds_output: bool = True) -> FakeChild:
        """
        Start something below it.

        Args:
            own_session: It leaves the group, so that a plain `terminate` misses it.
            holds_output: It has the output open; after `end` the close waits for it.
        """
        child = FakeChild(self._child_ended, own_session=own_session, holds_output=holds_output)
        self.children.append(child)
        return child

    # -- the way to this side

    def delay(self) -> None:
        """
        Keep events under way: `read` shows them, `events` and `exited` do not yet.

        Raises:
            RuntimeError: It is local, where nothing is ever under way.
        """
        self.line.need("delay")
        self._let_through = 0

    def arrive(self, count: int | None = None) -> None:
        """Let the next events through that are delayed; without a number, all from now on."""
        self._let_through = None if count is None else (self._let_through or 0) + count
        self._deliver()

    def lose_line(self) -> None:
        """
        Cut the connection, which may come back; for all processes of its backend.

        Events are held back, `read` and most calls wait. `write` and `terminate` are
        accepted, and take effect at `restore_line`.
        """
        self.line.lose()

    def restore_line(self) -> None:
        """Bring the connection back, with everything that waited for it."""
        self.line.restore()

    def lose_for_good(self, error: HoldfastError | None = None) -> None:
        """Lose the server; every process of its backend that is not closed here fails."""
        self.line.lose_for_good(error)

    def refuse(self, call: Call, error: HoldfastError | None) -> None:
        """Answer a call with this error from now on; `None` takes that back."""
        if error is None:
            self._refusals.pop(call, None)
        else:
            self._refusals[call] = error

    # -- what it was asked for

    @property
    def written(self) -> bytes:
        """All input that reached it."""
        return bytes(self._written)

    @property
    def held(self) -> bool:
        """True while a reader that cannot keep up makes it wait."""
        return bool(self._holders)

    @property
    def running(self) -> bool:
        """True until it exits, where it runs."""
        return self._there.verdict is None

    async def until(self, holds: Callable[[], bool]) -> None:
        """
        Wait until something holds that a call, or an event, can change.

        Raises:
            TimeoutError: It did not come to that within 5 s.
        """
        await self.line.changes.until(holds)

    async def next_input(self, size: int = _PIECE) -> bytes:
        """Take input that was written; no bytes mean that it has ended."""
        await self.line.changes.wait(lambda: bool(self._unread) or not self._input_open)
        data = bytes(self._unread[:size])
        del self._unread[: len(data)]
        # There is room for more.
        self.line.changes.notify()
        return data

    async def next_signal(self) -> str:
        """Take the next signal it got; a resize counts as `SIGWINCH`."""
        await self.line.changes.wait(lambda: bool(self._pending_signals))
        return self._pending_signals.popleft()

    def when_killed(self, callback: Callable[[], object]) -> None:
        """Call `callback` when it is killed, just before its exit."""
        self._when_killed.append(callback)

    # -- the seam

    @property
    def verdict(self) -> Verdict | None:
        return self._here.verdict

    async def exited(self) -> Verdict:
        await self.line.changes.wait(lambda: self.verdict is not None or self._failure is not None)
        if self.verdict is not None:
            return self.verdict
        # Otherwise `verdict` is set.
        assert self._failure is not None
        raise self._failure

    async def wait(self) -> Verdict:
        await self.line.changes.wait(lambda: self._here.closed or self._failure is not None)
        if not self._here.closed:
            # Otherwise it is closed.
            assert self._failure is not None
            raise self._failure
        # A process exits before it is closed.
        assert self.verdict is not None
        return self.verdict

    def events(
        self, after_seq: int = 0, *, gaps: bool = False, stream_ends: bool = False
    ) -> LogEventStream:
        return self._readers.stream(after_seq, gaps=gaps, stream_ends=stream_ends)

    async def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse:
        check_read(after_seq, max_bytes, wait)
        self._record_call("read", after_seq, max_bytes, wait)
        if self._here.closed:
            return self._here.read(after_seq, max_bytes)
        await self.line.available()
        if wait > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait, _LONGEST_WAIT)):
                    await self.line.changes.wait(
                        lambda: (
                            self.line.failure is not None
                            or (self.line.up and self._there.has_news(after_seq))
                        )
                    )
            await self.line.available()
        return self._there.read(after_seq, max_bytes)

    async def write(self, data: bytes, write_id: str | None = None) -> WriteStatus:
        data = check_input(data, write_id)
        self._record_call("write", data, write_id)
        if self.line.failure is not None and not self._here.closed:
            raise self.line.failure
        if self.write_status is not None:
            return self.write_status
        if not self._takes_input():
            return WriteStatus.STDIN_CLOSED
        if write_id is None:
            self._writes += 1
            write_id = f"fake-{self._writes}"
        # A repeated id is accepted and not written again.
        if write_id in self._write_ids:
            return WriteStatus.ACCEPTED
        # Accepted here, as by the real client, and delivered when the line is back.
        if not self.line.up:
            self._write_ids.add(write_id)
            self._unsent.append(lambda: self._take(data))
            return WriteStatus.ACCEPTED
        if self.stdin_closed:
            return WriteStatus.STDIN_CLOSED
        await self.line.changes.wait(lambda: self._has_room or not self._takes_input())
        if not self._takes_input():
            return WriteStatus.STDIN_CLOSED
        self._write_ids.add(write_id)
        self._take(data)
        return WriteStatus.ACCEPTED

    async def close_stdin(self) -> None:
        await self._call("close_stdin", (), supported=self.capabilities.process_close_stdin)
        if self.params.tty:
            raise self._refused(
                InvalidRequest(
                    "a terminal's input has no end to close: write the byte 0x04 (Ctrl-D) instead"
                )
            )
        self.stdin_closed = True
        self.line.changes.notify()

    async def resize(self, rows: int, cols: int) -> None:
        try:
            TerminalSize(rows=rows, cols=cols)
        except ValueError as error:
            raise InvalidParams(str(error)) from None
        await self._call("resize", (rows, cols), supported=self.capabilities.process_resize)
        if not self.params.tty:
            raise self._refused(
                InvalidRequest(f"process {self.process_id} has no terminal to resize")
            )
        self.sizes.append((rows, cols))
        self._pending_signals.append("SIGWINCH")
        self.line.changes.notify()

    async def waiting_for(self) -> WaitingFor:
        self._record_call("waiting_for")
        if not self.capabilities.process_waiting_for:
            return WaitingFor.UNKNOWN
        if self.verdict is not None:
            return WaitingFor.NONE
        await self.line.available()
        if not self.running:
            return WaitingFor.NONE
        return self.waits_for if self.params.tty else WaitingFor.UNKNOWN

    async def signal(self, name: str) -> None:
        known = name == "interrupt" or self.capabilities.process_signal_names
        await self._call("signal", (name,), supported=known)
        try:
            signal_number(name)
        except InvalidParams as error:
            raise self._refused(error) from error.__cause__
        if self.running:
            self.signals.append(name)
            self._pending_signals.append("SIGINT" if name == "interrupt" else name)
            self.line.changes.notify()

    async def terminate(
        self, *, tree: bool = False, left: bool = False, streams: StreamsAtEnd = "close"
    ) -> bool:
        check_streams(streams)
        self._record_call("terminate", tree, left, streams)
        if self.line.failure is not None and not self._here.closed:
            raise self.line.failure
        asked = Termination(tree, left, streams)
        self.terminations.append(asked)
        if not self.capabilities.process_terminate_left:
            # A Codex server ignores the members it does not know.
            asked = Termination(tree=False, left=False, streams="close")
        if not self.line.up and (asked.left or not self._here.closed):
            known_to_run = self.verdict is None
            self._terminated = self._terminated or known_to_run
            self._unsent.append(lambda: self._kill(asked))
            self.line.changes.notify()
            return known_to_run
        killed = self._kill(asked)
        self.line.changes.notify()
        return killed

    # -- inside

    def _happen(self, event: ProcessEvent) -> None:
        """Record an event where the process runs, and send it here."""
        self._there.record(event)
        self._under_way.append(event)
        self._under_way_bytes += _size(event)
        if type(event) is Exited:
            # Nobody reads it any more.
            self._unread.clear()
        self._deliver()
        self.line.changes.notify()

    def _deliver(self) -> None:
        while self._under_way and self.line.carries and self._let_through != 0:
            event = self._under_way.popleft()
            self._under_way_bytes -= _size(event)
            if self._let_through is not None:
                self._let_through -= 1
            self._here.record(event)
        if self._pipe and not self._stalled:
            self._empty_pipe()
        self.line.changes.notify()

    def _restored(self) -> None:
        while self.line.up and self._unsent:
            self._unsent.popleft()()
        self._deliver()

    def _fail(self, error: HoldfastError) -> None:
        if not self._here.closed:
            self._failure = error
            self._readers.fail(error)
            self.line.changes.notify()

    @property
    def _can_hold(self) -> bool:
        return not self.remote or self.capabilities.process_hold

    def _hold(self, holder: object) -> None:
        if not self._holders:
            self.holds.append(True)
        self._holders.add(holder)
        if not self._can_hold:
            self.line.hold(holder)
        self.line.changes.notify()

    def _release(self, holder: object) -> None:
        if holder not in self._holders:
            return
        self._holders.discard(holder)
        if not self._holders:
            self.holds.append(False)
        self.line.release(holder)
        self._deliver()

    @property
    def _has_input(self) -> bool:
        return self.params.tty or self.params.pipe_stdin

    def _takes_input(self) -> bool:
        return self._has_input and not self._terminated

    @property
    def _input_open(self) -> bool:
        return self._has_input and not self.stdin_closed and self.running

    @property
    def _has_room(self) -> bool:
        return self.input_limit is None or not self.running or len(self._unread) < self.input_limit

    def _take(self, data: bytes) -> None:
        """Hand input to the process; what comes after its exit vanishes, as in a pipe."""
        if self.running and not self.stdin_closed:
            self._written += data
            self._unread += data
        self.line.changes.notify()

    def _kill(self, asked: Termination) -> bool:
        """Do what `terminate` asks for, and return whether there was something to kill."""
        was_running = self.running
        if not self.dies_when_killed:
            self._killed = self._terminated = self._killed or was_running
            return was_running
        found: list[FakeChild] = []
        # Without `left`, a kill after the exit reaches nobody.
        if was_running or asked.left:
            found = [
                child
                for child in self.children
                if child.alive and (not child.own_session or (asked.tree and was_running))
            ]
        if was_running:
            self._killed = self._terminated = self._closing = True
            for callback in self._when_killed:
                callback()
            # The exit codes of the real engine for SIGKILL.
            code = 1 if self.params.tty else 128 + 9
            self.exit(Verdict(reason=Reason.TERMINATED, exit_code=code, signal=9))
            # What a child writes to a terminal still counts, as on a real one.
            closes = not self.params.tty
        else:
            closes = asked.left or self._kept
        for child in found:
            child.exit()
        self._kept = asked.streams == "keep"
        if asked.streams == "close" and closes and not self._there.closed:
            self.close()
        self._close_if_done()
        return was_running or bool(found)

    def _child_ended(self) -> None:
        self._close_if_done()
        self.line.changes.notify()

    def _close_if_done(self) -> None:
        if not self._closing or self._there.closed:
            return
        if not any(child.alive and child.holds_output for child in self.children):
            self.close()

    async def _call(self, call: Call, arguments: tuple[object, ...], *, supported: bool) -> None:
        """Record a call, check its support, and wait for the connection."""
        self._record_call(call, *arguments)
        if not supported:
            raise Unsupported(codes.METHOD_NOT_FOUND, f"exec-server does not know {call}")
        await self.line.available()

    def _record_call(self, call: Call, *arguments: object) -> None:
        """Note a call, and refuse it if the test said so."""
        self.asked.append(Asked(call, arguments))
        self.line.changes.notify()
        error = self._refusals.get(call)
        if error is not None:
            raise error

    def _refused(self, error: Refused) -> Refused:
        return as_refused(error, remote=self.remote)


def _size(event: ProcessEvent) -> int:
    return len(event.chunk) if type(event) is OutputChunk else 0


def _default_params() -> StartParams:
    return StartParams(
        process_id="p",
        argv=["fake"],
        cwd=PathUri.parse("file:///"),
        env={},
        tty=False,
        pipe_stdin=True,
    )
