"""
Limits how many large responses of a connection are prepared at a time.

A client may request a thousand large files at once and then not read. Only a few responses are
prepared at a time, and none while the client does not read, so its requests wait instead of
filling the memory.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["AT_ONCE", "LONGEST", "ResponseSlots"]

# Large responses of a connection that are prepared concurrently.
AT_ONCE = 4

# Seconds after which a slot is freed: a read on a dead mount must not block the others.
LONGEST = 1.0


class ResponseSlots:
    """The slots of a connection, acquired in the order of the requests."""

    def __init__(self, *, longest: float = LONGEST) -> None:
        self._longest = longest
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._reads = asyncio.Event()
        self._reads.set()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Acquire a slot, and hold it until the response is prepared."""
        await self._slots.acquire()
        given_back = False

        def give_back() -> None:
            nonlocal given_back
            if not given_back:
                given_back = True
                self._slots.release()

        try:
            # With the slot held, so that at most `AT_ONCE` requests start when the client reads.
            await self._reads.wait()
            timer = asyncio.get_running_loop().call_later(self._longest, give_back)
            try:
                yield
            finally:
                timer.cancel()
        finally:
            give_back()

    def pause(self) -> None:
        """Stop preparing responses while the client does not read."""
        self._reads.clear()

    def resume(self) -> None:
        """Continue: the client reads again."""
        self._reads.set()
