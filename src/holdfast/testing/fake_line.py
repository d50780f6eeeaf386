"""The connection to a fake backend: up, down, or lost for good."""

import asyncio
from collections.abc import Callable

from holdfast.base.errors import ConnectionLost, HoldfastError

__all__ = ["LIMIT", "Changes", "FakeLine"]

LIMIT = 5.0
"""Seconds before a test's wait fails."""


class Changes:
    """Condition variable that checks a predicate after each change."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Make all waiters check again."""
        # Wake all: each checks its own condition.
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
        Wait until a condition holds, for at most `LIMIT` seconds.

        Raises:
            TimeoutError: It did not hold in time.
        """
        # In real time: a test that waits for something that never happens should fail.
        deadline = asyncio.timeout(LIMIT)
        try:
            async with deadline:
                await self.wait(holds)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise TimeoutError(f"the condition of a test did not hold within {LIMIT:g} s") from None


class FakeLine:
    """
    The fake connection that all processes of a backend share.

    With `remote=False` it is always up, and nothing can be delayed.
    """

    def __init__(self, *, remote: bool) -> None:
        self.remote = remote
        self.up = True
        """False between `lose` and `restore`."""
        self.failure: HoldfastError | None = None
        """Set once the connection is lost for good."""
        self.changes = Changes()
        """Notified of each change on either side."""
        self._holders: set[object] = set()
        self._restored: list[Callable[[], None]] = []
        self._failed: list[Callable[[HoldfastError], None]] = []

    @property
    def held(self) -> bool:
        """True while a slow reader blocks the connection, as it does without our extensions."""
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
        """Let everything through again, waiting calls and events first."""
        self.need("restore_line")
        self.up = True
        self._flush()

    def lose_for_good(self, error: HoldfastError | None = None) -> None:
        """Fail open processes and all later calls; with `ConnectionLost` by default."""
        self.need("lose_for_good")
        self.failure = ConnectionLost("the fake server is lost") if error is None else error
        # Before the notification, so that waiters see the processes as failed.
        for failed in self._failed:
            failed(self.failure)
        self.changes.notify()

    async def available(self) -> None:
        """
        Wait until calls get through.

        Raises:
            ConnectionLost: The connection is lost for good.
        """
        await self.changes.wait(lambda: self.up or self.failure is not None)
        if self.failure is not None:
            raise self.failure

    def hold(self, holder: object) -> None:
        """Stop everything from the other side on behalf of one reader."""
        # Several readers may hold it; traffic resumes when the last one releases it.
        self._holders.add(holder)

    def release(self, holder: object) -> None:
        """Undo `hold`; does nothing without it."""
        if holder in self._holders:
            self._holders.discard(holder)
            self._flush()

    def watch(self, restored: Callable[[], None], failed: Callable[[HoldfastError], None]) -> None:
        """Call `restored` when the connection is back, and `failed` once it is lost for good."""
        self._restored.append(restored)
        self._failed.append(failed)

    def need(self, what: str) -> None:
        """
        Refuse what needs a connection.

        Raises:
            RuntimeError: The processes are local.
        """
        if not self.remote:
            raise RuntimeError(f"{what}: a local process has no connection; use remote=True")

    def _flush(self) -> None:
        for restored in self._restored:
            restored()
        self.changes.notify()
