"""
Serves the processes of any `ExecBackend`: each session gets a table of its own.

A task per process reads its events, in order, into a log as the local engine has it. Everything
above the log is the same. While a session holds a process, its task reads nothing.
The backend then makes the process wait. Its errors get their codes like all others: a backend may
be another server, whose lost connection is the failure of one request (`rpc.router.error_of`).
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

import msgspec

from holdfast.backends import ExecBackend, ExecProcess
from holdfast.base.errors import DuplicateProcess, HoldfastError, OutputLost
from holdfast.base.tasks import OwnedTasks, ignoring_stray_cancellation, was_cancelled
from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.process.io.output_reader import CHUNK
from holdfast.engine.process.logged import LoggedProcess
from holdfast.engine.process.observers import ProcessStart
from holdfast.engine.process.process_table import PendingStart, ProcessTable, TableSettings
from holdfast.events import Exited, Gap, ProcessEvent, Reason, Verdict, WaitingFor
from holdfast.wire.protocol.process import OutputChunk, StartParams, StreamsAtEnd, WriteStatus

__all__ = ["BackendProcesses", "FollowedProcess"]

logger = logging.getLogger(__name__)

# Seconds to wait for the close of a process that nobody wants any more.
_END_GRACE = 2.0

# Ends that a kill by this server explains; a limit or a lost process is another matter.
_KILLED = (Reason.EXITED, Reason.SIGNALED, Reason.TERMINATED)


class FollowedProcess(LoggedProcess):
    """A process of a backend, and the log that its events are followed into."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        params: StartParams,
        process: ExecProcess,
        log: OutputLog,
        exited: Callable[[LoggedProcess, Verdict], None],
        tasks: OwnedTasks,
    ) -> None:
        super().__init__(loop, params, log)
        self.pid = process.pid
        self.enforcement = process.enforcement
        self.sandbox_type = process.sandbox_type
        self._process = process
        self._exited = exited
        self._tasks = tasks
        self._has_input = params.tty or params.pipe_stdin
        # Writes and the end of the input, in the order of their requests.
        self._input_order = asyncio.Lock()
        self._released = asyncio.Event()
        log.when_held(self._hold_events)

    # -- output

    async def follow(self) -> None:
        """Read the events into the log, up to the close or the loss of the process."""
        detail = await self._read_events()
        if self.log.closed:
            return
        # Nobody can follow it any more. If it can be reached at all, it must not run on.
        await _end(self._process)
        if self.running:
            self._exit(Verdict(reason=Reason.LOST, exit_code=-1, detail=detail))
        self.log.close()

    async def _read_events(self) -> str:
        """Read the events into the log; return why there are no more, in case it is not closed."""
        try:
            # Without gaps: a client would wait for ever for a number that is not sent.
            async with self._process.events(stream_ends=True) as stream:
                async for event in stream:
                    if self.log.is_held:
                        await self._wait_released()
                    self._record(event)
        except OutputLost as error:
            # Its own text is advice for whoever reads the stream.
            return f"its output {error.first_seq} to {error.last_seq} was lost"
        except HoldfastError as error:
            return str(error)
        except asyncio.CancelledError:
            if was_cancelled():
                raise
            return "the backend cancelled its events"
        except Exception as error:
            logger.exception("the backend failed on process %s", self.process_id)
            return f"the backend failed: {error!r}"
        return "its events ended before its close"

    def _record(self, event: ProcessEvent) -> None:
        match event:
            case Exited():
                # The reason of our own kill is not known to the backend.
                self._exit(event.verdict)
            case OutputChunk():
                # Clients refuse an event of more than 1 MiB, and a backend may have any size.
                for start in range(0, len(event.chunk), CHUNK):
                    self.log.append(event.stream, event.chunk[start : start + CHUNK])
            case Gap():
                # Not asked for, but a backend may have it all the same.
                raise OutputLost(event.first_seq, event.last_seq)
            case _:
                self.log.record(event)

    def _exit(self, verdict: Verdict) -> None:
        if self._killed is not None and verdict.reason in _KILLED:
            verdict = msgspec.structs.replace(verdict, reason=self._killed)
        self.log.exit(verdict)
        self._exited(self, verdict)

    async def _wait_released(self) -> None:
        """Wait until nobody holds the output, or the process has exited."""
        while self.log.is_held and not self._abandoned:
            if not self.running:
                await self._released.wait()
                continue
            # What was written before the exit is read all the same, whoever is behind.
            if self._process.verdict is not None:
                return
            exited = asyncio.ensure_future(self._process.exited())
            released = asyncio.ensure_future(self._released.wait())
            try:
                await asyncio.wait((exited, released), return_when=asyncio.FIRST_COMPLETED)
            finally:
                released.cancel()
                exited.cancel()
            if exited.done() and not exited.cancelled() and exited.exception() is not None:
                # The next event raises it, too.
                return

    def _hold_events(self, held: bool) -> None:
        self._released.clear() if held else self._released.set()

    # -- input

    async def write(self, data: bytes, write_id: str | None = None) -> WriteStatus:
        if not self._has_input or self.input_refused:
            return WriteStatus.STDIN_CLOSED
        async with self._input_order:
            return await self._process.write(data, write_id)

    async def close_stdin(self) -> None:
        async with self._input_order:
            await self._process.close_stdin()

    async def resize(self, rows: int, cols: int) -> None:
        await self._process.resize(rows, cols)

    async def waiting_for(self) -> WaitingFor:
        return await self._process.waiting_for()

    # -- ending

    async def signal(self, name: str) -> None:
        # By the protocol's own name where it has one, which every server knows.
        await self._process.signal("interrupt" if name == "SIGINT" else name)

    async def terminate(
        self, *, tree: bool = False, left: bool = False, streams: StreamsAtEnd = "close"
    ) -> bool:
        # First: a write behind this request is refused, as on this machine.
        self.input_refused = self.input_refused or (self._has_input and self.running)
        return await self._process.terminate(tree=tree, left=left, streams=streams)

    def kill_group(self, reason: Reason) -> None:
        if self.log.closed:
            return
        self._abandoned = True
        self._released.set()
        self._killed = self._killed or reason
        self._tasks.start(_end(self._process))


