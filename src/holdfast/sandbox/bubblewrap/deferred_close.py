"""
Closes descriptors in a thread, a moment later.

The last descriptor of a folder that was removed is where the system frees it, and it may
wait for the disk there: with eight of them as long as a tenth of a sandboxed command
takes. Nobody else has to wait for that, least of all the start of the next command.
"""

import os
import threading
import time
from contextlib import suppress
from queue import SimpleQueue

__all__ = ["close_in_background"]

_PAUSE = 0.003
"""Seconds to let others go first: by then the next command of a busy server is on its way."""

_MOST_WAITING = 64
"""How many may wait for the thread; whoever comes then waits for the disk."""

_queue: SimpleQueue[list[int]] = SimpleQueue()
_starting = threading.Lock()
_thread: threading.Thread | None = None


def close_in_background(descriptors: list[int]) -> None:
    """Close these in a moment; they are no longer the caller's."""
    global _thread
    if _queue.qsize() >= _MOST_WAITING:
        _close(descriptors)
        return
    _queue.put(descriptors)
    with _starting:
        # A fork leaves the thread behind.
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="holdfast-closer", daemon=True)
            _thread.start()


def _run() -> None:
    while True:
        descriptors = _queue.get()
        time.sleep(_PAUSE)
        _close(descriptors)
        while not _queue.empty():  # they have come meanwhile, and need no pause of their own
            _close(_queue.get())


def _close(descriptors: list[int]) -> None:
    for fd in descriptors:
        with suppress(OSError):  # it is closed all the same
            os.close(fd)
