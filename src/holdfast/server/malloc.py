"""How the memory of a server is kept for its next message."""

import ctypes

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

KEPT = 32 << 20
"""Bytes; the most the C library takes for either."""


def keep_freed_memory() -> None:
    """
    Give a few freed megabytes back to the kernel later than the C library would.

    A block of a file on its way is held three times, as a message, as text and as
    bytes. By default each of them is new memory, and to have the kernel clear it
    page by page takes twice as long as all else that is done with the block. Where
    the C library is not GNU's, nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(_M_MMAP_THRESHOLD, KEPT)
    mallopt(_M_TRIM_THRESHOLD, KEPT)
