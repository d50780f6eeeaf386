"""
Turns at making answers that take memory.

A client may ask for a thousand large files at once and then not read. Few answers
are made at a time, and none while it does not read, so its requests wait instead
of filling the memory.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["AT_ONCE", "LONGEST", "Turns"]

AT_ONCE = 4
"""Large answers of one connection that are made side by side."""

LONGEST = 1.0
"""Seconds after which a turn ends by itself: one on a dead mount must not hold up the others."""


class Turns:
    """The turns of one connection, in the order in which they are asked for."""

    def __init__(self, *, longest: float = LONGEST) -> None:
        self._longest = longest
        self._places = asyncio.Semaphore(AT_ONCE)
        self._reads = asyncio.Event()
        self._reads.set()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn; it lasts until the answer is made."""
        await self._places.acquire()
        given_back = False

        def give_back() -> None:
            nonlocal given_back
            if not given_back:
                given_back = True
                self._places.release()

        try:
            await self._reads.wait()
            timer = asyncio.get_running_loop().call_later(self._longest, give_back)
            try:
                yield
            finally:
                timer.cancel()
        finally:
            give_back()

    def pause(self) -> None:
        """The client does not read."""
        self._reads.clear()

    def resume(self) -> None:
        """It reads again."""
        self._reads.set()
