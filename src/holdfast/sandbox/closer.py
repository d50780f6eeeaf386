"""
Closes descriptors in a thread, a moment later.

The last descriptor of a folder that was removed is where the system frees it, and it may
wait for the disk there: with eight of them as long as a tenth of a sandboxed command
takes. Nobody else has to wait for that, least of all the start of the next command.
"""

import os
import threading
import time
from queue import SimpleQueue

__all__ = ["close_soon"]

_PAUSE = 0.003
"""Seconds to let others go first: by then the next command of a busy server is on its way."""


_queue: SimpleQueue[list[int]] = SimpleQueue()
_starting = threading.Lock()
_thread: threading.Thread | None = None


def close_soon(descriptors: list[int]) -> None:
    """Close these in a moment; they are no longer the caller's."""
    global _thread
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
        for fd in descriptors:
            os.close(fd)
