"""
Limits how many large responses one connection may have in preparation.

A client may ask for a thousand large files at once and then not read. Only a few responses are
prepared at a time, and none while the client does not read. So its requests wait instead of
filling the memory.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["AT_ONCE", "LONGEST", "ResponseSlots"]

# Large responses of one connection that are prepared concurrently.
AT_ONCE = 4

# Seconds after which a slot is free again: a read on a dead mount must not block the others.
LONGEST = 1.0


class ResponseSlots:
    """The slots of one connection, given out in the order of the requests."""

    def __init__(self, *, longest: float = LONGEST) -> None:
        self._longest = longest
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._reads = asyncio.Event()
        self._reads.set()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot, and hold it until the response is prepared."""
        await self._slots.acquire()
        given_back = False

        def give_back() -> None:
            nonlocal given_back
            if not given_back:
                given_back = True
                self._slots.release()

        try:
            # Inside of the slot, so that at most `AT_ONCE` requests start when the client reads.
            await self._reads.wait()
            timer = asyncio.get_running_loop().call_later(self._longest, give_back)
            try:
                yield
            finally:
                timer.cancel()
        finally:
            give_back()

    def pause(self) -> None:
        """Prepare no more responses: the client does not read."""
        self._reads.clear()

    def resume(self) -> None:
        """Go on: the client reads again."""
        self._reads.set()
