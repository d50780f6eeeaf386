"""Programs that write in a way that no shell does."""

import sys

__all__ = ["COUNTING", "SINGLE_BYTES", "counting", "single_bytes"]

SINGLE_BYTES = """
import array, fcntl, os, sys, termios, time
for _ in range(int(sys.argv[1])):
    os.write(1, b"x")
    waiting = array.array("i", [1])
    while waiting[0]:
        fcntl.ioctl(1, termios.FIONREAD, waiting)
        time.sleep(0)
"""
"""Writes bytes, each after the one before it was taken out of the pipe."""

COUNTING = """
import os, sys
count = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for blocks in range(1, 2001):
    os.write(1, bytes(4096))
    os.pwrite(count, str(blocks * 4096).encode(), 0)
"""
"""Writes 8 MB, and notes in a file how much of it the kernel has taken."""


def single_bytes(count: int) -> list[str]:
    """Return a command that writes so many single bytes, each of which is an event."""
    return [sys.executable, "-c", SINGLE_BYTES, str(count)]


def counting(path: object) -> list[str]:
    """Return a command that writes until it is stopped, and notes how far it came."""
    return [sys.executable, "-c", COUNTING, str(path)]
