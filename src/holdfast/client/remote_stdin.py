"""
Stdin of a process on a server: writes arrive in order and once, and do not wait for recovery.

Every write has an id, and a server applies each id once [write.once]. So a write whose answer was
lost with the connection is sent again on the next one.
"""

import asyncio
import logging
from bisect import insort
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from holdfast.base.errors import ConnectionLost, StdinClosed
from holdfast.wire.protocol.methods import PROCESS_CLOSE_STDIN, PROCESS_WRITE
from holdfast.wire.protocol.process import CloseStdinParams, WriteIds, WriteParams, WriteStatus
from holdfast.wire.protocol.wire_types import Base64, Method

if TYPE_CHECKING:
    from holdfast.client.client_connection import Link
    from holdfast.client.client_session import ClientSession

__all__ = ["MAX_BACKLOG_BYTES", "MAX_BACKLOG_WRITES", "RemoteStdin"]

logger = logging.getLogger(__name__)

P = TypeVar("P")
R = TypeVar("R")

MAX_BACKLOG_BYTES = 1 << 20
"""Most bytes accepted for one process while the connection is lost; further writes wait."""

MAX_BACKLOG_WRITES = 128
"""Most writes accepted, likewise."""

# Writes of one process on the wire at a time after a recovery. A connection allows 1,024 calls, and
# callers need some of them.
_LATE_AT_ONCE = 8


class RemoteStdin:
    """The stdin of one process on a server."""

    def __init__(self, session: "ClientSession", process_id: str) -> None:
        self._session = session
        self._process_id = process_id
        self._ids = WriteIds()
        # Each call gets a number; `_unsent` has those not yet on the wire, in order.
        self._last_turn = 0
        self._unsent: list[int] = []
        self._turn_changed = asyncio.Event()
        # Writes accepted here while there was no connection.
        self._backlog_bytes = 0
        self._backlog_writes = 0
        self._room = asyncio.Event()
        self._late_writes = asyncio.Semaphore(_LATE_AT_ONCE)
        # Calls on this connection that are unanswered, including those whose caller was cancelled.
        self._unanswered: set[object] = set()
        self._refused = False

    async def write(self, data: bytes, write_id: str | None) -> WriteStatus:
        """
        Write; see `ExecProcess.write`.

        Raises:
            RemoteError: The server refused.
            ConnectionLost: The session is lost.
        """
        params = WriteParams(
            process_id=self._process_id, chunk=Base64(data), write_id=self._ids.give(write_id)
        )
        turn = self._take_turn()
        try:
            while self._session.is_connected and not self._refused:
                if self._unsent[0] != turn:
                    await self._wait_for_change()
                    continue
                # Returns at once: there is a connection.
                link = await self._session.connected()
                # Passed on before the answer, so that the next write follows on the wire without
                # waiting.
                self._give_turn(turn)
                try:
                    return (await self._call(link, PROCESS_WRITE, params)).status
                except ConnectionLost:
                    if self._session.lost_for_good:
                        raise
                    # To be sent again, at its position in the order.
                    insort(self._unsent, turn)
            if self._refused:
                self._give_turn(turn)
                return WriteStatus.STDIN_CLOSED
            # No connection. The caller need not wait: order and id are settled, so the write can be
            # accepted now and sent later.
            await self._wait_for_room(len(data))
            if self._session.lost_for_good:
                # Raises the reason of the loss.
                await self._session.connected()
        except BaseException:
            self._give_turn(turn)
            raise
        # Counted until the server has answered, so that the backlog stays bounded.
        self._backlog_bytes += len(data)
        self._backlog_writes += 1
        self._session.start_task(self._write_later(params, turn))
        return WriteStatus.ACCEPTED

    async def close(self) -> None:
        """
        Close stdin after all earlier writes.

        Raises:
            RemoteError: The server refused, or lacks the method.
            ConnectionLost: The session is lost.
        """
        params = CloseStdinParams(process_id=self._process_id)
        turn = self._take_turn()
        try:
            await self._call_in_turn(PROCESS_CLOSE_STDIN, params, turn, nullcontext())
        finally:
            self._give_turn(turn)

    @property
    def may_be_stuck(self) -> bool:
        """True if a write is unanswered: the server may be blocked in it."""
        return bool(self._unanswered)

    def refuse(self) -> None:
        """Send no further write, not even a repeated one: the process is about to be killed."""
        # Set before the kill: a write sent again afterwards would reach no process.
        self._refused = True
        self._turn_changed.set()

    def line_changed(self) -> None:
        """Wake all waiting writes: the connection was lost, or is back."""
        # Answers of the old connection will not arrive.
        self._unanswered.clear()
        self._turn_changed.set()

    # -- turns

    def _take_turn(self) -> int:
        self._last_turn += 1
        self._unsent.append(self._last_turn)
        return self._last_turn

    def _give_turn(self, turn: int) -> None:
        if turn in self._unsent:
            self._unsent.remove(turn)
            self._turn_changed.set()

    async def _wait_for_change(self) -> None:
        self._turn_changed.clear()
        await self._turn_changed.wait()

    async def _call(self, link: "Link", method: Method[P, R], params: P) -> R:
        mark = object()
        self._unanswered.add(mark)
        try:
            return await link.call(method, params)
        except asyncio.CancelledError:
            # Keep the mark: the server may still be blocked in this write.
            mark = None
            raise
        finally:
            self._unanswered.discard(mark)

    async def _call_in_turn(
        self,
        method: Method[P, R],
        params: P,
        turn: int,
        slot: AbstractAsyncContextManager[object],
    ) -> R:
        """Call when all earlier calls are on the wire; repeat it after each lost connection."""
        while True:
            await self._session.connected()
            if self._refused and method is PROCESS_WRITE:
                raise StdinClosed("the process was terminated")
            if self._unsent[0] != turn:
                await self._wait_for_change()
                continue
            # Held for the call only: an earlier write that is sent again needs a slot first.
            async with slot:
                link = await self._session.connected()
                # While waiting for the slot, an earlier write may have been put back in the line.
                if self._unsent[0] != turn:
                    continue
                self._give_turn(turn)
                try:
                    return await self._call(link, method, params)
                except ConnectionLost:
                    if self._session.lost_for_good:
                        raise
                    insort(self._unsent, turn)

    # -- while the connection is lost

    async def _wait_for_room(self, size: int) -> None:
        # A single write is always accepted, or a large one could never be sent.
        while self._backlog_writes and (
            self._backlog_bytes + size > MAX_BACKLOG_BYTES
            or self._backlog_writes >= MAX_BACKLOG_WRITES
        ):
            self._room.clear()
            await self._room.wait()

    async def _write_later(self, params: WriteParams, turn: int) -> None:
        try:
            await self._call_in_turn(PROCESS_WRITE, params, turn, self._late_writes)
        except Exception as error:  # noqa: BLE001 - no caller waits for it
            if not self._session.is_closing:
                # Accepted while the line was down, so its caller can no longer be notified.
                logger.info("input of process %s was not delivered: %s", self._process_id, error)
        finally:
            self._give_turn(turn)
            self._backlog_bytes -= len(params.chunk.data)
            self._backlog_writes -= 1
            self._room.set()
