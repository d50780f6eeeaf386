"""
A command of the model: its process, output and end.

A reader receives the events of the process, and only waits for a consumer that searches. At first
the reader is the call that started the command, later a separate task. Calls take output from the
buffer that the reader fills.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from holdfast.agent.unified_exec.output.kept_output import KeptOutput
from holdfast.agent.unified_exec.tool_errors import SessionStdinClosed, WriteToStdin
from holdfast.agent.unified_exec.waiting.input_watch import InputWatch
from holdfast.backends import ExecProcess
from holdfast.base.dialect import limits
from holdfast.base.errors import ConnectionLost, HoldfastError
from holdfast.base.tasks import OwnedTasks
from holdfast.environments.collect.drain import Drain
from holdfast.events import Exited, Gap, Verdict, WaitingFor
from holdfast.wire.protocol.process import OutputChunk, WriteStatus

__all__ = [
    "END_OF_OUTPUT",
    "INPUT_PAUSE",
    "UNKNOWN_EXIT",
    "CommandSession",
    "Consumer",
    "SessionInfo",
    "send_input",
]

END_OF_OUTPUT = limits.TOOL_END_OF_OUTPUT
"""Seconds to wait for the end of the output after an exit: a child may hold it forever."""

# Most call ids to remember per session; a model may poll it for days.
_CALL_IDS = 1_000

UNKNOWN_EXIT = limits.TOOL_UNKNOWN_EXIT
"""Exit code of a command that the tools killed or whose end is unknown."""


class Consumer:
    """Consumer of a session's live output. Its methods must not wait or fail."""

    def output(self, seq: int, data: bytes) -> None:
        """Receive bytes that the command wrote."""

    def gap(self, gap: Gap) -> None:
        """Note that output was lost."""

    def input_wanted(self, kind: WaitingFor) -> None:
        """Note that the command waits for input on its terminal."""

    def settled(self) -> None:
        """Note that the command has ended, and its output has ended or was given up."""


class LiveSearch(Protocol):
    """A consumer that may be slower than the command."""

    async def room(self) -> None:
        """Wait until there is room for more output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A running command."""

    session_id: int
    call_id: str
    """The id of the `exec_command` call that started it."""
    command: tuple[str, ...]
    """The argv of the command, as in `ExecResult`."""
    script: str
    """The script as the model wrote it."""
    cwd: str
    tty: bool
    environment_id: str
    pid: int | None
    """The pid on the machine where it runs, if known."""


