"""Signals that stop a server."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial

__all__ = ["StopSignals"]


class StopSignals:
    """Stops the server at SIGTERM, SIGINT or SIGHUP."""

    def __init__(self, stopped: asyncio.Event, *, hang_up: Callable[[], None] | None) -> None:
        """
        Handle the signals from now on, in the running event loop.

        Args:
            stopped: Set when a signal arrives.
            hang_up: Called at SIGHUP instead, if SIGHUP does not stop the server.
        """
        self.count: Counter[signal.Signals] = Counter()
        """Number of times each signal arrived."""
        self._stopped = stopped
        self._repeated = asyncio.Event()
        loop = asyncio.get_running_loop()
        actions: dict[signal.Signals, Callable[[], None]] = {
            number: partial(self._stop, number)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }
        if hang_up is not None:
            actions[signal.SIGHUP] = hang_up
        for number, action in actions.items():
            # A signal that was ignored at the start, such as by `nohup`, stays ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, action)

    def _stop(self, number: signal.Signals) -> None:
        self.count[number] += 1
        # Counted by signal: at Ctrl-C the terminal sends SIGINT, and the guardian SIGTERM.
        if self.count[number] > 1:
            self._repeated.set()
        self._stopped.set()

    async def unless_repeated(self, work: Coroutine[object, object, None]) -> None:
        """Run a coroutine to its end, or until one of the signals is repeated."""
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(work)
            repeated = tasks.create_task(self._repeated.wait())
            await asyncio.wait([working, repeated], return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            repeated.cancel()
