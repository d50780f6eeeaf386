"""
Serves the processes of any `ExecBackend`, with a process table per session.

A task per process reads its events, in order, into a log like that of the local engine. Everything
above the log is the same. While a session holds a process, its task does not read, and the backend
makes the process wait. Its errors get codes like all others: the backend may be another server,
whose lost connection fails a single request (`rpc.router.error_of`).
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

# Seconds to wait for an abandoned process to close.
_END_GRACE = 2.0

# Reasons that a kill by this server overrides, unlike a limit or a lost process.
_KILLED = (Reason.EXITED, Reason.SIGNALED, Reason.TERMINATED)


class FollowedProcess(LoggedProcess):
    """A process of a backend, and the log that its events are written to."""

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
        # Keeps writes and the close of stdin in the order of their requests.
        self._input_order = asyncio.Lock()
        self._released = asyncio.Event()
        log.when_held(self._hold_events)

    # -- output

    async def follow(self) -> None:
        """Read the events into the log, until the process is closed or lost."""
        detail = await self._read_events()
        if self.log.closed:
            return
        # No client can follow it. If it can still be reached, it must not keep running.
        await _end(self._process)
        if self.running:
            self._exit(Verdict(reason=Reason.LOST, exit_code=-1, detail=detail))
        self.log.close()

    async def _read_events(self) -> str:
        """Read the events into the log; return why they ended, for a process that is not closed."""
        try:
            # Without gaps: a client would wait for ever for a missing number.
            async with self._process.events(stream_ends=True) as stream:
                async for event in stream:
                    if self.log.is_held:
                        await self._wait_released()
                    self._record(event)
        except OutputLost as error:
            # The text of the error is advice for a reader of the stream.
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
                # The backend does not know why this server killed the process.
                self._exit(event.verdict)
            case OutputChunk():
                # Clients refuse events over 1 MiB, but those of a backend may have any size.
                for start in range(0, len(event.chunk), CHUNK):
                    self.log.append(event.stream, event.chunk[start : start + CHUNK])
            case Gap():
                # Not requested, but a backend may send it anyway.
                raise OutputLost(event.first_seq, event.last_seq)
            case _:
                self.log.record(event)

    def _exit(self, verdict: Verdict) -> None:
        if self._killed is not None and verdict.reason in _KILLED:
            verdict = msgspec.structs.replace(verdict, reason=self._killed)
        self.log.exit(verdict)
        self._exited(self, verdict)

    async def _wait_released(self) -> None:
        """Wait until the output is not held, or the process has exited."""
        while self.log.is_held and not self._abandoned:
            if not self.running:
                await self._released.wait()
                continue
            # Output written before the exit is read even if a client is behind.
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
        # Prefer the protocol's name, which every server knows.
        await self._process.signal("interrupt" if name == "SIGINT" else name)

    async def terminate(
        self, *, tree: bool = False, left: bool = False, streams: StreamsAtEnd = "close"
    ) -> bool:
        # First, so that later writes are refused, as by the local engine.
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
    Processes of a session that are started on a backend.

    Clients choose process ids independently. So an id that exists on the backend gets a suffix
    there, which clients do not see.
    """

    def __init__(self, backend: ExecBackend, tasks: OwnedTasks, settings: TableSettings) -> None:
        """
        Args:
            backend: Starts the processes of all sessions.
            tasks: Owns the tasks that read events, which outlive the session.
            settings: Settings of the server.
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
        # Its first step runs after the response to the start.
        self._tasks.start(self._follow(process))
        return process

    async def _start(self, params: StartParams) -> ExecProcess:
        try:
            return await self._backend.start(params)
        except DuplicateProcess:
            # Another session uses the id, or the backend remembers it longer than this table.
            process_id = f"{params.process_id}~{os.urandom(4).hex()}"
            return await self._backend.start(msgspec.structs.replace(params, process_id=process_id))

    async def _follow(self, process: FollowedProcess) -> None:
        await process.follow()
        self._process_closed(process)


async def _end(process: ExecProcess) -> None:
    """Kill an abandoned process, and wait briefly for its close."""
    try:
        with ignoring_stray_cancellation():
            async with asyncio.timeout(_END_GRACE):
                await process.terminate(left=True)
                await process.wait()
    except Exception as error:  # noqa: BLE001 - the caller has to report the end all the same
        logger.info("process %s cannot be killed: %r", process.process_id, error)
