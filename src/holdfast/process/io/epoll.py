"""
One epoll instance for all descriptors of the processes of an event loop.

A short command has three descriptors that are watched: its output, its errors and its pidfd.
With `add_reader` of uvloop each costs six calls of `epoll_ctl` and an object of its own, which
is a tenth of the whole start. Here it is one call to begin and one to end.
"""

import asyncio
import select
from collections.abc import Callable
from weakref import WeakKeyDictionary

__all__ = ["Readers", "readers_of"]

# Descriptors that are served in one turn of the event loop; the others have the next one.
_MOST = 256

_by_loop: "WeakKeyDictionary[asyncio.AbstractEventLoop, Readers]" = WeakKeyDictionary()


def readers_of(loop: asyncio.AbstractEventLoop) -> "Readers":
    """
    Return the readers of an event loop, which live as long as it does.

    Raises:
        OSError: There is no descriptor left to make them.
    """
    readers = _by_loop.get(loop)
    if readers is None:
        readers = _by_loop[loop] = Readers(loop)
    return readers


class Readers:
    """Calls back while descriptors can be read, as `add_reader` of an event loop does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # It keeps no reference to the loop, which could then never be forgotten.
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._ready)

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        """
        Watch a descriptor until `remove`, which has to come before it is closed.

        Raises:
            OSError: The kernel watches as many as it may.
        """
        self._epoll.register(fd, select.EPOLLIN)
        self._callbacks[fd] = callback

    def remove(self, fd: int) -> None:
        """Watch a descriptor no longer; harmless if it is not watched."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def fileno(self) -> int:
        """Return the descriptor of the epoll instance."""
        return self._epoll.fileno()

    def _ready(self) -> None:
        for fd, _ in self._epoll.poll(0, _MOST):
            # One before it may have ended the watch. If the number is used again by now,
            # the new one is called in vain: nobody here counts on there being something.
            callback = self._callbacks.get(fd)
            if callback is not None:
                try:
                    callback()
                except Exception as error:  # noqa: BLE001 - the others have their turn all the same
                    context = {"message": f"exception in {callback!r}", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(context)
