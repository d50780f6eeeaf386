"""Records what happens on an `ExecBackend` or in an environment."""

from typing import Self

from holdfast.backends import (
    EventStream,
    ExecBackend,
    ExecProcess,
    FileSystem,
    HttpClient,
    ReportsCapabilities,
)
from holdfast.base.errors import HoldfastError
from holdfast.base.tasks import OwnedTasks
from holdfast.engine.process.variable_marks import FirstCommand
from holdfast.environments.environment import Environment, Status
from holdfast.events import Gap, ProcessEvent, StreamEnded, Verdict, WaitingFor
from holdfast.testing.fake_calls import HOLDFAST, Asked
from holdfast.testing.recording import LostProcess, Recording
from holdfast.wire.protocol.handshake import Capabilities, EnvironmentInfo
from holdfast.wire.protocol.process import (
    Enforcement,
    OutputChunk,
    OutputStream,
    ReadResponse,
    StartParams,
    StreamsAtEnd,
    WriteStatus,
)

__all__ = ["RecordedEnvironment", "RecordedProcess", "RecordedStream", "Recorder"]


class Recorder:
    """
    An `ExecBackend` that starts processes on another backend and records what happens.

    Use it as a context manager: at its end it stops reading events of processes that still run.
    The caller keeps ownership of the other backend.
    """

    def __init__(self, backend: ExecBackend, recording: Recording | None = None) -> None:
        """
        Args:
            backend: Starts the processes: local, remote or fake.
            recording: Receives the entries; a new one by default.
        """
        self.recording = Recording() if recording is None else recording
        self._backend = backend
        self._tasks = OwnedTasks()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop recording."""
        await self._tasks.aclose()

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the other backend, so that a server announces only those."""
        backend = self._backend
        return backend.capabilities if isinstance(backend, ReportsCapabilities) else HOLDFAST

    async def start(self, params: StartParams) -> "RecordedProcess":
        # Before the start, so that one that fails or never returns is also recorded.
        self.recording.add(params.process_id, params)
        try:
            process = await self._backend.start(params)
        except HoldfastError as error:
            self.recording.add(params.process_id, error)
            raise
        history = _History(process.process_id, self.recording)
        # A separate reader, so that the recording does not depend on other readers.
        self._tasks.start(self._follow(process, history))
        return RecordedProcess(process, history)

    async def _follow(self, process: ExecProcess, history: "_History") -> None:
        try:
            async with process.events(gaps=True, stream_ends=True) as stream:
                async for event in stream:
                    history.happened(event)
        except HoldfastError as error:
            # The process can no longer be reached.
            history.add(LostProcess(error))


class _History:
    """
    The entries of one process, each event once.

    Every reader reports its events before passing them on. So a call made in response to some
    output always follows that output.
    """

    def __init__(self, process_id: str, recording: Recording) -> None:
        self._process_id = process_id
        self._recording = recording
        self._last_seq = 0
        self._ended: set[OutputStream] = set()

    def add(self, what: Asked | LostProcess) -> None:
        """Record a call, or the loss of the process."""
        self._recording.add(self._process_id, what)

    def happened(self, event: ProcessEvent) -> None:
        """Record an event that no reader has reported yet."""
        if isinstance(event, StreamEnded):
            if event.stream in self._ended:
                return
            self._ended.add(event.stream)
        elif isinstance(event, Gap):
            if event.first_seq != self._last_seq + 1:
                return
            self._last_seq = event.last_seq
        # A reader that skipped events leaves the recording to the one that reads everything.
        elif event.seq != self._last_seq + 1:
            return
        else:
            self._last_seq = event.seq
        self._recording.add(self._process_id, event)


class RecordedStream:
    """The events of a recorded process for one reader."""

    def __init__(self, stream: EventStream, history: _History, *, stream_ends: bool) -> None:
        self._stream = stream
        self._history = history
        self._stream_ends = stream_ends

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ProcessEvent:
        # Pass on the ends of streams only if the reader asked for them.
        while True:
            event = await anext(self._stream)
            self._history.happened(event)
            if self._stream_ends or not isinstance(event, StreamEnded):
                return event

    def take_output(self, most: int) -> OutputChunk | None:
        chunk = self._stream.take_output(most)
        if chunk is not None:
            self._history.happened(chunk)
        return chunk

    def close(self) -> None:
        self._stream.close()

    @property
    def ready(self) -> bool:
        return self._stream.ready

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()


