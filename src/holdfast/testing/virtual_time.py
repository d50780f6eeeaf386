"""
An event loop whose clock jumps, so that a test of long waits takes no time.

The clock stands still while anything can run. When nothing can, it jumps to the next timer.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from time import monotonic
from typing import Any, TypeVar, TypeVarTuple

__all__ = ["PATIENCE", "VirtualTimeLoop", "WaitsForEver", "run_virtual"]

PATIENCE = 5.0
"""Real seconds that a descriptor or a thread is waited for when no timer is set."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class WaitsForEver(RuntimeError):
    """Every task waits, and nothing is left that could wake one of them."""


class _JumpingSelector(selectors.DefaultSelector):
    """Moves the clock instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        # Calls in threads that are under way; time does not pass while there is one.
        self.threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self.threads == 0 and timeout is not None:
            self.now += timeout
            return ready
        return self._wait_for_real()

    def _wait_for_real(self) -> list[tuple[selectors.SelectorKey, int]]:
        # The loop itself registers one descriptor, by which signals and threads wake it.
        outside = len(self.get_map()) > 1 or self.threads > 0
        deadline = monotonic() + PATIENCE
        while outside and (left := deadline - monotonic()) > 0:
            ready = super().select(left)
            if ready:
                return ready
        raise WaitsForEver(
            f"nothing happened on a descriptor or in a thread for {PATIENCE:g} s, and no timer is"
            " set"
            if outside
            else "every task waits, and there is no timer, descriptor or thread to wake one"
        )


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """
    An event loop whose clock begins at 0 and jumps to the next timer when nothing can run.

    `asyncio.sleep(3600)` returns at once, with `loop.time()` one hour on. The order of
    timers is kept. Some things are not virtual:

    - A call in a thread (`asyncio.to_thread`) is waited for, and no time passes meanwhile.
    - Descriptors work, but one that is quiet at the moment is quiet until the next timer:
      a time-out around a real pipe or socket fires as soon as nothing else can run. Use
      it for tests whose other side is in the same process: `FakeBackend`, `ScriptedServer`.
    - `time.monotonic()` and everything outside of the loop is as ever.

    If nothing can run, and there is no timer, the loop raises `WaitsForEver`: at once, or
    after 5 real seconds if there is a descriptor or a thread that could still wake it.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._jumping.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        """Run a function in a thread; the clock stands still until it is done."""
        future = super().run_in_executor(executor, func, *args)
        self._jumping.threads += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        """Wait for the threads of the loop, in real time."""
        self._jumping.threads += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._jumping.threads -= 1

    def _thread_done(self, future: "asyncio.Future[Any]") -> None:
        self._jumping.threads -= 1


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """
    Run a coroutine on a `VirtualTimeLoop` of its own, and return its result.

    Raises:
        WaitsForEver: It cannot come to an end.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
