"""
An event loop whose clock jumps, so that long waits take no time in a test.

The clock stops while anything can run. When nothing can, it jumps to the next timer.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from time import monotonic
from typing import Any, TypeVar, TypeVarTuple

__all__ = ["PATIENCE", "VirtualTimeLoop", "WaitsForEver", "run_virtual"]

PATIENCE = 5.0
"""Real seconds to wait for a descriptor or a thread when no timer is set."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class WaitsForEver(RuntimeError):
    """Every task waits, and nothing can wake one."""


class _JumpingSelector(selectors.DefaultSelector):
    """Selector that moves the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        # Running calls in threads; time does not pass while there is one.
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
        # The loop itself registers one descriptor, with which signals and threads wake it.
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
    An event loop whose clock starts at 0 and jumps to the next timer when nothing can run.

    `asyncio.sleep(3600)` returns immediately, with `loop.time()` advanced by one hour. Timers
    fire in order. Some things are not virtual:

    - No time passes during a call in a thread (`asyncio.to_thread`), which the loop waits for.
    - Descriptors work, but the clock does not wait for one that is not ready: a timeout around
      a real pipe or socket fires as soon as nothing else can run. Use the loop for tests whose
      other side is in the same process: `FakeBackend`, `ScriptedServer`.
    - `time.monotonic()` and everything else outside the loop is unaffected.

    If nothing can run and no timer is set, the loop raises `WaitsForEver`: immediately, or after
    5 real seconds if a descriptor or a thread could still wake it.
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
        """Run a function in a thread; the clock stops until it returns."""
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
    Run a coroutine on a new `VirtualTimeLoop`, and return its result.

    Raises:
        WaitsForEver: It waits for something that cannot happen.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
