"""Queues that keep requests for the same id in order [app-server.order]."""

import asyncio
from collections.abc import Hashable
from types import TracebackType

__all__ = ["QueuePosition", "RequestQueues"]


class RequestQueues:
    """Queues of requests, one per key, in which one request at a time has its turn."""

    def __init__(self) -> None:
        # Last position of each non-empty queue.
        self._tails: dict[Hashable, asyncio.Future[None]] = {}

    def take(self, key: Hashable) -> "QueuePosition":
        """Return the next position in the queue of `key`, which must be entered and left."""
        ahead = self._tails.get(key)
        mine = asyncio.get_running_loop().create_future()
        # The next position waits for this one, so each waits for exactly one other.
        self._tails[key] = mine
        return QueuePosition(self, key, ahead, mine)

    def leave(self, key: Hashable, mine: asyncio.Future[None]) -> None:
        """Give the turn to the next request; called when a position is left."""
        # A cancelled waiter has cancelled the future it waited for.
        if not mine.done():
            mine.set_result(None)
        # The queue is empty: remove its entry.
        if self._tails.get(key) is mine:
            del self._tails[key]

    def __len__(self) -> int:
        """Return the number of queues."""
        return len(self._tails)


class QueuePosition:
    """A position in a queue: entering waits for those ahead, leaving admits the next one."""

    __slots__ = ("_ahead", "_key", "_line", "_mine")

    def __init__(
        self,
        line: RequestQueues,
        key: Hashable,
        ahead: asyncio.Future[None] | None,
        mine: asyncio.Future[None],
    ) -> None:
        self._line = line
        self._key = key
        self._ahead = ahead
        self._mine = mine

    async def __aenter__(self) -> None:
        try:
            if self._ahead is not None and not self._ahead.done():
                await self._ahead
        except BaseException:
            self._line.leave(self._key, self._mine)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._line.leave(self._key, self._mine)
