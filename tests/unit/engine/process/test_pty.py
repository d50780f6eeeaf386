"""Terminals: sizes and modes."""

import fcntl
import os
import struct
import termios
from collections.abc import Iterator

import pytest

from holdfast.engine.process.pty import DEFAULT_SIZE, open_terminal, set_size


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    master, slave = open_terminal(*DEFAULT_SIZE)
    yield master, slave
    os.close(master)
    os.close(slave)


def size(fd: int) -> tuple[int, int]:
    rows, cols, _, _ = struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))
    return rows, cols


@pytest.mark.requirement("pty.size")
def test_a_terminal_has_24_rows_and_80_columns_unless_told_otherwise(
    terminal: tuple[int, int],
) -> None:
    assert size(terminal[1]) == (24, 80)


def test_the_size_can_be_changed_from_the_other_end(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    set_size(master, 50, 200)
    assert size(slave) == (50, 200)
    set_size(master, 65535, 1)
    assert size(slave) == (65535, 1)


@pytest.mark.requirement("pty.modes")
def test_the_modes_are_the_kernels(terminal: tuple[int, int]) -> None:
    iflag, oflag, _, lflag, *_ = termios.tcgetattr(terminal[1])
    assert iflag & termios.ICRNL
    assert iflag & termios.IXON
    assert not iflag & getattr(termios, "IUTF8", 0x4000)
    assert oflag & termios.OPOST
    assert oflag & termios.ONLCR
    for flag in (termios.ICANON, termios.ECHO, termios.ISIG):
        assert lflag & flag


def test_only_our_end_does_not_block(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    assert not os.get_blocking(master)
    assert os.get_blocking(slave)


def test_a_size_that_cannot_be_set_leaves_nothing_open() -> None:
    with pytest.raises(struct.error):
        open_terminal(-1, 80)
