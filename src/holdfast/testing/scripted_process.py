"""
The side of a fake process that a test controls: what happens to it, and how it gets here.

`FakeProcess` adds the calls of the seam.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable

from holdfast.base.errors import ConnectionLost, HoldfastError
from holdfast.engine.process.event_stream import HIGH_WATER, EventReaders
from holdfast.engine.process.io.log import OutputLog
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
from holdfast.testing.fake_calls import HOLDFAST, Asked, Call, Termination
from holdfast.testing.fake_line import FakeLine
from holdfast.wire.protocol.handshake import Capabilities
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import (
    Enforcement,
    OutputChunk,
    OutputStream,
    StartParams,
    WriteStatus,
)

__all__ = ["FakeChild", "ScriptedProcess"]

# Pids beyond the kernel's default limit, so that a mistake signals no real process.
_pids = itertools.count(1_000_001)


def _new_pid() -> int:
    """Return a pid that no process of this machine has."""
    return next(_pids)


class FakeChild:
    """Something that a fake process started, and that may outlive it."""

    def __init__(self, ended: Callable[[], None], *, own_session: bool, holds_output: bool) -> None:
        self.pid = _new_pid()
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


class _Transit:
    """
    The log where a process runs, and its copy on this side; the difference is under way.

    For a local process both are always equal.
    """

    def __init__(self, line: FakeLine) -> None:
        self.there = OutputLog()
        self.here = OutputLog()
        self.size = 0
        """Bytes of output that are under way."""
        self._line = line
        self._under_way: deque[ProcessEvent] = deque()
        # Events that may still arrive while they are delayed; None if they are not.
        self._let_through: int | None = None

    def delay(self) -> None:
        """
        Keep events under way until `arrive`.

        Raises:
            RuntimeError: The process is local, where nothing is ever under way.
        """
        self._line.need("delay")
        self._let_through = 0

    def arrive(self, count: int | None) -> None:
        """Let the next events through that are delayed; None for all from now on."""
        self._let_through = None if count is None else (self._let_through or 0) + count

    def send(self, event: ProcessEvent) -> None:
        """Record an event where the process runs; `deliver` brings it here."""
        self.there.record(event)
        self._under_way.append(event)
        self.size += _size(event)

    def deliver(self) -> None:
        """Bring here what may arrive."""
        # In order: an event that is delayed delays those behind it.
        while self._under_way and self._line.carries and self._let_through != 0:
            event = self._under_way.popleft()
            self.size -= _size(event)
            if self._let_through is not None:
                self._let_through -= 1
            self.here.record(event)


def _size(event: ProcessEvent) -> int:
    return len(event.chunk) if type(event) is OutputChunk else 0


_PIECE = 64 << 10


class ScriptedProcess:
    """
    The state of a fake process, and the methods by which a test changes it.

    See `FakeProcess`, which is one with the calls of the seam.
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
            capabilities: What it can do: all extensions, some or none.
            line: The connection it shares with others.
        """
        self.params = _default_params() if params is None else params
        self.process_id = self.params.process_id
        self.remote = remote
        self.capabilities = capabilities
        self.line = FakeLine(remote=remote) if line is None else line
        self.pid: int | None = _new_pid() if capabilities.process_ack else None
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
        self._transit = _Transit(self.line)
        self._there = self._transit.there
        self._here = self._transit.here
        # Output of `flow` while it is held, like a pipe that nobody reads.
        self._pipe: list[tuple[bytes, OutputStream | None]] = []
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
        self.line.watch(self._restored, self.fail)

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
        return self.held or self.line.held or self._transit.size > HIGH_WATER

    def _empty_pipe(self) -> None:
        pipe, self._pipe, self.pipe_bytes = self._pipe, [], 0
        for piece, stream in pipe:
            self.output(piece, stream)

    def stream_ended(self, stream: OutputStream) -> None:
        """End one stream; the others go on. Only our extensions report it."""
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
        self._transit.delay()

    def arrive(self, count: int | None = None) -> None:
        """Let the next events through that are delayed; without a number, all from now on."""
        self._transit.arrive(count)
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

    def fail(self, error: HoldfastError | None = None) -> None:
        """Lose this process alone: its readers and calls fail, now and later."""
        if not self._here.closed:
            self._failure = ConnectionLost("the fake process is lost") if error is None else error
            self._readers.fail(self._failure)
            self.line.changes.notify()

    def refuse(self, call: Call, error: HoldfastError | None) -> None:
        """Answer a call with this error from now on; `None` takes that back."""
        if error is None:
            self._refusals.pop(call, None)
        else:
            self._refusals[call] = error

    # -- what it was asked for

    @property
    def verdict(self) -> Verdict | None:
        return self._here.verdict

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

    # -- inside

    def _happen(self, event: ProcessEvent) -> None:
        """Record an event where the process runs, and send it here."""
        self._transit.send(event)
        if type(event) is Exited:
            # Nobody reads it any more.
            self._unread.clear()
        self._deliver()
        self.line.changes.notify()

    def _deliver(self) -> None:
        self._transit.deliver()
        if self._pipe and not self._stalled:
            self._empty_pipe()
        self.line.changes.notify()

    def _restored(self) -> None:
        while self.line.up and self._unsent:
            self._unsent.popleft()()
        self._deliver()

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


def _default_params() -> StartParams:
    return StartParams(
        process_id="p",
        argv=["fake"],
        cwd=PathUri.parse("file:///"),
        env={},
        tty=False,
        pipe_stdin=True,
    )
