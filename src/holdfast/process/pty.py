"""Terminals: opening one, and its size."""

import fcntl
import os
import struct
import termios

__all__ = ["DEFAULT_SIZE", "open_terminal", "set_size"]

DEFAULT_SIZE = (24, 80)
"""Rows and columns of a terminal nobody gave a size."""


def open_terminal(rows: int, cols: int) -> tuple[int, int]:
    """
    A new terminal: its two ends, the master non-blocking.

    A child opens the other end by its name, `os.ttyname(slave)`, which makes it
    the child's own. The slave is to be closed once the child has it.
    """
    master, slave = os.openpty()
    try:
        set_size(slave, rows, cols)
        os.set_blocking(master, False)
    except BaseException:
        os.close(master)
        os.close(slave)
        raise
    return master, slave


def set_size(fd: int, rows: int, cols: int) -> None:
    """Change the size; the kernel tells the foreground group when it differs."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
