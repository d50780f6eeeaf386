"""A process of a server, seen through the same seam as a local one (exec-server spec 16.2)."""

import asyncio
from bisect import insort
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from holdfast.client.reorder import Reorder
from holdfast.errors import ConnectionLost, HoldfastError, RemoteError, StdinClosed, Unsupported
from holdfast.events import UNKNOWN_DENIAL, Closed, Exited, LogEntry, Reason, Verdict
from holdfast.process.event_stream import EventReaders, LogEventStream
from holdfast.process.output import OutputLog
from holdfast.protocol import codes
from holdfast.protocol.base import Base64
from holdfast.protocol.methods import (
    PROCESS_CLOSE_STDIN,
    PROCESS_READ,
    PROCESS_RESIZE,
    PROCESS_SIGNAL,
    PROCESS_TERMINATE,
    PROCESS_WRITE,
)
from holdfast.protocol.process import (
    CloseStdinParams,
    Enforcement,
    ExitedEvent,
    OutputChunk,
    ReadParams,
    ReadResponse,
    ResizeParams,
    SignalParams,
    StreamsAtEnd,
    TerminateParams,
    WriteParams,
    WriteResponse,
    WriteStatus,
)
from holdfast.sandbox.denial import find_denial

if TYPE_CHECKING:
    from holdfast.client.client import ExecServerClient

__all__ = ["RemoteProcess"]


