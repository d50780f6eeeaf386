"""
Serves the processes of any `ExecBackend`: each session gets a table of its own.

A task per process reads its events, in order, into a log as the local engine has it. Everything
above the log is the same. While a session holds a process, its task reads nothing.
The backend then makes the process wait.
"""

import asyncio
import logging
import os
import signal as signals
from collections.abc import Awaitable

import msgspec

from holdfast.backends import ExecBackend, ExecProcess
from holdfast.base.errors import DuplicateProcess, HoldfastError, OutputLost, StdinClosed
from holdfast.base.tasks import OwnedTasks, was_cancelled
from holdfast.engine.process.checked_arguments import check_streams
from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.process.io.output_reader import CHUNK
from holdfast.engine.process.observers import Observers, ProcessStart
from holdfast.engine.process.pending_start import PendingStart
from holdfast.engine.process.process_table import ProcessTable, TableSettings
from holdfast.engine.process.served import ServedProcess
from holdfast.events import Exited, Gap, ProcessEvent, Reason, Verdict, WaitingFor
from holdfast.server.backend_errors import backend_errors
from holdfast.wire.protocol.process import OutputChunk, StartParams, StreamsAtEnd, WriteStatus

__all__ = ["BackendProcess", "BackendProcesses", "BackendSessions"]

logger = logging.getLogger(__name__)

# Seconds to wait for the close of a process that nobody wants any more.
_END_GRACE = 2.0

# Ends that a kill by this server explains; a limit or a lost process is another matter.
_KILLED = (Reason.EXITED, Reason.SIGNALED, Reason.TERMINATED)


class BackendSessions:
    """
    An `ExecBackend` that all sessions of a server share.

    Clients choose the ids of their processes without knowing of each other. So an id that the
    backend has already gets a suffix there, which no client sees.
    """

    def __init__(self, backend: ExecBackend) -> None:
        self._backend = backend
        self._tasks = OwnedTasks()

    def open_session(self, settings: TableSettings) -> "BackendProcesses":
        """Return the empty table of a new session."""
        return BackendProcesses(self._backend, settings, self._tasks)

    async def aclose(self) -> None:
        """Stop following the processes that are not closed; the backend is the caller's."""
        await self._tasks.aclose()


