"""Programs that write in a way that no shell does."""

import sys

__all__ = ["COUNTING", "SINGLE_BYTES", "counting", "single_bytes"]

SINGLE_BYTES = """
import fcntl, os, sys
fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_DIRECT)
for _ in range(int(sys.argv[1])):
    os.write(1, b"x")
"""
"""Writes single bytes into a pipe of packets (`O_DIRECT`): one `read` returns one of them."""

COUNTING = """
import os, sys
count = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for blocks in range(1, 8001):
    os.write(1, bytes(4096))
    os.pwrite(count, str(blocks * 4096).encode(), 0)
"""
"""Writes 32 MB, more than fits on any way, and notes in a file how much the kernel has taken."""


def single_bytes(count: int) -> list[str]:
    """Return a command that writes so many single bytes, each of which is an event."""
    return [sys.executable, "-c", SINGLE_BYTES, str(count)]


def counting(path: object) -> list[str]:
    """Return a command that writes until it is stopped, and notes how far it came."""
    return [sys.executable, "-c", COUNTING, str(path)]
