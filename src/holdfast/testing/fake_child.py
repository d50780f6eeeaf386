"""Something that a fake process started, and that may outlive it."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

__all__ = ["FakeChild", "new_pid"]

# Pids beyond the kernel's default limit, so that a mistake signals no real process.
_pids = itertools.count(1_000_001)


def new_pid() -> int:
    """Return a pid that no process of this machine has."""
    return next(_pids)


class FakeChild:
    """Something that a fake process started, and that may outlive it."""

    def __init__(self, ended: Callable[[], None], *, own_session: bool, holds_output: bool) -> None:
        self.pid = new_pid()
        self.alive = True
        self.own_session = own_session
        """True if it left the group of the process; only `terminate(tree=True)` reaches it."""
        self.holds_output = holds_output
        """True if the output does not end before it does."""
        self._ended = ended
        self._task: asyncio.Task[object] | None = None

    def exit(self) -> None:
        """End it; harmless a second time."""
        if self.alive:
            self.alive = False
            if self._task is not None and self._task is not asyncio.current_task():
                self._task.cancel()
            self._ended()

    def play(self, program: Callable[[], Awaitable[object]]) -> None:
        """Do something in its name; the child ends with it, and it with the child."""
        self._task = asyncio.get_running_loop().create_task(self._play(program))

    async def _play(self, program: Callable[[], Awaitable[object]]) -> None:
        await program()
        self.exit()