class BackendProcess(ServedProcess):
    """A process behind the seam, its log here, and the ways to act on it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        params: StartParams,
        process: ExecProcess,
        log: OutputLog,
        observers: Observers,
    ) -> None:
        super().__init__(loop, params, log)
        self.pid = process.pid
        self.enforcement = process.enforcement
        self.sandbox_type = process.sandbox_type
        self._process = process
        self._observers = observers
        self._has_input = params.tty or params.pipe_stdin
        # Writes and the end of the input, in the order of their requests.
        self._input_order = asyncio.Lock()
        self._terminated = False
        # The reason of our kill, if there was one; it becomes the reason of the verdict.
        self._killed: Reason | None = None
        # Readers that cannot keep up. The events are not read until it is empty.
        self._holders: set[object] = set()
        self._released = asyncio.Event()
        # True if the owner is gone, so that no reader is waited for.
        self._abandoned = False

    @property
    def left_something(self) -> bool:
        """True, since the seam does not say; a client then asks for a kill that may find none."""
        return True

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
                    if self._holders:
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
        self.log.record(Exited(self.log.next_seq, verdict))
        self._observers.exited(self, verdict)

    async def _wait_released(self) -> None:
        """Wait until nobody holds the output, or the process has exited."""
        while self._holders and not self._abandoned:
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

    def hold_output(self, holder: object) -> None:
        self._holders.add(holder)
        self._released.clear()

    def release_output(self, holder: object) -> None:
        self._holders.discard(holder)
        if not self._holders:
            self._released.set()

    # -- input

    def write(self, data: bytes, write_id: str) -> WriteStatus | asyncio.Future[WriteStatus]:
        if not self._has_input:
            return WriteStatus.STDIN_CLOSED
        self._check_not_terminated()
        return self._loop.create_task(self._write(data, write_id))

    async def _write(self, data: bytes, write_id: str) -> WriteStatus:
        async with self._input_order:
            with backend_errors():
                status = await self._process.write(data, write_id)
        if status is WriteStatus.STDIN_CLOSED:
            self._check_not_terminated()
        return status

    def _check_not_terminated(self) -> None:
        # On the wire that is an error; on the seam it is a status.
        if self._terminated:
            raise StdinClosed("failed to write to process stdin")

    async def close_stdin(self) -> None:
        async with self._input_order:
            with backend_errors():
                await self._process.close_stdin()

    async def resize(self, rows: int, cols: int) -> None:
        with backend_errors():
            await self._process.resize(rows, cols)

    async def waiting_for(self) -> WaitingFor:
        with backend_errors():
            return await self._process.waiting_for()

    # -- ending

    async def signal(self, number: int) -> None:
        # By the protocol's own name where it has one, which every server knows.
        name = "interrupt" if number == signals.SIGINT else signals.Signals(number).name
        with backend_errors():
            await self._process.signal(name)

    async def ask_to_end(self, reason: Reason) -> None:
        if self.running and self._killed is None:
            self._killed = reason
        await self.signal(signals.SIGTERM)
        # A stopped process takes the signal only when it goes on.
        await self.signal(signals.SIGCONT)

    async def terminate(self, *, tree: bool, left: bool, streams: StreamsAtEnd) -> bool:
        """Kill it; see `ExecProcess.terminate`."""
        # At once: a write behind this request is refused, as on this machine.
        self._terminated = self._terminated or self.running
        with backend_errors():
            return await self._process.terminate(tree=tree, left=left, streams=streams)

    async def kill(self, reason: Reason) -> None:
        """Kill it with all it left in its group; for an owner that goes away."""
        self._abandoned = True
        self._released.set()
        if self._killed is None:
            self._killed = reason
        try:
            with backend_errors():
                await self._process.terminate(left=True)
        except Exception as error:  # noqa: BLE001 - nobody waits for the answer
            _log_survivor(self._process, error)


class BackendProcesses(ProcessTable[BackendProcess]):
    """The processes of one session, started on a backend."""

    def __init__(self, backend: ExecBackend, settings: TableSettings, tasks: OwnedTasks) -> None:
        """
        Args:
            backend: Starts the processes.
            settings: Those of the server.
            tasks: Own the followers of the processes, which outlive the session.
        """
        super().__init__(settings)
        self._backend = backend
        self._tasks = tasks

    def launch(self, params: StartParams) -> Awaitable[BackendProcess]:
        start = ProcessStart(params)
        self._observers.preparing(start)
        process_id = params.process_id
        if process_id in self._processes or process_id in self._starting:
            error = DuplicateProcess(process_id)
            self._observers.failed(start, error)
            raise error
        pending: PendingStart[BackendProcess] = PendingStart(
            process_id, lambda pending: self._launch(start, pending), is_plain=True
        )
        self._starting[process_id] = pending
        return pending

    async def _launch(
        self, start: ProcessStart, pending: PendingStart[BackendProcess]
    ) -> BackendProcess:
        params = start.params
        try:
            pending.check()
            log = self._make_log(params)
            self._observers.prepared(start)
            with backend_errors():
                started = await self._start(params)
            if pending.called_off:
                await _end(started)
            pending.check()
            process = BackendProcess(self._loop, params, started, log, self._observers)
            # Registered before the observers are called: they may look it up by its id.
            self._processes[params.process_id] = process
            self._observers.started(start, process)
        except BaseException as error:
            self._observers.failed(start, error)
            raise
        finally:
            del self._starting[params.process_id]
            # Last: requests that waited for this start find the process, or no start any more.
            for call in pending.afterwards or ():
                call()
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

    async def _follow(self, process: BackendProcess) -> None:
        await process.follow()
        self._process_closed(process)

    def terminate(
        self,
        process_id: str,
        *,
        tree: bool = False,
        left: bool = False,
        streams: StreamsAtEnd = "close",
    ) -> bool | Awaitable[bool]:
        check_streams(streams)
        starting = self._starting.get(process_id)
        if starting is not None:
            starting.call_off()
            return True
        process = self._processes.get(process_id)
        if process is None:
            return False
        return process.terminate(tree=tree, left=left, streams=streams)

    def end(self, reason: Reason) -> None:
        self._closed.keep_no_more()
        self._call_off_starts()
        for process in list(self._processes.values()):
            if not process.log.closed:
                self._tasks.start(process.kill(reason))


async def _end(process: ExecProcess) -> None:
    """Kill a process that nobody wants any more, and wait a little for its close."""
    try:
        async with asyncio.timeout(_END_GRACE):
            with backend_errors():
                await process.terminate(left=True)
                await process.wait()
    except Exception as error:  # noqa: BLE001 - the caller has to report the end all the same
        _log_survivor(process, error)


def _log_survivor(process: ExecProcess, error: Exception) -> None:
    logger.info("process %s cannot be killed: %r", process.process_id, error)
