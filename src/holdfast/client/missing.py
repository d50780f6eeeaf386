"""Events of a process that exist on the server but have not arrived [client.missing]."""

import asyncio
from typing import TYPE_CHECKING

from holdfast.base.errors import ConnectionLost, RemoteError, RemoteProtocolError
from holdfast.wire.protocol.methods import PROCESS_READ
from holdfast.wire.protocol.process import ReadParams

if TYPE_CHECKING:
    from holdfast.client.client_session import ClientSession
    from holdfast.client.remote_process import RemoteProcess

__all__ = ["HOLE_LIMIT", "MissingEvents"]

HOLE_LIMIT = 5.0
"""
Seconds after which a missing event is requested, and that the answer may take.

A server that sends all events only misses those that are on their way.
"""


class MissingEvents:
    """Requests missing events after a while, and fails a process whose events are lost."""

    def __init__(self, session: "ClientSession", process: "RemoteProcess") -> None:
        self._session = session
        self._process = process
        self._promised = 0
        self._timer: asyncio.TimerHandle | None = None

    def promise(self, seq: int) -> None:
        """Note that events up to a number exist, as stated by the answer to a read."""
        self._promised = max(self._promised, seq)
        self.watch()

    def watch(self) -> None:
        """Make sure that missing events arrive, if there are any."""
        if self._timer is None and self._process.misses_events(self._promised):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(HOLE_LIMIT, self._look, self._process.last_seq)

    def stop(self) -> None:
        """Stop watching: the process has ended on this side."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, last: int) -> None:
        self._timer = None
        if self._process.last_seq > last:
            self.watch()
        # Without a connection, recovery requests them.
        elif self._process.misses_events(self._promised) and self._session.is_connected:
            self._session.start_task(self._ask(last))

    async def _ask(self, last: int) -> None:
        process = self._process
        params = ReadParams(
            process_id=process.process_id, after_seq=last, max_bytes=None, wait_ms=0
        )
        try:
            async with asyncio.timeout(HOLE_LIMIT):
                answer = await self._session.call(PROCESS_READ, params)
            process.catch_up(answer)
        except ConnectionLost:
            return
        except (TimeoutError, RemoteError, RemoteProtocolError):
            # Events may have arrived meanwhile.
            pass
        if process.last_seq == last and process.misses_events(self._promised):
            process.break_off(RemoteProtocolError(f"process event {last + 1} has not arrived"))
        self.watch()
