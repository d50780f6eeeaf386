"""Settings of malloc that keep freed memory for the next message."""

import ctypes

__all__ = ["keep_freed_memory"]

# Parameters of mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

# Bytes; the largest value that glibc accepts for either threshold.
KEPT = 32 << 20


def keep_freed_memory() -> None:
    """
    Return freed memory to the kernel later than glibc would by default.

    A block of a file is in memory three times: as a message, as text and as bytes. By default
    each of them is mapped anew, and the kernel has to clear it page by page. That takes twice as
    long as all other work on the block (`scripts/bench --without kept-memory`). With another C
    library nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(_M_MMAP_THRESHOLD, KEPT)
    mallopt(_M_TRIM_THRESHOLD, KEPT)
