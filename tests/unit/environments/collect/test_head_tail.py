"""Of a stream of any length the beginning and the end are kept, and the rest is counted."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.environments.collect.head_tail import Captured, HeadTail

PIECES = st.lists(st.binary(min_size=1, max_size=40), max_size=20)


def capture(size: int, *pieces: bytes) -> Captured:
    buffer = HeadTail(size)
    for piece in pieces:
        buffer.append(piece)
    return buffer.captured()


def naive(size: int, everything: bytes) -> Captured:
    """Return what a buffer without a limit would keep."""
    if len(everything) <= size:
        return Captured(everything)
    head = size // 2
    tail = size - head
    return Captured(everything[:head], everything[len(everything) - tail :], len(everything) - size)


def test_what_fits_is_kept_as_it_is() -> None:
    assert capture(10) == Captured()
    assert capture(10, b"01234", b"56789") == Captured(b"0123456789")
    assert capture(10, b"0123456789") == Captured(b"0123456789")


def test_what_does_not_fit_is_left_out_in_the_middle() -> None:
    buffer = HeadTail(10)
    buffer.append(b"0123456789abcdef")
    kept = buffer.captured()
    assert kept == Captured(b"01234", b"bcdef", 6)
    assert kept.size == 16
    assert bytes(kept) == b"01234\n[... 6 bytes left out ...]\nbcdef"
    assert kept.text == "01234\n[... 6 bytes left out ...]\nbcdef"


def test_nothing_may_be_kept_at_all() -> None:
    assert capture(0, b"abc", b"d" * 5000) == Captured(b"", b"", 5003)


def test_an_odd_byte_is_for_the_end() -> None:
    assert capture(11, b"0123456789abcdef") == Captured(b"01234", b"abcdef", 5)


def test_a_size_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot keep -1 bytes"):
        HeadTail(-1)


@given(size=st.integers(0, 64), pieces=PIECES)
def test_the_parts_are_those_of_the_stream_however_it_was_cut(
    size: int, pieces: list[bytes]
) -> None:
    buffer = HeadTail(size)
    everything = b""
    for piece in pieces:
        buffer.append(piece)
        everything += piece
        assert buffer.captured() == naive(size, everything)


def test_large_and_small_pieces_keep_their_order() -> None:
    pieces = [b"a" * 5000, b"b", b"c", b"d" * 9000, b"e", b"f" * 70_000, b"g", b"h"]
    for size in (0, 7, 10_000, 80_000, 200_000):
        assert capture(size, *pieces) == naive(size, b"".join(pieces))


@pytest.mark.parametrize("piece", [b"x", b"y" * (64 << 10)], ids=["byte", "64 KiB"])
@pytest.mark.parametrize("size", [16, 1 << 16])
def test_memory_is_bounded_by_the_size(size: int, piece: bytes) -> None:
    buffer = HeadTail(size)
    count = 300_000 // len(piece) + 100
    for _ in range(count):
        buffer.append(piece)
    assert buffer.captured().size == count * len(piece)
    blocks = [*buffer._head, *buffer._tail]
    assert sum(map(sys.getsizeof, blocks)) < 4 * size + 1024


@pytest.mark.parametrize("size", range(8, 24))
def test_a_letter_that_the_cap_cuts_in_two_is_left_out(size: int) -> None:
    kept = capture(size, "ä€😀".encode() * 10)
    assert kept.omitted
    assert "\ufffd" not in kept.text


def test_what_is_no_text_is_replaced() -> None:
    assert Captured(b"a\xffb").text == "a\ufffdb"
    assert Captured(b"a\xffb", b"\x80\x80\x80\x80\x80", 7).text.startswith("a\ufffdb\n[... 7 ")
