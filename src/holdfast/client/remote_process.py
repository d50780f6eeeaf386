"""A process of a server, behind the same protocol as a local one [client.order]."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from holdfast.base.errors import (
    ConnectionLost,
    HoldfastError,
    InvalidParams,
    InvalidRequest,
    Refused,
    RemoteError,
    RemoteProtocolError,
    UnknownProcess,
    Unsupported,
)
from holdfast.client.error_mapping import refusals
from holdfast.client.hold import RemoteHold
from holdfast.client.missing import MissingEvents
from holdfast.client.remote_stdin import RemoteStdin
from holdfast.client.reorder import MAX_EVENT_BYTES, Reorder
from holdfast.engine.process.event_stream import EventReaders, LogEventStream
from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.sandbox.policy.denial import find_denial
from holdfast.events import (
    UNKNOWN_DENIAL,
    Closed,
    Exited,
    Gap,
    LimitKind,
    LogEntry,
    Reason,
    Verdict,
    WaitingFor,
)
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.methods import (
    PROCESS_ACK,
    PROCESS_READ,
    PROCESS_RESIZE,
    PROCESS_SIGNAL,
    PROCESS_TERMINATE,
    PROCESS_WAITING_FOR,
)
from holdfast.wire.protocol.process import (
    AckParams,
    ClosedEvent,
    Enforcement,
    ExitedEvent,
    OutputChunk,
    OutputStream,
    ProcessSummary,
    ReadParams,
    ReadResponse,
    ResizeParams,
    SignalParams,
    StartParams,
    StartResponse,
    StreamEndedEvent,
    StreamsAtEnd,
    TerminateParams,
    WaitingForParams,
    WriteStatus,
    check_input,
    check_read,
    check_streams,
)

if TYPE_CHECKING:
    from holdfast.client.client_session import ClientSession

__all__ = ["RemoteProcess"]

# Output is acknowledged after this many bytes or events. A server allows several times as much
# before it pauses the process, so it never waits for an acknowledgement.
_ACK_BYTES = 256 << 10
_ACK_EVENTS = 1024

# Seconds after which an unanswered `process/terminate` means that the server is stuck. A slow line
# takes less, and a caller who ends a command can wait that long.
_STUCK_LIMIT = 2.0

# Seconds that a server without our extensions is asked to wait in one read. It handles one
# request at a time, so everything else waits as long; a longer wait is made of several reads.
_SERIAL_WAIT = 0.5

# The largest number that every server accepts; no event or size comes near it.
_LARGEST = (1 << 63) - 1

# Longest wait of one read in seconds; longer than any caller waits in vain.
_LONGEST_WAIT = 1e6


class RemoteProcess:
    """
    One process on a server.

    Its events are mirrored into a log on this side, in order and with the same numbers. Reading
    here therefore costs no traffic.
    """

    remote = True

    def __init__(self, session: "ClientSession", params: StartParams) -> None:
        self.process_id = process_id = params.process_id
        self.pid: int | None = None
        self.enforcement: Enforcement | None = None
        self.sandbox_type = "none"
        self.is_started = False
        """True once the server has confirmed that the process exists."""
        loop = asyncio.get_running_loop()
        self._session = session
        self._tty = params.tty
        # False without a stdin, and once that was closed.
        self._takes_input = params.tty or params.pipe_stdin
        # Restores the order of events from the wire; the log has them in order.
        self._reorder = Reorder()
        self._log = OutputLog()
        self._hold = RemoteHold(session, process_id)
        self._readers = EventReaders(
            self._log,
            self._hold.hold,
            self._hold.release,
            can_hold=lambda: self._hold.holds_alone,
            handed_over=False,
        )
        self._stdin = RemoteStdin(session, process_id)
        self._missing = MissingEvents(session, self)
        # Ends of streams that arrived before the output they follow.
        self._stream_ends: deque[StreamEndedEvent] = deque()
        self._ended_streams: set[OutputStream] = set()
        # The next acknowledgement is due at either of these.
        self._ack_at_bytes = _ACK_BYTES
        self._ack_at_seq = _ACK_EVENTS
        self._terminated = False
        # True once the server has reported its group as empty: it stays so.
        self._nothing_left = False
        # When the server first reported, after a lost connection, that it is still starting.
        self._starting_since: float | None = None
        self._failure: HoldfastError | None = None
        self._exited: asyncio.Future[None] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()

    # -- the seam

    @property
    def verdict(self) -> Verdict | None:
        return self._log.verdict

    async def exited(self) -> Verdict:
        return await self._verdict_after(self._exited)

    async def wait(self) -> Verdict:
        return await self._verdict_after(self._closed)

    async def _verdict_after(self, ended: asyncio.Future[None]) -> Verdict:
        await asyncio.shield(ended)
        if self._failure is not None and (self._log.verdict is None or ended is self._closed):
            # Every caller gets the same exception; its traceback would otherwise grow with each.
            raise self._failure.with_traceback(None)
        # A process exits before it is closed.
        assert self._log.verdict is not None
        return self._log.verdict

    def events(
        self, after_seq: int = 0, *, gaps: bool = False, stream_ends: bool = False
    ) -> LogEventStream:
        return self._readers.stream(after_seq, gaps=gaps, stream_ends=stream_ends)

    async def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse:
        check_read(after_seq, max_bytes, wait)
        # The mirror is complete, and the server may have forgotten the closed process.
        if self._log.closed:
            return self._log.read(after_seq, max_bytes)
        params = ReadParams(
            process_id=self.process_id,
            after_seq=min(after_seq, _LARGEST),
            max_bytes=None if max_bytes is None else min(max_bytes, _LARGEST),
        )
        most = _LONGEST_WAIT if self._session.capabilities.process_hold else _SERIAL_WAIT
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        rest = wait
        while True:
            part = min(rest, most)
            params = msgspec.structs.replace(params, wait_ms=int(part * 1000))
            with refusals(process_id=self.process_id):
                answer = await self._session.call_again(PROCESS_READ, params, patience=part)
            self._missing.promise(answer.next_seq - 1)
            rest = deadline - loop.time()
            # A shorter part than `most` was the whole wait, so an empty answer is the final one.
            if part < most or rest <= 0 or _has_news(answer, after_seq):
                return answer

    async def write(self, data: bytes, write_id: str | None = None) -> WriteStatus:
        data = check_input(data, write_id)
        if self._terminated:
            # A server without our extensions may still accept it.
            return WriteStatus.STDIN_CLOSED
        try:
            status = await self._stdin.write(data, write_id)
            if status is WriteStatus.UNKNOWN_PROCESS and self._log.closed:
                # The server has forgotten the closed process; repeat its last answer.
                return WriteStatus.ACCEPTED if self._takes_input else WriteStatus.STDIN_CLOSED
            return status
        except RemoteError as error:
            # For this method the code has one cause [write.terminated]: it was terminated.
            if error.code == codes.INTERNAL_ERROR:
                return WriteStatus.STDIN_CLOSED
            with refusals(process_id=self.process_id):
                raise

    async def close_stdin(self) -> None:
        try:
            with refusals(process_id=self.process_id):
                await self._stdin.close()
        except UnknownProcess:
            # After the close of the process stdin is closed, too.
            if not self._log.closed:
                raise
        self._takes_input = False

    async def resize(self, rows: int, cols: int) -> None:
        try:
            params = ResizeParams(process_id=self.process_id, rows=rows, cols=cols)
        except ValueError as error:
            raise InvalidParams(str(error)) from None
        try:
            with refusals(process_id=self.process_id):
                await self._session.call(PROCESS_RESIZE, params)
        except UnknownProcess as error:
            if not self._log.closed:
                raise
            # The server has forgotten the closed process, so answer in its place.
            if not self._tty:
                text = f"process {self.process_id} has no terminal to resize"
                raise InvalidRequest(text) from error.__cause__

    async def waiting_for(self) -> WaitingFor:
        if not self._session.capabilities.process_waiting_for:
            return WaitingFor.UNKNOWN
        if self._log.verdict is not None:
            # The server may have forgotten it; an exited process never waits for input.
            return WaitingFor.NONE
        params = WaitingForParams(process_id=self.process_id)
        with refusals(process_id=self.process_id):
            answer = await self._session.call_again(PROCESS_WAITING_FOR, params)
        try:
            return WaitingFor(answer.waiting_for)
        except ValueError:
            # A newer server may send a value that this version does not know.
            return WaitingFor.UNKNOWN

    async def signal(self, name: str) -> None:
        params = SignalParams(process_id=self.process_id, signal=name)
        try:
            with refusals(process_id=self.process_id):
                await self._session.call(PROCESS_SIGNAL, params)
        except InvalidParams as error:
            # The base protocol knows `interrupt` only and calls every other name invalid.
            if name != "interrupt" and not self._session.capabilities.process_signal_names:
                cause = error.__cause__
                raise Unsupported(codes.INVALID_PARAMS, str(error)) from cause
            raise

    async def terminate(
        self, *, tree: bool = False, left: bool = False, streams: StreamsAtEnd = "close"
    ) -> bool:
        check_streams(streams)
        # The zombie is reaped after the close; only `left`, the rest of its group, can be
        # alive.
        if self._log.closed and (self._nothing_left or not left):
            return False
        self._terminated = True
        params = TerminateParams(process_id=self.process_id, tree=tree, left=left, streams=streams)
        if self._session.is_connected or self._session.lost_for_good:
            # Returns at once, or raises the reason of the loss.
            link = await self._session.connected()
            try:
                with refusals(process_id=self.process_id):
                    async with asyncio.timeout(self._answer_limit):
                        return (await link.call(PROCESS_TERMINATE, params, cleanup=True)).running
            except TimeoutError:
                # The server handles one request at a time and waits in a write to a process that
                # does not read. A new connection is the only way past that write.
                self._stdin.refuse()
                link.connection.abandon("a termination was not answered")
            except ConnectionLost:
                if self._session.lost_for_good:
                    raise
            except Refused:
                # The server refused, so the process keeps running and takes input.
                self._terminated = False
                raise
        # The connection is down: send the termination in the background once it is back.
        self._session.processes.terminate_later(params)
        return self._log.verdict is None

    @property
    def _answer_limit(self) -> float | None:
        """Seconds that a server may take to answer a termination, or None for no limit."""
        # A server can be stuck in a write to a process that does not read. Only a new connection
        # gets past that; if none is possible, all other processes would be lost, too.
        session = self._session
        if session.capabilities.process_hold or not session.target.can_reconnect:
            return None
        return _STUCK_LIMIT if self._stdin.may_be_stuck else None

    # -- called by the session

    @property
    def last_seq(self) -> int:
        """The number of the last event that was published here."""
        return self._reorder.last

    def started(self, answer: StartResponse | ProcessSummary) -> None:
        """Store the server's description of a process that it has started."""
        # From now on recovery may ask the server about it.
        self.is_started = True
        self.sandbox_type = answer.sandbox_type
        self.enforcement = answer.enforcement or None
        self.pid = None if answer.pid is UNSET else answer.pid

    def has_been_starting(self, limit: float) -> bool:
        """Return True if the first call of this method was at least `limit` seconds ago."""
        now = asyncio.get_running_loop().time()
        if self._starting_since is None:
            self._starting_since = now
        return now - self._starting_since >= limit

    @property
    def failure(self) -> HoldfastError | None:
        """The reason why its events can no longer be received, or None."""
        return self._failure

    def hand_over(self) -> None:
        """Note that the caller of the start has the process, and may read from it."""
        self._readers.hand_over()

    def give_up(self) -> None:
        """Note that no caller will get the process, so that it never waits for a reader."""
        self._readers.give_up()
        self._hold.end()

    def deliver_output(self, seq: int, stream: OutputStream, data: bytes) -> None:
        """Handle output from the wire."""
        reorder, log = self._reorder, self._log
        if seq != reorder.last + 1 or reorder.waiting or len(data) > MAX_EVENT_BYTES:
            self._deliver(OutputChunk(seq=seq, stream=stream, chunk=data))
            return
        # Nearly all output arrives in order and goes straight to the log.
        if seq != log.next_seq:
            self.break_off(_misnumbered(seq, log.next_seq))
            return
        reorder.last = seq
        log.append(stream, data)
        if self._stream_ends:
            self._publish_stream_ends()
        # Only now, so that only output available to readers is acknowledged.
        if log.total_bytes >= self._ack_at_bytes or seq >= self._ack_at_seq:
            self.acknowledge()

    def deliver_exit(self, event: ExitedEvent) -> None:
        """Handle the exit from the wire."""
        self._deliver(self._exit(event))

    def deliver_close(self, event: ClosedEvent) -> None:
        """Handle the close from the wire."""
        self._nothing_left = event.left is False
        self._deliver(Closed(event.seq))

    def deliver_stream_end(self, event: StreamEndedEvent) -> None:
        """Handle the end of a stream from the wire."""
        # A stream ends once; a second notification is ignored.
        if event.stream not in self._ended_streams:
            # After a recovery the server may send the notification again.
            self._ended_streams.add(event.stream)
            self._stream_ends.append(event)
            self._publish_stream_ends()

    def acknowledge(self) -> None:
        """Acknowledge the events that have arrived, so that the server may drop them."""
        session = self._session
        if not session.is_connected:
            return
        # Other servers do not know the notification, and do not need it.
        if session.capabilities.process_ack:
            session.notify(
                PROCESS_ACK, AckParams(process_id=self.process_id, seq=self._reorder.last)
            )
        self._ack_at_bytes = self._log.total_bytes + _ACK_BYTES
        self._ack_at_seq = self._reorder.last + _ACK_EVENTS

    def _acknowledge_later(self) -> None:
        """Acknowledge the rest of the output of a closed process, together with other processes."""
        rest = self._log.total_bytes + _ACK_BYTES - self._ack_at_bytes
        if rest and self._session.capabilities.process_ack:
            ack = AckParams(process_id=self.process_id, seq=self._log.next_seq - 1)
            self._session.processes.acknowledge_later(ack, rest)

    def line_lost(self) -> None:
        """Note that events may be missing until `catch_up` brings them."""
        self._reorder.interrupted()
        self._stdin.line_changed()

    def line_back(self) -> None:
        """Note that there is a connection again; called after `catch_up`."""
        self._stdin.line_changed()
        # An acknowledgement sent on the old connection may have been lost with it.
        if self._reorder.last and not self._log.closed:
            self.acknowledge()
        self._missing.watch()

    def catch_up(self, answer: ReadResponse) -> None:
        """
        Publish the events that were missed while there was no connection.

        Raises:
            RemoteProtocolError: The server no longer has all of it.
        """
        if self._failure is not None:
            return
        exited = None
        if answer.exit is not UNSET:
            exited = self._exit(answer.exit)
        elif answer.exited:
            denial = UNKNOWN_DENIAL if answer.sandbox_denied else None
            verdict = Verdict(reason=self._reason(), exit_code=answer.exit_code, denial=denial)
            # The answer of the base protocol has no number for the exit: 0 means unknown.
            exited = Exited(0, verdict)
        self._publish(self._reorder.catch_up(answer, exited, gaps=not self._readers.lossless))

    def fail(self, error: HoldfastError) -> None:
        """End it on this side: its events can no longer be received."""
        if self._log.closed or self._failure is not None:
            return
        # Set first: readers that wake up check it.
        self._failure = error
        self._readers.fail(error)
        self._end()

    def break_off(self, error: RemoteProtocolError) -> None:
        """Fail the process, whose events are inconsistent, and terminate it on the server."""
        self.fail(error)
        self._session.processes.forget(self)
        self._session.processes.terminate_later(TerminateParams(process_id=self.process_id))

    def misses_events(self, promised: int) -> bool:
        """Return True if an event up to a number, or before one that arrived, is missing."""
        if self._log.closed or self._failure is not None:
            return False
        return bool(self._reorder.waiting) or promised > self._reorder.last

    # -- internals

    def _deliver(self, event: LogEntry) -> None:
        """Handle an event from the wire; fail the process if the order cannot be restored."""
        if self._failure is not None:
            return
        try:
            due = self._reorder.add(event)
            if due:
                self._publish(due)
        except RemoteProtocolError as error:
            self.break_off(error)
            return
        if self._reorder.waiting:
            self._missing.watch()
        # After publishing, so that only events available to readers are acknowledged.
        if self._log.total_bytes >= self._ack_at_bytes or self._log.next_seq > self._ack_at_seq:
            self.acknowledge()

    def _exit(self, event: ExitedEvent) -> Exited:
        denial = msgspec.structs.replace(UNKNOWN_DENIAL, reason=event.denied_because or None)
        verdict = Verdict(
            reason=self._reason(event),
            exit_code=event.exit_code,
            signal=None if event.signal is UNSET else event.signal,
            detail=None if event.detail is UNSET else event.detail,
            limit=None if event.limit is UNSET else _limit_kind(event.limit),
            denial=denial if event.sandbox_denied else None,
            network_attempts=tuple(event.network_attempts or ()),
        )
        return Exited(event.seq, verdict)

    def _reason(self, event: ExitedEvent | None = None) -> Reason:
        if event is not None and event.limit is not UNSET:
            return Reason.LIMIT
        if event is not None and event.reason is not UNSET:
            # A newer server may send a reason that this version does not know.
            with suppress(ValueError):
                return Reason(event.reason)
        # The base protocol only sends an exit code, so the reason is known only if this client
        # requested the termination.
        return Reason.TERMINATED if self._terminated else Reason.EXITED

    def _publish(self, events: list[LogEntry] | list[LogEntry | Gap]) -> None:
        """
        Log the events that are next in order.

        Raises:
            RemoteProtocolError: They are inconsistent.
        """
        log = self._log
        for event in events:
            # The mirror numbers its entries itself, which must match those of the server.
            seq = event.first_seq if type(event) is Gap else event.seq
            if seq != log.next_seq:
                raise _misnumbered(seq, log.next_seq)
            if type(event) is OutputChunk:
                log.append(event.stream, event.chunk)
            elif type(event) is Exited:
                if log.verdict is not None:
                    raise RemoteProtocolError("process exited twice")
                log.exit(self._explained(event.verdict))
                _settle(self._exited)
            elif type(event) is Gap:
                log.skip_to(event.last_seq + 1)
            else:
                # No other kind of event exists.
                assert type(event) is Closed
                if log.verdict is None:
                    raise RemoteProtocolError("process was closed before it exited")
                # The end of all streams is implied by the close.
                self._stream_ends.clear()
                log.close()
                self._session.processes.forget(self)
                self._acknowledge_later()
                self._end()
                # Events after the close are ignored.
                return
        if self._stream_ends:
            self._publish_stream_ends()

    def _publish_stream_ends(self) -> None:
        while self._stream_ends and self._stream_ends[0].seq <= self._reorder.last:
            event = self._stream_ends.popleft()
            if not self._log.closed:
                self._log.end_stream(event.stream)

    def _explained(self, verdict: Verdict) -> Verdict:
        """Return the verdict with the cause of a denial, which the wire reports as a flag only."""
        if verdict.denial is None or verdict.exit_code is None:
            return verdict
        found = find_denial(verdict.exit_code, self._log.retained())
        if found is None:
            return verdict
        # Only the server knows its own files.
        denial = msgspec.structs.replace(found, reason=verdict.denial.reason)
        return msgspec.structs.replace(verdict, denial=denial)

    def _end(self) -> None:
        _settle(self._exited)
        _settle(self._closed)
        self._hold.end()
        self._missing.stop()


def _has_news(answer: ReadResponse, after_seq: int) -> bool:
    """Return True if an answer ends the wait of a read."""
    ended = answer.closed or (answer.exited and after_seq < answer.next_seq - 1)
    return ended or bool(answer.chunks) or answer.failure is not None


def _misnumbered(seq: int, expected: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"process event {seq} arrived where {expected} was expected")


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _limit_kind(name: str) -> LimitKind:
    try:
        return LimitKind(name)
    except ValueError:
        return LimitKind.OTHER
