"""An event loop whose clock jumps: half a minute of waiting takes no time at all."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Impatient(selectors.DefaultSelector):
    """Waits for nothing: the clock moves on instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            # Without a timer nothing could ever happen: only the test itself is here.
            assert timeout is not None, "everybody waits for ever"
            self.now += timeout
        return found


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Impatient()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run_in_no_time(work: Coroutine[Any, Any, T]) -> T:
    """Run something that waits for timers and for nothing outside of this process."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(work)
