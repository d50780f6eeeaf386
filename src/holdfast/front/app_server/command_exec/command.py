"""A command: its output, controls and end [command-exec.*]."""

import asyncio
import weakref
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.backends import ExecProcess
from holdfast.base.dialect import limits
from holdfast.base.errors import ConnectionLost, HoldfastError, Refused, RemoteError, Unsupported
from holdfast.base.tasks import OwnedTasks
from holdfast.environments.collect.drain import StreamDrain
from holdfast.environments.commands.arguments import as_bytes
from holdfast.environments.commands.run import END_LIMIT, PIECE
from holdfast.events import LimitKind, Reason, Verdict
from holdfast.front.app_server.command_exec.charset import decode
from holdfast.front.app_server.command_exec.checks import as_size
from holdfast.front.app_server.command_exec.command_errors import (
    CommandLost,
    ExtensionMissing,
    NoLongerRunning,
    NotATerminal,
    StdinAlreadyClosed,
    StdinNotStreamed,
)
from holdfast.front.app_server.command_exec.command_options import Setup
from holdfast.front.app_server.command_exec.output import CappedStream, Delta, Deltas, KeptOrder
from holdfast.wire.protocol.limits import limit_of
from holdfast.wire.protocol.process import OutputChunk, OutputStream, WriteStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "JOINED",
    "LONGEST_TIMER",
    "TIMED_OUT",
    "UNKNOWN_EXIT",
    "Command",
    "CommandOwner",
    "Done",
]

TIMED_OUT = limits.EXEC_TIMED_OUT
"""Exit code of a command that timed out."""

UNKNOWN_EXIT = -1
"""Exit code of a command whose status is unknown."""

# A newline and Ctrl-D, to end the input of a terminal, which cannot be closed.
_END_OF_FILE = b"\n\x04"

JOINED = 64 << 10
"""Maximum bytes of a piece of output that is joined from waiting pieces."""

LONGEST_TIMER = 1e6
"""Maximum delay of a timer in seconds; a longer timeout uses several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Result of a command: exit code, and output unless it was streamed."""

    exit_code: int
    """The status, 128 plus the signal (1 on a terminal), 124 after a timeout, -1 if unknown."""
    verdict: Verdict
    stdout: bytes = b""
    """Empty if output was streamed."""
    stderr: bytes = b""
    stdout_cap_reached: bool = False
    """True if at least as many bytes as the cap were written, even if streamed."""
    stderr_cap_reached: bool = False
    drain_timed_out: bool = False
    """True if a stream was given up before its end and cap: a process still holds it."""

    @property
    def cap_reached(self) -> bool:
        """True if either stream has reached its cap."""
        return self.stdout_cap_reached or self.stderr_cap_reached

    async def stdout_text(self) -> str:
        """Return stdout as text: UTF-8, else a guessed encoding. Does not block the event loop."""
        return await decode(self.stdout)

    async def stderr_text(self) -> str:
        """Return stderr as text; see `stdout_text`."""
        return await decode(self.stderr)


class CommandOwner(Protocol):
    """Owner of commands; its methods must not raise."""

    def command_ended(self, command: "Command") -> None:
        """Called when the output of a command is drained, or it failed."""

    def command_released(self, command: "Command") -> None:
        """Called when the id of a command is free."""


