"""
One epoll instance for all descriptors of the processes of an event loop.

A short command has three watched descriptors: its stdout, its stderr and its pidfd. With
`add_reader` of uvloop each costs six calls of `epoll_ctl` and an object of its own, a tenth of
the whole start. Here each costs one call to begin and one to end
(`scripts/bench --without shared-epoll`).
"""

import asyncio
import select
from collections.abc import Callable
from weakref import WeakKeyDictionary

__all__ = ["Readers", "readers_of"]

# Descriptors that are served in one turn of the event loop. epoll reports the others next time.
_MOST = 256

_by_loop: "WeakKeyDictionary[asyncio.AbstractEventLoop, Readers]" = WeakKeyDictionary()


def readers_of(loop: asyncio.AbstractEventLoop) -> "Readers":
    """
    Return the readers of an event loop, which live as long as it does.

    Raises:
        OSError: There is no descriptor left to make them.
    """
    # Weak keys: a loop that is closed and dropped takes its readers along.
    readers = _by_loop.get(loop)
    if readers is None:
        readers = _by_loop[loop] = Readers(loop)
    return readers


class Readers:
    """Calls back while descriptors can be read, as `add_reader` of an event loop does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # No reference to the loop, which is the weak key of `_by_loop` and could never be freed.
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._ready)

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        """
        Watch a descriptor until `remove`, which has to be called before it is closed.

        Raises:
            OSError: The kernel's limit of watched descriptors is reached.
        """
        # Level-triggered: what one turn does not read is reported again.
        self._epoll.register(fd, select.EPOLLIN)
        self._callbacks[fd] = callback

    def remove(self, fd: int) -> None:
        """Stop watching a descriptor; harmless if it is not watched."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def fileno(self) -> int:
        """Return the descriptor of the epoll instance."""
        return self._epoll.fileno()

    def _ready(self) -> None:
        for fd, _ in self._epoll.poll(0, _MOST):
            # An earlier callback of this turn may have removed it. If the number is in use
            # again, the new callback is called with nothing to read, which all callbacks expect.
            callback = self._callbacks.get(fd)
            if callback is not None:
                try:
                    callback()
                except Exception as error:  # noqa: BLE001 - the others have their turn all the same
                    context = {"message": f"exception in {callback!r}", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(context)
