"""Two connected transports without a socket, for a server in the same process."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from holdfast.wire.transports.transport import (
    HIGH_WATER,
    LOCAL,
    LOW_WATER,
    Receiver,
    Transport,
)

__all__ = ["MemoryTransport", "connect_memory"]


class MemoryTransport:
    """One end of a pair."""

    kind = "memory"
    went_silent = False
    was_closed = False
    credential = LOCAL
    text_only = False
    label = "exec-server memory"

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._receiver: Receiver
        self._other: MemoryTransport
        self._inbox: deque[bytes] = deque()
        self._waiting = 0
        self._paused = False
        self._scheduled = False
        self._full = False
        # Closed from this side: nothing more is sent, but the end was not reported yet.
        self._closing = False
        # The other side sends no more; this one ends once all messages were delivered.
        self._ending = False
        self._ended = False
        self._closed = asyncio.Event()

    def send(self, message: bytes, *, alone: bool = False) -> None:
        other = self._other
        if self._closing or self._ended or other._ended:
            return
        other._inbox.append(message)
        other._waiting += len(message)
        other._schedule()
        if other._waiting > HIGH_WATER and not other._full:
            other._full = True
            self._receiver.pause_sending()

    def send_parts(self, parts: Sequence[bytes], *, alone: bool = False) -> None:
        self.send(b"".join(parts))

    def pause_receiving(self) -> None:
        self._paused = True

    def resume_receiving(self) -> None:
        self._paused = False
        self._schedule()

    def expect_heartbeats(self, interval: float) -> None:
        """Do nothing: both ends live in one process, and neither can be lost alone."""

    def excuse_silence(self, excused: Callable[[], bool]) -> None:
        """Do nothing, as silence is not judged."""

    def close(self) -> None:
        self._closing = True
        # The loop reports it to both ends, never inside this call.
        self._loop.call_soon(self._end)
        self._loop.call_soon(self._other._end_after_inbox)

    def abort(self) -> None:
        self._loop.call_soon(self._end)
        self._loop.call_soon(self._other._end)

    async def wait_closed(self) -> None:
        await self._closed.wait()

    def _schedule(self) -> None:
        if not self._scheduled and not self._paused and (self._inbox or self._ending):
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        while self._inbox and not self._paused and not self._ended:
            message = self._inbox.popleft()
            self._waiting -= len(message)
            if self._full and self._waiting <= LOW_WATER:
                self._full = False
                self._other._receiver.resume_sending()
            self._receiver.received(message)
        if self._ending and not self._inbox:
            self._end()

    def _end_after_inbox(self) -> None:
        self._ending = True
        self._deliver()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._closed.set()
            self._receiver.lost("connection closed")


def connect_memory(
    ours: Callable[[Transport], Receiver], theirs: Callable[[Transport], Receiver]
) -> Transport:
    """Connect two receivers; return the end of the first."""
    loop = asyncio.get_running_loop()
    near, far = MemoryTransport(loop), MemoryTransport(loop)
    near._other, far._other = far, near
    far._receiver = theirs(far)
    near._receiver = ours(near)
    return near
