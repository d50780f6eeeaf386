"""The bar, on a terminal that is none."""

import io

import pytest

from holdfast.front.cli.fs_transfer import Progress, human_size


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_nothing_is_shown_where_nobody_looks() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress("f", 100, stream=stream, clock=clock) as progress:
        clock.now = 5.0
        progress.advance(50)
    assert stream.getvalue() == ""


def test_a_short_transfer_shows_nothing() -> None:
    stream, clock = Terminal(), Clock()
    with Progress("f", 100, stream=stream, clock=clock) as progress:
        clock.now = 0.4
        progress.advance(100)
    assert stream.getvalue() == ""


def test_a_long_one_shows_how_far_it_is_and_cleans_up() -> None:
    stream, clock = Terminal(), Clock()
    with Progress("big", 4096, start=1024, stream=stream, clock=clock) as progress:
        clock.now = 1.0
        progress.advance(1024)
        shown = stream.getvalue()
        clock.now = 1.05
        progress.advance(1)
        assert stream.getvalue() == shown  # not so soon again
    assert "big  ████████████░░░░░░░░░░░░  50%  2.0 KiB of 4.0 KiB  1.0 KiB/s  0:02 left" in shown
    assert stream.getvalue().endswith("\r\x1b[K")


def test_without_a_size_there_is_no_bar() -> None:
    stream, clock = Terminal(), Clock()
    with Progress("stdin", None, stream=stream, clock=clock) as progress:
        clock.now = 2.0
        progress.advance(2048)
    assert "stdin  2.0 KiB  1.0 KiB/s" in stream.getvalue()


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 40, "3.0 TiB")],
)
def test_sizes_are_readable(size: int, text: str) -> None:
    assert human_size(size) == text