class RecordedProcess:
    """A process whose calls are recorded and passed on."""

    def __init__(self, process: ExecProcess, history: _History) -> None:
        self._process = process
        self._history = history

    @property
    def process_id(self) -> str:
        return self._process.process_id

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def remote(self) -> bool:
        return self._process.remote

    @property
    def enforcement(self) -> Enforcement | None:
        return self._process.enforcement

    @property
    def sandbox_type(self) -> str:
        return self._process.sandbox_type

    @property
    def verdict(self) -> Verdict | None:
        return self._process.verdict

    async def exited(self) -> Verdict:
        return await self._process.exited()

    async def wait(self) -> Verdict:
        return await self._process.wait()

    def events(
        self, after_seq: int = 0, *, gaps: bool = False, stream_ends: bool = False
    ) -> RecordedStream:
        # With the ends of streams, which must be recorded before later events.
        stream = self._process.events(after_seq, gaps=gaps, stream_ends=True)
        return RecordedStream(stream, self._history, stream_ends=stream_ends)

    async def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse:
        # A caller that polls sees output here first and may act on it.
        found = await self._process.read(after_seq, max_bytes, wait)
        for chunk in found.chunks:
            self._history.happened(chunk)
        return found

    async def waiting_for(self) -> WaitingFor:
        return await self._process.waiting_for()

    # -- recorded before they are made, so that failed calls are included

    async def write(self, data: bytes, write_id: str | None = None) -> WriteStatus:
        self._history.add(Asked("write", (data, write_id)))
        return await self._process.write(data, write_id)

    async def close_stdin(self) -> None:
        self._history.add(Asked("close_stdin"))
        await self._process.close_stdin()

    async def resize(self, rows: int, cols: int) -> None:
        self._history.add(Asked("resize", (rows, cols)))
        await self._process.resize(rows, cols)

    async def signal(self, name: str) -> None:
        self._history.add(Asked("signal", (name,)))
        await self._process.signal(name)

    async def terminate(
        self, *, tree: bool = False, left: bool = False, streams: StreamsAtEnd = "close"
    ) -> bool:
        self._history.add(Asked("terminate", (tree, left, streams)))
        return await self._process.terminate(tree=tree, left=left, streams=streams)


class RecordedEnvironment(Environment):
    """
    An environment whose processes are recorded.

    Files, HTTP calls and the connection are those of the wrapped environment, which it closes when
    it is closed itself.
    """

    def __init__(self, environment: Environment, recording: Recording | None = None) -> None:
        """
        Args:
            environment: Any environment.
            recording: Receives the entries; a new one by default.
        """
        self._inner = environment
        self._recorder = Recorder(environment.backend, recording)
        self.recording = self._recorder.recording
        self.id = environment.id
        self.is_remote = environment.is_remote
        self.backend = self._recorder
        self.cwd = environment.cwd
        self.sandbox = environment.sandbox

    @property
    def where(self) -> str:
        """See `Environment.where`."""
        return self._inner.where

    @property
    def filesystem(self) -> FileSystem:  # type: ignore[override]
        """See `Environment.filesystem`."""
        return self._inner.filesystem

    @property
    def http(self) -> HttpClient:  # type: ignore[override]
        """See `Environment.http`."""
        return self._inner.http

    def start_connecting(self) -> None:
        self._inner.start_connecting()

    async def wait_ready(self) -> None:
        await self._inner.wait_ready()

    async def info(self) -> EnvironmentInfo:
        return await self._inner.info()

    async def status(self) -> Status:
        return await self._inner.status()

    async def _end_marked(self, mark: str, first: FirstCommand | None) -> None:
        await self._inner._end_marked(mark, first)  # noqa: SLF001 - of the same class

    async def aclose(self) -> None:
        """Close the environment, and stop recording when its processes have ended."""
        self.closed = True
        # In this order: closing ends the processes, which has to be recorded.
        await self._inner.aclose()
        await self._recorder.aclose()