class BackendProcesses(ProcessTable):
    """
    The processes of one session, started on a backend.

    Clients choose the ids of their processes without knowing of each other. So an id that the
    backend has already gets a suffix there, which no client sees.
    """

    def __init__(self, backend: ExecBackend, tasks: OwnedTasks, settings: TableSettings) -> None:
        """
        Args:
            backend: Starts the processes of all sessions.
            tasks: Own the followers of the processes, which outlive the session.
            settings: Those of the server.
        """
        super().__init__(settings)
        self._backend = backend
        self._tasks = tasks

    def launch(self, params: StartParams) -> Awaitable[FollowedProcess]:
        return self._begin(params, self._launch)

    def _launch(self, start: ProcessStart) -> Awaitable[FollowedProcess]:
        self._check_free(start.params.process_id)
        return self._start_later(start, self._complete, is_plain=True)

    async def _complete(
        self, start: ProcessStart, pending: PendingStart[FollowedProcess]
    ) -> FollowedProcess:
        params = start.params
        pending.check()
        log = self._make_log(params)
        self._observers.prepared(start)
        started = await self._start(params)
        if pending.called_off:
            await _end(started)
        pending.check()
        process = FollowedProcess(
            self._loop, params, started, log, self._observers.exited, self._tasks
        )
        self._add(start, process)
        # Its first step comes after the answer to the start.
        self._tasks.start(self._follow(process))
        return process

    async def _start(self, params: StartParams) -> ExecProcess:
        try:
            return await self._backend.start(params)
        except DuplicateProcess:
            # Another session has the id, or the backend keeps it longer than this table.
            process_id = f"{params.process_id}~{os.urandom(4).hex()}"
            return await self._backend.start(msgspec.structs.replace(params, process_id=process_id))

    async def _follow(self, process: FollowedProcess) -> None:
        await process.follow()
        self._process_closed(process)


async def _end(process: ExecProcess) -> None:
    """Kill a process that nobody wants any more, and wait a little for its close."""
    try:
        with ignoring_stray_cancellation():
            async with asyncio.timeout(_END_GRACE):
                await process.terminate(left=True)
                await process.wait()
    except Exception as error:  # noqa: BLE001 - the caller has to report the end all the same
        logger.info("process %s cannot be killed: %r", process.process_id, error)
