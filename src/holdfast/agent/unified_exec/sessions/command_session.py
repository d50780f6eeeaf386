"""
One command of the model: its process, output and end.

A reader takes the events of the process and waits for no consumer but a search. For the first
moments the reader is the call that started it, then a task of its own. Calls take from the buffer
that the reader fills.
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
"""Seconds to wait for the end of the output after an exit: a child may hold it for ever."""

# Calls of one session that are remembered; a model may poll it for days.
_CALL_IDS = 1_000

UNKNOWN_EXIT = limits.TOOL_UNKNOWN_EXIT
"""Exit code of a command that the tools killed, or whose end is unknown."""


class Consumer:
    """Consumer of a session's live output; its methods must neither wait nor fail."""

    def output(self, seq: int, data: bytes) -> None:
        """Take bytes that the command wrote."""

    def gap(self, gap: Gap) -> None:
        """Note that output is lost."""

    def input_wanted(self, kind: WaitingFor) -> None:
        """Note that the command waits for input on its terminal."""

    def settled(self) -> None:
        """Take the end of the command and, as far as it is waited for, of its output."""


class LiveSearch(Protocol):
    """A consumer that takes longer than a command may take to write."""

    async def room(self) -> None:
        """Wait until more output may come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """One command that runs."""

    session_id: int
    call_id: str
    """The id of the `exec_command` that started it."""
    command: tuple[str, ...]
    """The argv of the command, as in `ExecResult`."""
    script: str
    """The text that the model gave."""
    cwd: str
    tty: bool
    environment_id: str
    pid: int | None
    """Its pid on the machine where it runs, if known."""


class CommandSession:
    """
    One command between its start and the report of its end.

    `lock` is held by the call that waits on it. Between two awaits nothing else changes it,
    so no other lock is needed.
    """

    failure_cause: HoldfastError | None = None
    """The error behind a failure; None if its owner failed it."""

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
        """The id of the `exec_command` that started it."""
        self.script = script
        """The text the model gave."""
        self.argv = argv
        self.cwd = cwd
        self.tty = tty
        self.environment_id = environment_id
        self.started = started
        """The time of its start by the clock of the event loop."""
        self.ended_at: float | None = None
        """The time at which its exit was seen, by the same clock."""
        self.last_used = 0
        """A number that grows with every use of any session."""
        self.lock = asyncio.Lock()
        self.verdict: Verdict | None = None
        """The verdict, once the process has exited."""
        self.failure: str | None = None
        """The reason why it cannot be followed any more."""
        self.killed = False
        """True once the tools have killed it: nothing more of it is waited for."""
        self.exited = asyncio.Event()
        """Set at the exit, the failure or the kill."""
        self.settled = asyncio.Event()
        """Set when also its output has ended, or was waited for long enough."""
        self.read_up = False
        """True when nothing more is to be read: the output has ended, or reading has."""
        self.consumers: list[Consumer] = []
        """Consumers of live output."""
        self.search: LiveSearch | None = None
        """The search of a call, if there is one."""
        self.call_ids = deque([call_id], _CALL_IDS)
        """The ids of all its calls, by which its output can be read later."""
        self.output = KeptOutput()
        """All that it wrote, as far as it is kept."""
        # Only on a terminal: a command on pipes has no input to wait for.
        self._input_watch = InputWatch(process, self._input_found) if tty else None
        self._drain = Drain(process, gaps=True, quiet=None, limit=END_OF_OUTPUT)
        # Seconds after an exit; None once they are over, to read without a limit.
        self._wait_for_output: float | None = END_OF_OUTPUT

    # -- looking

    def info(self) -> SessionInfo:
        """Return what callers are told of it."""
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
        """True until its exit, its failure or its kill."""
        return not self.exited.is_set()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; `-1` if the tools killed it or its end is not known."""
        if self.running:
            return None
        if self.killed or self.verdict is None or self.verdict.exit_code is None:
            return UNKNOWN_EXIT
        return self.verdict.exit_code

    @property
    def waiting_for(self) -> WaitingFor | None:
        """The input it waits for; None if it waits for none, or if that is unknown."""
        if self._input_watch is None or not self.running:
            return None
        return self._input_watch.waiting_for

    def look_for_input(self) -> None:
        """Check again soon whether it waits for input, because something has happened."""
        if self._input_watch is not None and self.running:
            self._input_watch.activity()

    def _input_found(self, kind: WaitingFor) -> None:
        for consumer in tuple(self.consumers):
            consumer.input_wanted(kind)

    # -- the reader

    async def read(self, *, until: asyncio.Event | None = None) -> None:
        """
        Take all events of the process, up to its close or until `stop_reading`.

        Sets `exited` and `settled` on the way. The output of what the command left behind
        is read on until then: it belongs to the call that reports the end. Nothing is lost
        if this is cancelled: whoever calls it again reads on.

        Args:
            until: `exited` or `settled`, to stop there, behind the events that came with it.
        """
        drain = self._drain
        try:
            # Events that arrived together with the exit are still read: they belong to this call.
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
                        # It has exited, and another process holds its output.
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
        # A bug here must not leave callers waiting for ever.
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
            # It failed or was killed before, and that is its end.
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
        """End the reader and all waiters; later output does not count."""
        if not self.read_up:
            self.read_up = True
            self._drain.close()
            self._end()

    def mark_killed(self) -> None:
        """Note that the tools kill it: waiting calls end now."""
        if not self.killed and self.running:
            self.killed = True
            self._end()

    def mark_failed(self, reason: str) -> None:
        """Note that it has failed for a reason of its owner, such as a network policy."""
        if self.running:
            self.failure = reason
            self._end()


# -- input


_INTERRUPT = "\x03"
"""The one input that also a command on pipes takes: it becomes a SIGINT."""

INPUT_PAUSE = limits.TOOL_INPUT_PAUSE
"""Seconds that a program gets to react to input before the clock of the call runs."""

_SLOW_LINE = 5.0
"""Seconds that a server has to take input, however short the call: the line may be slow."""


async def send_input(session: CommandSession, chars: str, limit: float, tasks: OwnedTasks) -> None:
    """
    Write to the terminal of a command, or interrupt a command on pipes.

    A command that has exited gets nothing and is no error: its end is reported.

    Args:
        session: The command.
        chars: Not empty.
        limit: Seconds in which the input has to be taken.
        tasks: Where a signal goes on if the line is down.

    Raises:
        SessionStdinClosed: It is on pipes.
        WriteToStdin: It does not take the input.
    """
    if session.tty:
        if session.running:
            await _write(session, chars.encode(), limit)
    elif chars == _INTERRUPT:
        if session.running:
            # A line that is down holds a signal; the call has its deadline all the same.
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
        # The command does not read, and its queue is full.
        raise WriteToStdin from None
    except ConnectionLost as error:
        session.mark_failed(str(error))
        # The session reports the failure.
        return
    except HoldfastError as error:
        if session.exit_code is None and session.process.verdict is None:
            raise WriteToStdin from error
        # It has exited meanwhile, which its reader may not have noticed yet.
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
            # The line broke in the middle, so it may not have arrived. A second interrupt does
            # less harm than none. A session that is lost for good does not run any more.
            await asyncio.sleep(INPUT_PAUSE)
        except HoldfastError:
            # The process is gone.
            return
        else:
            return