class Command:
    """A command started by `CommandExec.start`."""

    def __init__(
        self,
        process: ExecProcess,
        setup: Setup,
        tasks: OwnedTasks,
        owner: "CommandOwner",
    ) -> None:
        """
        Start reading; called by `CommandExec.start`.

        Args:
            process: A process whose events have no other reader.
            setup: Its settings.
            tasks: Owner of background tasks.
            owner: Notified when it ends, and when its id is free.
        """
        self._process = process
        self._setup = setup
        self._tasks = tasks
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        policy = setup.drain
        names: list[OutputStream] = ["pty"] if setup.tty else ["stdout", "stderr"]
        self._drain = StreamDrain(
            process, names, quiet=policy.quiet, limit=policy.limit, last_pass=policy.last_pass
        )
        self._streams = {
            name: CappedStream(name, setup.cap, keep=not setup.stream) for name in names
        }
        # Order of kept output, and an event for its readers.
        self._kept = None if setup.stream else KeptOrder(list(self._streams.values()))
        self._more_kept = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        # True once the timeout has expired.
        self._timed_out = False
        self._stdin_closed = False
        # Held during a write, so that concurrent writes do not interleave.
        self._writing = asyncio.Lock()
        self._reader: weakref.ref[Deltas] | None = None
        # Held while waiting for the next piece.
        self._turn = asyncio.Lock()
        # Pieces that were read but not delivered yet.
        self._pending: deque[Delta] = deque()
        # Set at every change that `wait` has to check.
        self._changed = asyncio.Event()
        self._done: Done | None = None
        self._failure: HoldfastError | None = None
        self._released = asyncio.Event()
        if setup.timeout is not None:
            self._arm(setup.timeout)
        # A reader may be far behind at the exit, but the drain limit starts at the exit. Kept
        # output is read in the background, so that the command never blocks.
        tasks.start(self._watch_exit() if setup.stream else self._pull())

    @property
    def process_id(self) -> str | None:
        """The id it was started with; None if it has none."""
        return self._setup.process_id

    @property
    def process(self) -> ExecProcess:
        """Its process."""
        return self._process

    @property
    def pid(self) -> int | None:
        """Its pid on the machine where it runs; None if the server does not send it."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True until the process exits, however far behind its reader is."""
        return self._process.verdict is None and not self._has_ended()

    @property
    def ended(self) -> bool:
        """True once its output is drained, or it has failed."""
        return self._has_ended()

    def _has_ended(self) -> bool:
        return self._done is not None or self._failure is not None

    @property
    def still_held(self) -> bool:
        """True if a process, possibly left behind, may hold its output open."""
        return self._drain.still_open

    async def wait_for_leftovers(self) -> None:
        """
        Wait until no process holds its output; for the owner, after the end.

        A process that writes to it now is killed with its group, as by a broken pipe. A silent
        one may continue.

        Raises:
            ConnectionLost: The connection to its server is lost.
        """
        async with self._process.events(self._drain.last_seq, gaps=True) as events:
            async for event in events:
                if type(event) is OutputChunk:
                    break
            else:
                return
        await self._process.terminate(left=True, streams="close")
        await self._process.wait()

    def __repr__(self) -> str:
        state = "running" if self.running else "ended" if self.ended else "draining"
        return f"<Command {self._process.process_id}, {state}>"

    # -- output

    def output(self) -> "Deltas":
        """
        Return the output in pieces, until it is drained.

        With `stream=True` only one reader is allowed at a time, and a slow one makes the command
        wait. Otherwise the output is kept: any reader starts at the first byte, at any time.

        Raises:
            RuntimeError: It is streamed and already has a reader.
            CommandLost: The connection to its server is lost (while iterating).
        """
        if self._kept is not None:
            pieces = self._kept.pieces(JOINED)
            return Deltas(lambda: self._next_kept(pieces), lambda: None)
        if self._has_reader():
            raise RuntimeError("the output already has a reader")
        reader = Deltas(self._next_delta, self._changed.set)
        self._reader = weakref.ref(reader)
        return reader

    def _has_reader(self) -> bool:
        reader = None if self._reader is None else self._reader()
        return reader is not None and not reader.closed

    async def _next_delta(self) -> Delta | None:
        """Return the next piece, or `None` at the end."""
        async with self._turn:
            if not self._pending:
                await self._pull()
            if self._pending:
                return self._pending.popleft()
        self._raise_failure()
        return None

    async def _next_kept(self, pieces: "Iterator[Delta | None]") -> Delta | None:
        """Return the next piece of kept output, or `None` at the end."""
        while (delta := next(pieces)) is None and not self._has_ended():
            self._more_kept.clear()
            await self._more_kept.wait()
        if delta is None:
            self._raise_failure()
        return delta

    def _raise_failure(self) -> None:
        if self._failure is not None:
            # Shared by all callers: without this its traceback would grow.
            raise self._failure.with_traceback(None)

    async def _pull(self) -> None:
        """Wait for pending pieces or the end; kept output is never pending."""
        if self._has_ended():
            return
        try:
            async for chunk in self._drain:
                if self._setup.stream:
                    self._pending.extend(self._joined(chunk))
                    return
                self._take(chunk.stream, chunk.chunk)
        except HoldfastError as error:
            self._fail(self._lost(error))
        else:
            # Otherwise `_end` has closed the drain meanwhile.
            if not self._has_ended():
                self._finish()

    def _joined(self, chunk: OutputChunk) -> list[Delta]:
        """Return a chunk and the available ones after it, as one piece per stream."""
        parts = {chunk.stream: [chunk.chunk]}
        room = JOINED - len(chunk.chunk)
        while room > 0 and (more := self._drain.take_ready(room)) is not None:
            parts.setdefault(more.stream, []).append(more.chunk)
            room -= len(more.chunk)
        return [self._take(name, b"".join(pieces)) for name, pieces in parts.items()]

    def _take(self, name: OutputStream, data: bytes) -> Delta:
        stream = self._streams[name]
        delta = stream.take(data)
        if stream.cap_reached:
            # The rest of this stream is not needed, so do not wait for its end.
            self._drain.finish(name)
        if self._kept is not None:
            self._kept.note(stream, len(delta.data))
            self._more_kept.set()
        return delta

    async def _watch_exit(self) -> None:
        # The reader gets the error.
        with suppress(HoldfastError):
            await self._process.exited()
            self._drain.note_exit()

    # -- input and controls

    async def write(self, data: bytes = b"", *, close: bool = False) -> None:
        """
        Queue input, and optionally close stdin after it; waits while the queue is full.

        To close the input of a terminal, a newline and the end-of-file character are sent. It is
        not reported if the command has closed its end. If cancelled, any part of the data may
        have been queued.

        Raises:
            NoLongerRunning: It has exited.
            CommandLost: The connection to its server was lost for good.
            StdinNotStreamed: It was started without `stdin` and `tty`.
            StdinAlreadyClosed: There is data, but stdin was closed before.
            ExtensionMissing: The server cannot close stdin, which the start accepted.
        """
        raw = as_bytes(data, "data")
        self._check_running()
        if not self._setup.stdin:
            raise StdinNotStreamed(self._name)
        async with self._writing:
            # Again, since it may have exited while this write was waiting.
            self._check_running()
            # A second close is harmless, but data after a close is an error.
            if self._stdin_closed:
                if raw:
                    raise StdinAlreadyClosed(self._name)
                return
            with self._blamed():
                await self._write(raw, close)
            # Set afterwards, so that a cancelled close can be retried.
            self._stdin_closed = close

    async def _write(self, data: bytes, close: bool) -> None:
        if close and self._setup.tty:
            data += _END_OF_FILE
        for at in range(0, len(data), PIECE):
            if await self._process.write(data[at : at + PIECE]) is not WriteStatus.ACCEPTED:
                self._check_running()
                # The command has closed its stdin, which is not reported.
                return
        if close and not self._setup.tty:
            try:
                await self._process.close_stdin()
            except Unsupported as error:
                raise ExtensionMissing("closeStdin", self._setup.environment_id) from error

    async def resize(self, rows: int, cols: int) -> None:
        """
        Change the size of its terminal.

        Raises:
            InvalidSize: A terminal cannot have that size.
            NoLongerRunning: It has exited.
            CommandLost: The connection to its server was lost for good.
            NotATerminal: It runs on pipes.
            ExtensionMissing: The server cannot resize, which the start accepted.
        """
        size = as_size((rows, cols))
        self._check_running()
        if not self._setup.tty:
            raise NotATerminal(self._name)
        try:
            with self._blamed():
                await self._process.resize(size.rows, size.cols)
        except Unsupported as error:
            raise ExtensionMissing("resize", self._setup.environment_id) from error

    async def terminate(self) -> None:
        """
        Kill its process tree or, with `compat`, only its process group.

        Raises:
            NoLongerRunning: It has exited.
            CommandLost: The connection to its server is lost.
            OperationFailed: The system refused; `errno` says why.
        """
        self._check_running()
        with self._blamed():
            killed = await self._kill()
        if not killed:
            raise NoLongerRunning(self._name)

    async def _kill(self) -> bool:
        """Kill it; return False if it has already exited."""
        kill = self._setup.kill
        return await self._process.terminate(tree=kill.tree, streams=kill.streams)

    @property
    def _name(self) -> str:
        return self._setup.process_id or ""

    def _check_running(self) -> None:
        if isinstance(self._failure, CommandLost):
            raise self._failure.with_traceback(None)
        if not self.running:
            raise NoLongerRunning(self._name)

    @contextmanager
    def _blamed(self) -> "Iterator[None]":
        """Replace an error with its real cause: it has exited meanwhile, or is lost."""
        try:
            yield
        except (Refused, RemoteError):
            self._check_running()
            raise
        except ConnectionLost as error:
            raise self._lost(error) from error

    def _lost(self, error: HoldfastError) -> CommandLost:
        return CommandLost(self._name, self._setup.environment_id, error)

    # -- the timeout

    def _arm(self, left: float) -> None:
        part = min(left, LONGEST_TIMER)
        self._timer = self._loop.call_later(part, self._expire, left - part)

    def _expire(self, left: float) -> None:
        if left > 0:
            self._arm(left)
        elif self.running:
            self._timed_out = True
            # The kill may not arrive or be refused: after `sudo` it is another user's process.
            self._timer = self._loop.call_later(END_LIMIT, self._miss_the_exit)
            self._tasks.start(self._time_out())

    async def _time_out(self) -> None:
        with suppress(HoldfastError):
            await self._kill()

    def _miss_the_exit(self) -> None:
        """Finish without the exit, which did not arrive in time."""
        if self.running:
            self._finish()

    # -- the end

    async def wait(self) -> Done:
        """
        Wait until it has exited and its output is drained.

        Waits until the reader has received streamed output; without a reader, it is dropped. May
        be called repeatedly and by several tasks.

        Raises:
            CommandLost: The connection to its server is lost.
            CommandExecClosed: It was ended because its owner was closed.
        """
        while not self._has_ended():
            # Only one task reads at a time. A reader needs all pieces, so leave them to it.
            if self._setup.stream and not self._has_reader() and not self._turn.locked():
                async with self._turn:
                    await self._pull()
                    # A reader may have started meanwhile.
                    if not self._has_reader():
                        self._pending.clear()
                self._changed.set()
            else:
                self._changed.clear()
                await self._changed.wait()
        self._raise_failure()
        # Set by `_finish`; otherwise `_raise_failure` has raised.
        assert self._done is not None
        return self._done

    def _finish(self) -> None:
        """Create the result."""
        verdict = self._verdict()
        out = self._streams.get("stdout") or self._streams["pty"]
        err = self._streams.get("stderr")
        code = verdict.exit_code
        if verdict.limit is LimitKind.WALL_TIME:
            code = TIMED_OUT
        self._done = Done(
            exit_code=UNKNOWN_EXIT if code is None else code,
            verdict=verdict,
            stdout=out.freeze(),
            stderr=b"" if err is None else err.freeze(),
            stdout_cap_reached=out.cap_reached,
            stderr_cap_reached=err is not None and err.cap_reached,
            drain_timed_out=bool(self._drain.given_up) or self._drain.verdict is None,
        )
        self._end()

    def _verdict(self) -> Verdict:
        verdict = self._process.verdict
        took_long = (
            Verdict(
                reason=Reason.LIMIT,
                limit=LimitKind.WALL_TIME,
                detail=limit_of(LimitKind.WALL_TIME).exceeded((self._setup.timeout or 0) * 1000),
            )
            if self._timed_out
            else None
        )
        if verdict is None:
            # Without a timeout, it has waited for the exit.
            assert took_long is not None
            text = f"{took_long.detail}, and its end could not be observed"
            return msgspec.structs.replace(took_long, detail=text)
        # For any other reason, it exited by itself at the last moment.
        if took_long is not None and verdict.reason is Reason.TERMINATED:
            return msgspec.structs.replace(
                verdict, reason=Reason.LIMIT, limit=took_long.limit, detail=took_long.detail
            )
        return verdict

    def _fail(self, error: HoldfastError) -> None:
        if not self._has_ended():
            self._failure = error
            self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._drain.close()
        self._changed.set()
        self._more_kept.set()
        self._owner.command_ended(self)

    async def abort(self, error: HoldfastError) -> None:
        """
        Kill its process tree and wait for the exit; for an owner that closes.

        Tasks that wait for it get the error, unless it has already ended.
        """
        drained = self._has_ended()
        # First, because on other servers a slow reader delays the responses to all calls.
        self._fail(error)
        with suppress(HoldfastError):
            if self._process.verdict is None:
                await self._kill()
                await self._process.exited()
            if not drained or self.still_held:
                # Also kill the processes it left behind, since they are no longer watched.
                await self._process.terminate(left=True, streams="close")

    def release(self) -> None:
        """Free the id of a command started with `hold_id`; call it after sending the response."""
        if not self._released.is_set():
            self._released.set()
            self._owner.command_released(self)

    async def released(self) -> None:
        """
        Wait until its id is free.

        For a server that responds to a control during the drain after the result.
        """
        await self._released.wait()
