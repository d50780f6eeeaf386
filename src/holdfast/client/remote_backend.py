"""The processes of one session on a server, behind the seam `ExecBackend` [client.start.*]."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import UNSET

from holdfast.base.errors import ConnectionLost, DuplicateProcess, HoldfastError, Unsupported
from holdfast.client.error_mapping import start_refusals
from holdfast.client.remote_process import RemoteProcess
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.methods import (
    PROCESS_ACK,
    PROCESS_END_MARKED,
    PROCESS_LIST,
    PROCESS_START,
    PROCESS_TERMINATE,
)
from holdfast.wire.protocol.process import (
    AckParams,
    ClosedEvent,
    EndMarkedParams,
    ExitedEvent,
    OutputEvent,
    ProcessSummary,
    StartParams,
    StreamEndedEvent,
    TerminateParams,
)
from holdfast.wire.protocol.wire_types import Empty

if TYPE_CHECKING:
    from holdfast.client.client_session import ClientSession

__all__ = ["RemoteBackend"]

# Bytes of output of closed processes after which it is acknowledged. A server retains several times
# as much; each process itself counts as this overhead.
_ACK_CLOSED = 4 << 20
_PROCESS_OVERHEAD = 256


class RemoteBackend:
    """Processes on a server: starts them, and passes each the events that arrive for it."""

    def __init__(self, session: "ClientSession") -> None:
        self._session = session
        self.by_id: dict[str, RemoteProcess] = {}
        """The processes whose close has not arrived; the connection reads it, too."""
        # Acknowledgements for closed processes that are still to be sent, and what they release.
        self._acks: list[AckParams] = []
        self._ack_memory = 0
        # Abandoned starts, by id, until the server has ended what they may have started.
        self._called_off: dict[str, asyncio.Task[None]] = {}

    # -- the seam

    async def start(self, params: StartParams) -> RemoteProcess:
        """See `ExecServerClient.start`."""
        # The capabilities checked below are known after the first connection.
        await self._session.connected()
        process_id = params.process_id
        # A loop, since another start of the same id may be abandoned meanwhile.
        while (ending := self._called_off.get(process_id)) is not None:
            # The call that ends an abandoned start must not end its successor.
            await asyncio.wait([ending])
        if process_id in self.by_id:
            raise DuplicateProcess(
                process_id,
                f"exec-server protocol error: session already registered for process {process_id}",
            )
        self._refuse_unsupported(params)
        # Its first events may arrive before the answer.
        process = self.by_id[process_id] = RemoteProcess(self._session, params)
        try:
            with start_refusals(process_id, params.argv[0] if params.argv else ""):
                await self._start(process, params)
        except BaseException as error:
            self.forget(process)
            process.give_up()
            if isinstance(error, asyncio.CancelledError) and not self._session.is_closing:
                # Even if it never ran: only the server knows whether it did.
                self._call_off(process_id)
            raise
        process.hand_over()
        return process

    # -- methods of the protocol beyond the seam

    async def list(self) -> list[ProcessSummary]:
        """Return the processes that the server has for this session."""
        return (await self._session.call_again(PROCESS_LIST, Empty())).processes

    async def end_marked(self, mark: str) -> None:
        """Kill what commands with a mark left behind, if the server can."""
        if self._session.capabilities.process_end_marked:
            params = EndMarkedParams(mark=mark)
            await self._session.call_again(PROCESS_END_MARKED, params, cleanup=True)

    def terminate_later(self, params: TerminateParams) -> asyncio.Task[None] | None:
        """Terminate as soon as there is a connection; return None if there will be none."""
        return self._session.start_task(self._terminate(params))

    def forget(self, process: RemoteProcess) -> None:
        """Drop a process that has ended or failed; its later events are ignored."""
        # A new process may have the same id by now.
        if self.by_id.get(process.process_id) is process:
            del self.by_id[process.process_id]

    def acknowledge_later(self, ack: AckParams, size: int) -> None:
        """
        Acknowledge the rest of the output of a closed process later.

        The server retains it until then. One message for each short command would cost more than
        the memory, so those of many are sent together.
        """
        self._acks.append(ack)
        self._ack_memory += size + _PROCESS_OVERHEAD
        self._acknowledge_if_due()

    def _acknowledge_if_due(self) -> None:
        if self._ack_memory >= _ACK_CLOSED and self._session.is_connected:
            acks, self._acks, self._ack_memory = self._acks, [], 0
            for ack in acks:
                self._session.notify(PROCESS_ACK, ack)

    # -- notifications

    def output(self, event: OutputEvent) -> None:
        """Handle output that the fast path of the connection could not read."""
        if (process := self.by_id.get(event.process_id)) is not None:
            process.deliver_output(event.seq, event.stream, event.chunk)

    def exited(self, event: ExitedEvent) -> None:
        """Handle the exit of a process."""
        if (process := self.by_id.get(event.process_id)) is not None:
            process.deliver_exit(event)

    def closed(self, event: ClosedEvent) -> None:
        """Handle the close of a process: it has no further events."""
        if (process := self.by_id.get(event.process_id)) is not None:
            process.deliver_close(event)

    def stream_ended(self, event: StreamEndedEvent) -> None:
        """Handle the end of one stream of a process."""
        if (process := self.by_id.get(event.process_id)) is not None:
            process.deliver_stream_end(event)

    # -- called by the session

    def line_lost(self) -> None:
        """Note that events may be missing until `RemoteProcess.catch_up` brings them."""
        for process in list(self.by_id.values()):
            process.line_lost()

    def line_back(self) -> None:
        """Note that there is a connection again, and that all processes are up to date."""
        for process in list(self.by_id.values()):
            process.line_back()
        # For processes that were closed meanwhile.
        self._acknowledge_if_due()

    def fail_all(self, error: ConnectionLost) -> None:
        """Fail all processes: the session is lost."""
        # A copy: a reader that is woken may start another process, or forget one.
        for process in list(self.by_id.values()):
            process.fail(error)
        # Each has the error; late events must find no process.
        self.by_id.clear()

    # -- internals

    async def _start(self, process: RemoteProcess, params: StartParams) -> None:
        while True:
            link = await self._session.connected()
            if process.is_started:
                # An earlier round started the process; recovery found it on the server.
                return
            if process.failure is not None:
                raise process.failure
            try:
                answer = await link.call(PROCESS_START, params)
            except ConnectionLost:
                if self._session.lost_for_good:
                    raise
                # The next round waits for the connection, and for the answer of the server.
            else:
                process.started(answer)
                return

    def _refuse_unsupported(self, params: StartParams) -> None:
        """Refuse params that the server would silently ignore."""
        has = self._session.capabilities
        lacking = ""
        # A server without our extensions ignores unknown members: it would drop a limit without an
        # error.
        if params.terminal_size is not None and not has.process_resize:
            lacking = "size a terminal"
        elif params.limits is not None and not has.process_limits:
            lacking = "limit a process"
        elif params.unset is not UNSET and params.unset and not has.process_unset:
            lacking = "unset variables by name"
        if lacking:
            raise Unsupported(codes.METHOD_NOT_FOUND, f"exec-server cannot {lacking}")

    def _call_off(self, process_id: str) -> None:
        """End what an abandoned start may have started."""
        # Part of it may have left the group, or it may have exited and left processes in it.
        everything = self._session.capabilities.process_terminate_left
        params = TerminateParams(process_id=process_id, tree=everything, left=everything)
        ending = self.terminate_later(params)
        if ending is not None:
            self._called_off[process_id] = ending
            ending.add_done_callback(lambda task: self._called_off.pop(process_id))

    async def _terminate(self, params: TerminateParams) -> None:
        with suppress(HoldfastError):
            await self._session.call_again(PROCESS_TERMINATE, params, cleanup=True)