class RemoteProcess:
    """
    One process on the other side.

    Its events are mirrored into a log on this side, in order, so that readers here
    cost the wire nothing.
    """

    remote = True

    def __init__(self, client: "ExecServerClient", process_id: str) -> None:
        self.process_id = process_id
        self._client = client
        self._reorder = Reorder()
        self._log = OutputLog()
        self._write_id = 0
        # Writes by the order of their calls, as long as they are not on the wire.
        self._writes = 0
        self._unsent: list[int] = []
        self._next_turn = asyncio.Event()
        self._terminated = False
        self.enforcement: Enforcement | None = None
        self.sandbox_type = "none"
        self.pid: int | None = None
        self._readers = EventReaders(self._log, client.hold_receiving, client.release_receiving)
        self._failure: HoldfastError | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- the seam

    async def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse:
        """As the seam says; when the server is lost for good, `failure` of the answer tells."""
        params = ReadParams(
            process_id=self.process_id,
            after_seq=after_seq,
            max_bytes=max_bytes,
            wait_ms=int(wait * 1000),
        )
        try:
            return await self._client.call_again(PROCESS_READ, params, patience=wait)
        except ConnectionLost as error:
            return ReadResponse(
                chunks=[],
                next_seq=after_seq + 1,
                exited=True,
                exit_code=None,
                closed=True,
                failure=str(error),
                sandbox_denied=None,
            )

    async def write(self, data: bytes, write_id: str | None = None) -> WriteStatus:
        if write_id is None:
            self._write_id += 1
            write_id = str(self._write_id)
        params = WriteParams(
            process_id=self.process_id,
            chunk=Base64(data),
            write_id=write_id,
        )
        try:
            return (await self._write_in_turn(params)).status
        except RemoteError as error:
            if error.code == codes.INTERNAL_ERROR:
                raise StdinClosed(error.message) from error
            raise

    async def _write_in_turn(self, params: WriteParams) -> WriteResponse:
        """
        Write, and write again with the same id after each lost connection.

        The bytes arrive once by their id, and in order by their turn: one that has
        to be repeated goes before those that were made after it.
        """
        self._writes += 1
        turn = self._writes
        insort(self._unsent, turn)
        try:
            while True:
                while self._unsent[0] != turn:
                    self._next_turn.clear()
                    await self._next_turn.wait()
                link = await self._client.connected()
                if self._unsent[0] != turn:
                    continue  # an earlier one came back while we waited
                del self._unsent[0]
                self._next_turn.set()
                try:
                    return await link.call(PROCESS_WRITE, params)
                except ConnectionLost:
                    if self._client.lost_for_good:
                        raise
                    insort(self._unsent, turn)
        finally:
            if turn in self._unsent:
                self._unsent.remove(turn)
                self._next_turn.set()

    async def close_stdin(self) -> None:
        params = CloseStdinParams(process_id=self.process_id)
        await self._client.call_again(PROCESS_CLOSE_STDIN, params)

    async def resize(self, rows: int, cols: int) -> None:
        params = ResizeParams(process_id=self.process_id, rows=rows, cols=cols)
        await self._client.call(PROCESS_RESIZE, params)

    async def signal(self, name: str) -> None:
        params = SignalParams(process_id=self.process_id, signal=name)
        try:
            await self._client.call(PROCESS_SIGNAL, params)
        except RemoteError as error:
            environment = self._client.environment
            knows_names = environment is not None and environment.capabilities.process_signal_names
            if error.code == codes.INVALID_PARAMS and name != "interrupt" and not knows_names:
                raise Unsupported(error.code, error.message, error.data) from error
            raise

    async def terminate(
        self, *, tree: bool = False, left: bool = False, streams: StreamsAtEnd = "close"
    ) -> bool:
        self._terminated = True
        params = TerminateParams(process_id=self.process_id, tree=tree, left=left, streams=streams)
        return (await self._client.call_again(PROCESS_TERMINATE, params, cleanup=True)).running

    def events(
        self, after_seq: int = 0, *, gaps: bool = False, stream_ends: bool = False
    ) -> LogEventStream:
        return self._readers.stream(after_seq, gaps=gaps, stream_ends=stream_ends)

    @property
    def verdict(self) -> Verdict | None:
        return self._log.verdict

    async def exited(self) -> Verdict:
        return await self.wait()  # until the exit is known apart from the close

    async def wait(self) -> Verdict:
        await asyncio.shield(self._ended)
        if self._failure is not None:
            raise self._failure
        assert self._log.verdict is not None  # it exits before it is closed
        return self._log.verdict

    # -- what the client tells

    @property
    def last_seq(self) -> int:
        """The number of the last event that was published here."""
        return self._reorder.last

    def deliver(self, event: LogEntry) -> None:
        """
        Take an event from the wire.

        Raises:
            RemoteProtocolError: The order cannot be restored; the process has failed.
        """
        if self._failure is None:
            self._publish(self._reorder.add(event))

    def deliver_exit(self, event: ExitedEvent) -> None:
        """Take the exit from the wire."""
        limit = None if event.limit is UNSET else event.limit
        attempts = () if event.network_attempts is UNSET else event.network_attempts
        verdict = Verdict(
            reason=self._reason() if limit is None else Reason.LIMIT,
            exit_code=event.exit_code,
            detail=limit,
            denial=UNKNOWN_DENIAL if event.sandbox_denied else None,
            network_attempts=tuple(attempts),
        )
        self.deliver(Exited(event.seq, verdict))

    def interrupted(self) -> None:
        """The connection is lost; `catch_up` comes before anything else goes on."""
        self._reorder.interrupted()

    def catch_up(self, answer: ReadResponse) -> None:
        """
        Take what was missed while there was no connection.

        Raises:
            RemoteProtocolError: The server no longer has all of it.
        """
        if self._failure is None:
            self._publish(self._reorder.catch_up(answer, self._reason()))

    def fail(self, error: HoldfastError) -> None:
        """It cannot be followed any more."""
        if self._log.closed or self._failure is not None:
            return
        self._failure = error
        self._readers.fail(error)
        self._end()

    def _reason(self) -> Reason:
        # Only what was asked for here is known here; the wire has no more than a code.
        return Reason.TERMINATED if self._terminated else Reason.EXITED

    def _publish(self, events: list[LogEntry]) -> None:
        for event in events:
            if type(event) is OutputChunk:
                self._log.append(event.stream, event.chunk)
            elif type(event) is Exited:
                self._log.exit(self._explained(event.verdict))
            else:
                assert type(event) is Closed  # the only other kind
                self._log.close()
                self._client.forget(self)
                self._end()

    def _explained(self, verdict: Verdict) -> Verdict:
        """With what was denied: the wire tells no more than that something was."""
        if verdict.denial is None or verdict.exit_code is None:
            return verdict
        found = find_denial(verdict.exit_code, self._log.retained())
        return verdict if found is None else msgspec.structs.replace(verdict, denial=found)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
