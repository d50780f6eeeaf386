"""Pseudo-terminals: opening a pair and setting its size."""

import fcntl
import os
import struct
import termios

from holdfast.base.dialect import limits

__all__ = ["DEFAULT_SIZE", "open_terminal", "set_size"]

# Rows and columns of a terminal whose start gives no size.
DEFAULT_SIZE = limits.TERMINAL_SIZE


def open_terminal(rows: int, cols: int) -> tuple[int, int]:
    """
    Open a pseudo-terminal and return its master, which is non-blocking, and its slave.

    The child opens the slave by its name, `os.ttyname(slave)`: a session leader gets it as its
    controlling terminal that way. Close the slave once the child has opened it.
    """
    master, slave = os.openpty()
    try:
        # Before the child exists, so that it never sees another size, nor a SIGWINCH.
        set_size(slave, rows, cols)
        os.set_blocking(master, False)
    except BaseException:
        os.close(master)
        os.close(slave)
        raise
    return master, slave


def set_size(fd: int, rows: int, cols: int) -> None:
    """Set the window size; the kernel sends SIGWINCH to the foreground group if it changed."""
    # struct winsize: rows, columns, and two unused sizes in pixels.
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