class CommandSession:
    """
    A command between its start and the report of its end.

    The call that waits for it holds `lock`. Other changes happen between two awaits and need no
    lock.
    """

    failure_cause: HoldfastError | None = None
    """The error that caused a failure; None after `mark_failed`."""

    def __init__(
        self,
        process: ExecProcess,
        *,
        session_id: int,
        call_id: str,
        script: str,
        argv: tuple[str, ...],
        cwd: str,
        tty: bool,
        environment_id: str,
        started: float,
    ) -> None:
        self.process = process
        self.session_id = session_id
        self.call_id = call_id
        """The id of the `exec_command` call that started it."""
        self.script = script
        """The script as the model wrote it."""
        self.argv = argv
        self.cwd = cwd
        self.tty = tty
        self.environment_id = environment_id
        self.started = started
        """When it was started, by the event loop's clock."""
        self.ended_at: float | None = None
        """When its exit was seen, by the same clock."""
        self.last_used = 0
        """A number that grows with each use of any session."""
        self.lock = asyncio.Lock()
        self.verdict: Verdict | None = None
        """The verdict; None until the process has exited."""
        self.failure: str | None = None
        """The reason why it can no longer be followed, if so."""
        self.killed = False
        """True once the tools have killed it; then waits end."""
        self.exited = asyncio.Event()
        """Set on exit, failure or kill."""
        self.settled = asyncio.Event()
        """Set when in addition the output has ended or was given up."""
        self.read_up = False
        """True when there is nothing more to read: the output has ended, or reading was stopped."""
        self.consumers: list[Consumer] = []
        """Consumers of live output."""
        self.search: LiveSearch | None = None
        """The search of the current call, if any."""
        self.call_ids = deque([call_id], _CALL_IDS)
        """The ids of its calls, by which its output can be read later."""
        self.output = KeptOutput()
        """Its output, as far as it is kept."""
        # Only on a terminal: a command on pipes has no input.
        self._input_watch = InputWatch(process, self._input_found) if tty else None
        self._drain = Drain(process, gaps=True, quiet=None, limit=END_OF_OUTPUT)
        # Seconds to wait after an exit; None once they are over, to read without a limit.
        self._wait_for_output: float | None = END_OF_OUTPUT

    # -- state

    def info(self) -> SessionInfo:
        """Return a description of the command."""
        return SessionInfo(
            session_id=self.session_id,
            call_id=self.call_id,
            command=self.argv,
            script=self.script,
            cwd=self.cwd,
            tty=self.tty,
            environment_id=self.environment_id,
            pid=self.process.pid,
        )

    @property
    def running(self) -> bool:
        """True until it exits, fails or is killed."""
        return not self.exited.is_set()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -1 if the tools killed it or its end is unknown."""
        if self.running:
            return None
        if self.killed or self.verdict is None or self.verdict.exit_code is None:
            return UNKNOWN_EXIT
        return self.verdict.exit_code

    @property
    def waiting_for(self) -> WaitingFor | None:
        """The input it waits for; None if it does not, or if unknown."""
        if self._input_watch is None or not self.running:
            return None
        return self._input_watch.waiting_for

    def look_for_input(self) -> None:
        """Check again soon whether it waits for input, after an event."""
        if self._input_watch is not None and self.running:
            self._input_watch.activity()

    def _input_found(self, kind: WaitingFor) -> None:
        for consumer in tuple(self.consumers):
            consumer.input_wanted(kind)

    # -- the reader

    async def read(self, *, until: asyncio.Event | None = None) -> None:
        """
        Read all events of the process until it is closed or `stop_reading` is called.

        Sets `exited` and `settled`. Output of processes that the command left behind belongs to the
        call that reports the end. A cancellation loses nothing: the next call of this method
        continues.

        Args:
            until: `exited` or `settled`, to stop once it is set and the events that arrived with
                it are read.
        """
        drain = self._drain
        try:
            # Still read events that arrived together with the exit: they belong to this call.
            while not self.read_up and (
                until is None or not until.is_set() or (drain.ready and not self.settled.is_set())
            ):
                event = await drain.next(quiet=None, limit=self._wait_for_output)
                if type(event) is OutputChunk:
                    self._take(event)
                    if self.search is not None:
                        await self.search.room()
                elif type(event) is Exited:
                    self._exit(event.verdict)
                elif type(event) is Gap:
                    self.output.gap(event.first_seq, event.last_seq)
                    for consumer in self.consumers:
                        consumer.gap(event)
                elif event is None or drain.closed:
                    if drain.closed or self._wait_for_output is None:
                        self.stop_reading()
                    else:
                        # It has exited, but another process holds its output open.
                        self._wait_for_output = None
                        self._settle()
        # A cancelled reader keeps its position: the next one continues.
        except asyncio.CancelledError:
            raise
        except HoldfastError as error:
            if self.running:
                self.failure = str(error)
                self.failure_cause = error
            self.stop_reading()
        # A bug here must not make callers wait forever.
        except BaseException:
            self.stop_reading()
            raise

    def _take(self, event: OutputChunk) -> None:
        self.output.append(event.seq, event.chunk)
        if self._input_watch is not None:
            self._input_watch.activity()
        for consumer in self.consumers:
            consumer.output(event.seq, event.chunk)

    def _exit(self, verdict: Verdict) -> None:
        if not self.running:
            # It failed or was killed before, which counts as its end.
            return
        self.verdict = verdict
        self.ended_at = asyncio.get_running_loop().time()
        self.exited.set()

    def _end(self) -> None:
        if self.ended_at is None:
            self.ended_at = asyncio.get_running_loop().time()
        if self._input_watch is not None:
            self._input_watch.close()
        self.exited.set()
        self._settle()

    def _settle(self) -> None:
        if not self.settled.is_set():
            self.settled.set()
            for consumer in tuple(self.consumers):
                consumer.settled()

    def stop_reading(self) -> None:
        """Stop reading and wake all waiters; later output is ignored."""
        if not self.read_up:
            self.read_up = True
            self._drain.close()
            self._end()

    def mark_killed(self) -> None:
        """Mark it as killed by the tools, which ends waiting calls."""
        if not self.killed and self.running:
            self.killed = True
            self._end()

    def mark_failed(self, reason: str) -> None:
        """Mark it as failed for an external reason, such as a network policy."""
        if self.running:
            self.failure = reason
            self._end()


# -- input


_INTERRUPT = "\x03"
"""The only input for a command on pipes: it becomes a SIGINT."""

INPUT_PAUSE = limits.TOOL_INPUT_PAUSE
"""Seconds for the program to react to input before the clock of the call starts."""

_SLOW_LINE = 5.0
"""Least seconds for a server to accept input: the connection may be slow."""


async def send_input(session: CommandSession, chars: str, limit: float, tasks: OwnedTasks) -> None:
    """
    Write to a command's terminal, or interrupt a command on pipes.

    Input for a command that has exited is dropped without an error: its end is reported.

    Args:
        session: The command.
        chars: The input, which is not empty.
        limit: Seconds for the command to accept the input.
        tasks: Continue to send a signal while the connection is down.

    Raises:
        SessionStdinClosed: The command is on pipes.
        WriteToStdin: The input was not accepted.
    """
    if session.tty:
        if session.running:
            await _write(session, chars.encode(), limit)
    elif chars == _INTERRUPT:
        if session.running:
            # A signal waits while the connection is down, but the call must keep its deadline.
            await asyncio.wait([tasks.start(_interrupt(session))], timeout=INPUT_PAUSE)
    elif session.running or not session.process.remote:
        raise SessionStdinClosed


async def _write(session: CommandSession, data: bytes, limit: float) -> None:
    if session.process.remote:
        limit = max(limit, _SLOW_LINE)
    try:
        async with asyncio.timeout(limit):
            status = await session.process.write(data)
    except TimeoutError:
        # The command does not read and its queue is full.
        raise WriteToStdin from None
    except ConnectionLost as error:
        session.mark_failed(str(error))
        # The session reports the failure.
        return
    except HoldfastError as error:
        if session.exit_code is None and session.process.verdict is None:
            raise WriteToStdin from error
        # It has exited, which its reader may not have noticed yet.
        return
    if status is WriteStatus.STARTING:
        raise WriteToStdin
    session.look_for_input()
    if status is WriteStatus.ACCEPTED:
        await asyncio.sleep(INPUT_PAUSE)


async def _interrupt(session: CommandSession) -> None:
    while session.running:
        try:
            await session.process.signal("interrupt")
        except ConnectionLost:
            # The connection was lost during the call, so the signal may not have arrived. A second
            # interrupt does less harm than none. A session lost for good is no longer running.
            await asyncio.sleep(INPUT_PAUSE)
        except HoldfastError:
            # The process is gone.
            return
        else:
            return
