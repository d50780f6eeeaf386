"""Implementation of `ExecBackend` for processes of this machine."""

from collections.abc import Awaitable

from holdfast.base.errors import InvalidParams, StdinClosed
from holdfast.engine.process.checked_arguments import (
    WriteIds,
    check_input,
    check_read,
    signal_number,
)
from holdfast.engine.process.event_stream import EventReaders, LogEventStream
from holdfast.engine.process.process import LocalProcess
from holdfast.engine.process.registry import ProcessRegistry
from holdfast.engine.process.variables import login_shell
from holdfast.events import Reason, Verdict, WaitingFor
from holdfast.wire.protocol.process import (
    Enforcement,
    ReadResponse,
    StartParams,
    StreamsAtEnd,
    TerminalSize,
    WriteStatus,
)

__all__ = ["LocalBackend", "LocalExecProcess"]


class LocalBackend:
    """
    Starts processes on this machine.

    Use it as a context manager: at its end everything it started is killed.
    """

    def __init__(self, processes: ProcessRegistry | None = None) -> None:
        self._processes = ProcessRegistry() if processes is None else processes

    @classmethod
    def for_callers(cls) -> "LocalBackend":
        """Return a backend whose callers hold their processes: none stays findable by its id."""
        return cls(ProcessRegistry(shell=login_shell(), retention=0.0))

    async def __aenter__(self) -> "LocalBackend":
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._processes.end(Reason.SERVER_STOPPING)
        # Bounded: a process that waits for a dead mount cannot be killed.
        await self._processes.wait_all_closed(2.0)

    async def start(self, params: StartParams) -> "LocalExecProcess":
        process = self._processes.launch(params)
        # Most starts are complete already, and need no further turn of the event loop.
        if isinstance(process, Awaitable):
            process = await process
        return LocalExecProcess(process)


class LocalExecProcess:
    """Implementation of `ExecProcess` for a process of this machine."""

    remote = False

    def __init__(self, process: LocalProcess) -> None:
        self._process = process
        # Made before the process writes anything, so that a first reader misses nothing.
        self._readers = EventReaders(process.log, process.hold_output, process.release_output)
        self._write_ids = WriteIds()

    @property
    def process_id(self) -> str:
        return self._process.process_id

    @property
    def enforcement(self) -> Enforcement | None:
        return self._process.enforcement

    @property
    def sandbox_type(self) -> str:
        return self._process.sandbox_type

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def verdict(self) -> Verdict | None:
        return self._process.log.verdict

    async def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse:
        check_read(after_seq, max_bytes, wait)
        found = self._process.read(after_seq, max_bytes, wait)
        return await found if isinstance(found, Awaitable) else found

    async def write(self, data: bytes, write_id: str | None = None) -> WriteStatus:
        data = check_input(data, write_id)
        try:
            status = self._process.write(data, self._write_ids.give(write_id))
            return status if isinstance(status, WriteStatus) else await status
        except StdinClosed:
            # The process was terminated. On the wire that is an error, here it is a status.
            return WriteStatus.STDIN_CLOSED

    async def close_stdin(self) -> None:
        self._process.close_stdin()

    async def resize(self, rows: int, cols: int) -> None:
        # The wire's type checks the range, so a local process refuses the same sizes.
        try:
            TerminalSize(rows=rows, cols=cols)
        except ValueError as error:
            raise InvalidParams(str(error)) from None
        self._process.resize(rows, cols)

    async def waiting_for(self) -> WaitingFor:
        found = self._process.waiting_for()
        return found if isinstance(found, WaitingFor) else await found

    async def signal(self, name: str) -> None:
        self._process.signal(signal_number(name))

    async def terminate(
        self, *, tree: bool = False, left: bool = False, streams: StreamsAtEnd = "close"
    ) -> bool:
        return self._process.terminate(tree=tree, left=left, streams=streams)

    def events(
        self, after_seq: int = 0, *, gaps: bool = False, stream_ends: bool = False
    ) -> LogEventStream:
        return self._readers.stream(after_seq, gaps=gaps, stream_ends=stream_ends)

    async def exited(self) -> Verdict:
        return await self._process.wait_exited()

    async def wait(self) -> Verdict:
        await self._process.wait_closed()
        verdict = self._process.log.verdict
        # The exit always comes before the close.
        assert verdict is not None
        return verdict
