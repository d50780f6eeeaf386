"""
The side of a fake process that a test controls: its events and their delivery.

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

# Pids beyond the kernel's default limit, so that a mistake cannot signal a real process.
_pids = itertools.count(1_000_001)


def _new_pid() -> int:
    """Return a pid that no process on this machine has."""
    return next(_pids)


class FakeChild:
    """A child of a fake process, which may outlive it."""

    def __init__(self, ended: Callable[[], None], *, own_session: bool, holds_output: bool) -> None:
        self.pid = _new_pid()
        self.alive = True
        self.own_session = own_session
        """True if it left the group of the process; only `terminate(tree=True)` reaches it."""
        self.holds_output = holds_output
        """True if it keeps the output of the process open until it ends."""
        self._ended = ended
        self._task: asyncio.Task[object] | None = None

    def exit(self) -> None:
        """End it; idempotent."""
        if self.alive:
            self.alive = False
            if self._task is not None and self._task is not asyncio.current_task():
                self._task.cancel()
            self._ended()

    def play(self, program: Callable[[], Awaitable[object]]) -> None:
        """Run a program for the child. When one ends, so does the other."""
        self._task = asyncio.get_running_loop().create_task(self._play(program))

    async def _play(self, program: Callable[[], Awaitable[object]]) -> None:
        await program()
        self.exit()


class _Transit:
    """
    The log on the server's side and its copy on the client's; other events are in transit.

    For a local process both are always equal.
    """

    def __init__(self, line: FakeLine) -> None:
        self.there = OutputLog()
        self.here = OutputLog()
        self.size = 0
        """Bytes of output in transit."""
        self._line = line
        self._under_way: deque[ProcessEvent] = deque()
        # Number of delayed events that may still arrive; None if events are not delayed.
        self._let_through: int | None = None

    def delay(self) -> None:
        """
        Keep events in transit until `arrive`.

        Raises:
            RuntimeError: The process is local, so events are never in transit.
        """
        self._line.need("delay")
        self._let_through = 0

    def arrive(self, count: int | None) -> None:
        """Deliver the next `count` delayed events; None for all from now on."""
        self._let_through = None if count is None else (self._let_through or 0) + count

    def send(self, event: ProcessEvent) -> None:
        """Record an event on the server's side; `deliver` copies it to the client's."""
        self.there.record(event)
        self._under_way.append(event)
        self.size += _size(event)

    def deliver(self) -> None:
        """Copy the events that may arrive."""
        # In order: a delayed event delays those behind it.
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
    The state of a fake process, with methods for a test to change it.

    `FakeProcess` adds the calls of the seam.
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
            params: The request of its start; by default `fake` with a pipe for its input.
            remote: True for a process behind a connection.
            capabilities: Supported extensions.
            line: The connection that it shares with other processes.
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
        """If False, `terminate` is recorded and answered but has no effect."""
        self.input_limit: int | None = None
        """Bytes of unread input at which `write` waits; None for never."""
        self.waits_for = WaitingFor.NONE
        """The answer of `waiting_for` while it runs on a terminal, if its server supports that."""
        self.write_status: WriteStatus | None = None
        """If set, every `write` returns this and drops the bytes."""

        self.asked: list[Asked] = []
        """Every call of the seam in order, including refused and waiting ones."""
        self.stdin_closed = False
        """True once its input has ended."""
        self.signals: list[str] = []
        """Names of the signals it received."""
        self.sizes: list[tuple[int, int]] = []
        """Rows and columns it was resized to."""
        self.terminations: list[Termination] = []
        """Calls of `terminate`, including those with nothing to kill."""
        self.holds: list[bool] = []
        """True for each time a reader made it wait, False for each time the last one caught up."""
        self.pipe_bytes = 0
        """Bytes of `flow` that wait because a reader holds the process."""
        self.children: list[FakeChild] = []
        """Its children, see `child`."""
        self._begin()

    def _begin(self) -> None:
        """Set the state of a process that has just started."""
        self._transit = _Transit(self.line)
        self._there = self._transit.there
        self._here = self._transit.here
        # Output of `flow` while it is held, like a full pipe.
        self._pipe: list[tuple[bytes, OutputStream | None]] = []
        # Calls accepted while the connection was down.
        self._unsent: deque[Callable[[], object]] = deque()
        self._streams: list[OutputStream] = ["pty"] if self.params.tty else ["stdout", "stderr"]
        self._ended_streams: set[OutputStream] = set()
        self._killed = False
        self._terminated = False
        # `_closing`: the close waits only for children. `_kept`: a kill kept the streams open.
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

    # -- what the process does

    def output(self, data: bytes, stream: OutputStream | None = None) -> None:
        """
        Write output as one event, even while readers hold the process.

        Args:
            data: Must not be empty.
            stream: By default `stdout`, or `pty` on a terminal.

        Raises:
            RuntimeError: The process is closed, or the stream has ended.
            TypeError: The data is not bytes.
            ValueError: The data is empty.
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
        Write output as a real process does: in pieces, waiting while they are not read.

        It waits while a reader holds the process and the pipe of 64 KiB is full, and while 1 MiB is
        in transit. The content of the pipe follows when the reader resumes, or at the exit at the
        latest, even if readers are behind.
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
        """End one stream; the others stay open. Only our extensions report it."""
        if self._there.closed or stream in self._ended_streams:
            raise RuntimeError(f"process {self.process_id}: {stream} has ended already")
        self._empty_pipe()
        self._ended_streams.add(stream)
        # Only a Holdfast server reports the end of a stream.
        if self.capabilities.process_ack:
            self._happen(StreamEnded(stream, self._there.next_seq - 1))

    def exit(self, result: int | Verdict = 0) -> None:
        """
        Make it exit; its output stays open until `close`.

        Args:
            result: The exit code, or the whole verdict. The verdict for the code of a
                terminated process has the reason `TERMINATED`.

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
        End the remaining streams, and close the process.

        Raises:
            RuntimeError: It has not exited, or it is closed already.
        """
        if self._there.verdict is None:
            raise RuntimeError(f"process {self.process_id} has not exited: call exit() first")
        if self._there.closed:
            raise RuntimeError(f"process {self.process_id} is closed already")
        # As with a real process, streams end before the close.
        for stream in self._streams:
            if stream not in self._ended_streams:
                self.stream_ended(stream)
        self._happen(Closed(self._there.next_seq))

    def end(self, result: int | Verdict = 0) -> None:
        """Make it exit, and close it as soon as no child has its output open."""
        self.exit(result)
        self._closing = True
        self._close_if_done()

    def stop(self, verdict: Verdict) -> None:
        """End it and its children, in any state; for a backend that closes."""
        if self.running:
            self.exit(verdict)
        for child in self.children:
            child.exit()
        if not self._there.closed:
            self.close()

    def gap(self, count: int = 1) -> None:
        """Skip `count` sequence numbers, as if their output had been discarded."""
        if count < 1:
            raise ValueError(f"a gap has at least one number, not {count}")
        first = self._there.next_seq
        self._happen(Gap(first, first + count - 1))

    def child(self, *, own_session: bool = False, holds_output: bool = True) -> FakeChild:
        """
        Start a child.

        Args:
            own_session: The child leaves the process group, so that a plain `terminate` misses it.
            holds_output: The child keeps the output open; after `end` the close waits for it.
        """
        child = FakeChild(self._child_ended, own_session=own_session, holds_output=holds_output)
        self.children.append(child)
        return child

    # -- delivery

    def delay(self) -> None:
        """
        Keep events in transit: `read` shows them, `events` and `exited` do not yet.

        Raises:
            RuntimeError: The process is local, so events are never in transit.
        """
        self._transit.delay()

    def arrive(self, count: int | None = None) -> None:
        """Deliver the next `count` delayed events; without a number, all from now on."""
        self._transit.arrive(count)
        self._deliver()

    def lose_line(self) -> None:
        """
        Cut the connection for all processes of its backend; it may come back.

        Events are held back, and `read` and most other calls wait. `write` and `terminate` are
        accepted and take effect at `restore_line`.
        """
        self.line.lose()

    def restore_line(self) -> None:
        """Restore the connection, and release everything that waited for it."""
        self.line.restore()

    def lose_for_good(self, error: HoldfastError | None = None) -> None:
        """Lose the server: every process of its backend that is not closed yet fails."""
        self.line.lose_for_good(error)

    def fail(self, error: HoldfastError | None = None) -> None:
        """Lose only this process: its readers and calls fail, now and later."""
        if not self._here.closed:
            self._failure = ConnectionLost("the fake process is lost") if error is None else error
            self._readers.fail(self._failure)
            self.line.changes.notify()

    def refuse(self, call: Call, error: HoldfastError | None) -> None:
        """Make a call fail with this error from now on; None makes it succeed again."""
        if error is None:
            self._refusals.pop(call, None)
        else:
            self._refusals[call] = error

    # -- what the caller has done

    @property
    def verdict(self) -> Verdict | None:
        return self._here.verdict

    @property
    def written(self) -> bytes:
        """All input that it received."""
        return bytes(self._written)

    @property
    def held(self) -> bool:
        """True while a slow reader makes it wait."""
        return bool(self._holders)

    @property
    def running(self) -> bool:
        """True until it exits, even if that event is still in transit."""
        return self._there.verdict is None

    async def until(self, holds: Callable[[], bool]) -> None:
        """
        Wait until a condition holds. It is checked after each call and event.

        Raises:
            TimeoutError: It did not hold within 5 s.
        """
        await self.line.changes.until(holds)

    async def next_input(self, size: int = _PIECE) -> bytes:
        """Wait for input and take it; empty if the input has ended."""
        await self.line.changes.wait(lambda: bool(self._unread) or not self._input_open)
        data = bytes(self._unread[:size])
        del self._unread[: len(data)]
        # There is room for more.
        self.line.changes.notify()
        return data

    async def next_signal(self) -> str:
        """Wait for the next signal and take it; a resize counts as `SIGWINCH`."""
        await self.line.changes.wait(lambda: bool(self._pending_signals))
        return self._pending_signals.popleft()

    def when_killed(self, callback: Callable[[], object]) -> None:
        """Call `callback` when it is killed, just before its exit."""
        self._when_killed.append(callback)

    # -- internal

    def _happen(self, event: ProcessEvent) -> None:
        """Record an event on the server's side, and send it."""
        self._transit.send(event)
        if type(event) is Exited:
            # The process can no longer read it.
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
        """Pass input to the process; after its exit it is dropped, as in a pipe."""
        if self.running and not self.stdin_closed:
            self._written += data
            self._unread += data
        self.line.changes.notify()

    def _kill(self, asked: Termination) -> bool:
        """Carry out a `terminate`, and return whether there was something to kill."""
        was_running = self.running
        if not self.dies_when_killed:
            self._killed = self._terminated = self._killed or was_running
            return was_running
        found: list[FakeChild] = []
        # Without `left`, a kill after the exit does not reach any process.
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
            # The engine's exit codes for SIGKILL.
            code = 1 if self.params.tty else 128 + 9
            self.exit(Verdict(reason=Reason.TERMINATED, exit_code=code, signal=9))
            # Output of children still counts on a terminal, as on a real one.
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
