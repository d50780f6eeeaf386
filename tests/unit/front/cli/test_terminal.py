"""Raw mode and sizes, on a real terminal."""

import fcntl
import os
import pty
import struct
import termios
from collections.abc import Iterator

import pytest

from holdfast.front.cli.terminal import RawTerminal, terminal_size
from holdfast.wire.protocol.process import TerminalSize


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """The two ends of a terminal: master and slave."""
    both = pty.openpty()
    yield both
    for fd in both:
        try:
            os.close(fd)
        except OSError:
            continue  # the test has done so


def _is_raw(fd: int) -> bool:
    return not termios.tcgetattr(fd)[3] & (termios.ICANON | termios.ECHO | termios.ISIG)


def test_it_is_raw_inside_and_as_before_outside(ends: tuple[int, int]) -> None:
    _, slave = ends
    before = termios.tcgetattr(slave)
    with RawTerminal(slave):
        assert _is_raw(slave)
    assert termios.tcgetattr(slave) == before


def test_it_is_as_before_after_an_error(ends: tuple[int, int]) -> None:
    _, slave = ends
    before = termios.tcgetattr(slave)
    with pytest.raises(ZeroDivisionError), RawTerminal(slave):
        raise ZeroDivisionError
    assert termios.tcgetattr(slave) == before


def test_it_can_be_lent(ends: tuple[int, int]) -> None:
    _, slave = ends
    before = termios.tcgetattr(slave)
    with RawTerminal(slave) as terminal:
        terminal.restore()
        assert termios.tcgetattr(slave) == before
        terminal.make_raw()
        assert _is_raw(slave)
    terminal.make_raw()
    assert termios.tcgetattr(slave) == before


def test_keys_that_were_typed_ahead_are_kept(ends: tuple[int, int]) -> None:
    master, slave = ends
    os.write(master, b"early")
    with RawTerminal(slave):
        assert os.read(slave, 100) == b"early"
        os.write(master, b"late\n")
    assert os.read(slave, 100) == b"late\n"


def test_a_terminal_that_is_gone_needs_no_restoring(ends: tuple[int, int]) -> None:
    master, slave = ends
    with RawTerminal(slave) as terminal:
        os.close(master)
        terminal.make_raw()


def test_the_size_is_that_of_the_first_stream_that_has_one(
    ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, slave = ends
    sizes = {0: None, 1: slave}

    def look(fd: int) -> os.terminal_size:
        terminal = sizes.get(fd)
        if terminal is None:
            raise OSError("no terminal")
        rows, cols, _, _ = struct.unpack(
            "HHHH", fcntl.ioctl(terminal, termios.TIOCGWINSZ, b"\0" * 8)
        )
        return os.terminal_size((cols, rows))

    monkeypatch.setattr(os, "get_terminal_size", look)
    assert terminal_size() is None  # one that was never told its size
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 5, 6, 0, 0))
    assert terminal_size() == TerminalSize(rows=5, cols=6)
