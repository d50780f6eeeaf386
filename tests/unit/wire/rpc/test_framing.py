"""Lines out of a stream of bytes, however it is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.wire.rpc.framing import MAX_LINE, Lines, LineTooLong


def fed(stream: bytes, cuts: list[int], limit: int = MAX_LINE) -> tuple[list[bytes], str]:
    """All lines of a stream that comes in pieces, and how it ended."""
    lines = Lines(limit=limit)
    found: list[bytes] = []
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for start, end in pairwise(edges):
        try:
            found += lines.feed(stream[start:end])
        except LineTooLong as error:
            return found + error.lines, "too long"
    last = lines.end()
    return found + ([] if last is None else [last]), "end"


@pytest.mark.requirement("stdio.lines")
def test_a_line_ends_in_a_line_feed_with_or_without_a_carriage_return() -> None:
    assert Lines().feed(b"one\ntwo\r\nthree\n") == [b"one", b"two", b"three"]


@pytest.mark.requirement("stdio.lines")
def test_only_one_carriage_return_belongs_to_the_end() -> None:
    assert Lines().feed(b"a\rb\r\r\n") == [b"a\rb\r"]


@pytest.mark.requirement("stdio.blank")
def test_blank_lines_are_skipped() -> None:
    assert Lines().feed(b"\n\r\n  \t\r\n a \n\n") == [b" a "]


def test_the_beginning_of_a_line_waits_for_its_end() -> None:
    lines = Lines()
    assert lines.feed(b"on") == []
    assert lines.feed(b"") == []
    assert lines.feed(b"e") == []
    assert lines.feed(b"\ntw") == [b"one"]
    assert lines.feed(b"o\r") == []
    assert lines.feed(b"\n") == [b"two"]
    assert lines.end() is None


@pytest.mark.requirement("stdio.last-line")
def test_a_last_line_needs_no_line_feed() -> None:
    lines = Lines()
    assert lines.feed(b"one\ntw") == [b"one"]
    assert lines.feed(b"o") == []
    assert lines.end() == b"two"
    assert lines.end() is None


@pytest.mark.requirement("stdio.blank")
def test_a_last_line_that_is_blank_is_none() -> None:
    lines = Lines()
    assert lines.feed(b"one\n \r") == [b"one"]
    assert lines.end() is None


@pytest.mark.requirement("stdio.limit")
def test_the_limit_is_the_protocols() -> None:
    assert MAX_LINE == 64 * 1024 * 1024


@pytest.mark.requirement("stdio.limit")
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CR LF"])
@pytest.mark.parametrize("cuts", [[], [3], [10], [11], [1, 2, 3, 4]], ids=str)
def test_a_line_of_the_limit_is_taken_and_one_byte_more_is_not(end: bytes, cuts: list[int]) -> None:
    assert fed(b"x" * 10 + end, cuts, limit=10) == ([b"x" * 10], "end")
    assert fed(b"x" * 11 + end, cuts, limit=10) == ([], "too long")


@pytest.mark.requirement("stdio.limit")
def test_a_line_without_an_end_is_given_up_early() -> None:
    lines = Lines(limit=10)
    assert lines.feed(b"x" * 11) == []  # the last byte may still be a carriage return
    with pytest.raises(LineTooLong):
        lines.feed(b"x")


def test_the_lines_before_one_that_is_too_long_are_not_lost() -> None:
    with pytest.raises(LineTooLong) as caught:
        Lines(limit=5).feed(b"one\ntwo\nthree and more\nfour\n")
    assert caught.value.lines == [b"one", b"two"]


pieces = st.sampled_from([b"\n", b"\r", b"\r\n", b" ", b"a", b"bc", b"\xc3\xa9", b"longer text"])
streams = st.lists(pieces, max_size=30).map(b"".join)
cuts = st.lists(st.integers(0, 200), max_size=8)


@pytest.mark.requirement("stdio.lines")
@given(streams, cuts)
def test_any_split_of_a_stream_gives_the_same_lines(stream: bytes, cuts: list[int]) -> None:
    lines = [line.removesuffix(b"\r") for line in stream.split(b"\n")[:-1]]
    rest = stream.rpartition(b"\n")[2]
    expected = [line for line in [*lines, rest] if line.strip()]
    assert fed(stream, cuts) == (expected, "end")


@pytest.mark.requirement("stdio.limit")
@given(streams.map(lambda stream: stream + b"\n"), cuts, st.integers(1, 12))
def test_any_split_of_a_stream_meets_the_limit_at_the_same_line(
    stream: bytes, cuts: list[int], limit: int
) -> None:
    assert fed(stream, cuts, limit) == fed(stream, [], limit)
