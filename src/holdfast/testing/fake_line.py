"""The connection to a fake backend: up, down, or lost for good."""

import asyncio
from collections.abc import Callable

from holdfast.base.errors import ConnectionLost, HoldfastError

__all__ = ["LIMIT", "Changes", "FakeLine"]

LIMIT = 5.0
"""Seconds that a wait of a test may take before it fails."""


class Changes:
    """Condition variable that checks a predicate after each change."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Make all waiters check again."""
        # All are woken: each checks its own condition.
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds, however long that takes."""
        while not holds():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)

    async def until(self, holds: Callable[[], bool]) -> None:
        """
        Wait until a condition holds, for `LIMIT` seconds at most.

        Raises:
            TimeoutError: It did not come to that.
        """
        # Real time: a test that waits for something that never happens should fail.
        deadline = asyncio.timeout(LIMIT)
        try:
            async with deadline:
                await self.wait(holds)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise TimeoutError(f"what a test waits for did not happen within {LIMIT:g} s") from None


class FakeLine:
    """
    The fake connection, shared by all processes of a backend.

    With `remote=False` there is none: it is always up, and nothing can be delayed.
    """

    def __init__(self, *, remote: bool) -> None:
        self.remote = remote
        self.up = True
        """False between `lose` and `restore`."""
        self.failure: HoldfastError | None = None
        """Set once the connection is lost for good."""
        self.changes = Changes()
        """Notified of everything that happens on either side."""
        self._holders: set[object] = set()
        self._restored: list[Callable[[], None]] = []
        self._failed: list[Callable[[HoldfastError], None]] = []

    @property
    def held(self) -> bool:
        """True while a reader holds the whole connection, as it must without our extensions."""
        return bool(self._holders)

    @property
    def carries(self) -> bool:
        """True while events get through."""
        return self.up and self.failure is None and not self._holders

    def lose(self) -> None:
        """
        Block both directions until `restore`.

        Raises:
            RuntimeError: The processes are local.
        """
        self.need("lose_line")
        self.up = False
        self.changes.notify()

    def restore(self) -> None:
        """Let everything through again, what waited first."""
        self.need("restore_line")
        self.up = True
        self._flush()

    def lose_for_good(self, error: HoldfastError | None = None) -> None:
        """Fail everything that is not over, now and later; `ConnectionLost` unless given."""
        self.need("lose_for_good")
        self.failure = ConnectionLost("the fake server is lost") if error is None else error
        # Before the notification, so that a waiter finds the processes failed.
        for failed in self._failed:
            failed(self.failure)
        self.changes.notify()

    async def available(self) -> None:
        """
        Wait until a call gets through.

        Raises:
            ConnectionLost: It never will.
        """
        await self.changes.wait(lambda: self.up or self.failure is not None)
        if self.failure is not None:
            raise self.failure

    def hold(self, holder: object) -> None:
        """Stop everything that comes from the other side on behalf of one reader."""
        # Several readers may hold it; it goes on when the last one releases.
        self._holders.add(holder)

    def release(self, holder: object) -> None:
        """Undo `hold`; harmless without it."""
        if holder in self._holders:
            self._holders.discard(holder)
            self._flush()

    def watch(self, restored: Callable[[], None], failed: Callable[[HoldfastError], None]) -> None:
        """Call `restored` whenever things get through again, and `failed` when they never will."""
        self._restored.append(restored)
        self._failed.append(failed)

    def need(self, what: str) -> None:
        """
        Refuse what only a connection can have.

        Raises:
            RuntimeError: The processes are local.
        """
        if not self.remote:
            raise RuntimeError(f"{what}: a local process has no line; use remote=True")

    def _flush(self) -> None:
        for restored in self._restored:
            restored()
        self.changes.notify()
