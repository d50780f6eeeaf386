"""Typing into the terminal of others, and driving its driver."""

import errno
import fcntl
import os
import termios

import pytest

from tests.breakout.inside import Ground, reaches
from tests.breakout.table import attempt


@attempt("workspace", "networked", "offline", blocked_by="EPERM", tty=True, kernel="typing by call")
@pytest.mark.requirement("security.sandbox.calls")
def type_into_the_terminal(at: Ground) -> None:
    """What is typed there is read by whoever reads it next."""
    del at
    fcntl.ioctl(0, termios.TIOCSTI, b"x")


@attempt("workspace", "networked", blocked_by="EPERM", tty=True)
def paste_into_a_console(at: Ground) -> None:
    """`TIOCLINUX`; a terminal that is no console says that it is none."""
    del at
    reaches(lambda: fcntl.ioctl(0, 0x541C, b"\x03"), errno.ENOTTY)


@attempt("workspace", "networked", blocked_by="EPERM ENOENT ENXIO EIO", tty=True)
def type_into_the_terminal_by_another_name(at: Ground) -> None:
    del at
    fd = os.open("/dev/tty", os.O_RDWR)
    fcntl.ioctl(fd, termios.TIOCSTI, b"x")
