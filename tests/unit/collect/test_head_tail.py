"""Of a stream of any length the beginning and the end are kept, and the rest is counted."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collect.head_tail import BYTES_OMITTED, Captured, HeadTail

PIECES = st.lists(st.binary(min_size=1, max_size=40), max_size=20)


def filled(size: int, *pieces: bytes, head: int | None = None) -> HeadTail:
    buffer = HeadTail(size, head=head, marker=BYTES_OMITTED)
    for piece in pieces:
        buffer.append(piece)
    return buffer


def capture(size: int, *pieces: bytes) -> Captured:
    return filled(size, *pieces).captured()


def naive(size: int, head: int, everything: bytes) -> Captured:
    """Return what a buffer without a limit would keep."""
    if len(everything) <= size:
        return Captured(everything)
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
    assert bytes(kept) == b"01234\n[... 6 bytes left out ...]\nbcdef" == bytes(buffer)
    assert kept.text == "01234\n[... 6 bytes left out ...]\nbcdef" == buffer.text


def test_the_vectors_of_unified_exec() -> None:
    assert bytes(filled(10, b"0123456789", b"ab")) == b"01234\n... 2 bytes omitted ...\n789ab"
    one = filled(1, b"abc")
    assert one.captured() == Captured(b"", b"c", 2)
    none = filled(0, b"abc")
    assert (none.captured(), none.omitted, none.total) == (Captured(b"", b"", 3), 3, 3)


def test_nothing_may_be_kept_at_all() -> None:
    assert capture(0, b"abc", b"d" * 5000) == Captured(b"", b"", 5003)


def test_an_odd_byte_is_for_the_end() -> None:
    assert capture(11, b"0123456789abcdef") == Captured(b"01234", b"abcdef", 5)


@pytest.mark.parametrize(("size", "head"), [(-1, None), (4, 5), (4, -1)])
def test_a_size_that_makes_no_sense_is_refused(size: int, head: int | None) -> None:
    with pytest.raises(ValueError, match="bytes cannot have a head"):
        HeadTail(size, head=head)


@given(size=st.integers(0, 64), data=st.data(), pieces=PIECES)
def test_the_parts_are_those_of_the_stream_however_it_was_cut(
    size: int, data: st.DataObject, pieces: list[bytes]
) -> None:
    head = data.draw(st.integers(0, size))
    buffer = HeadTail(size, head=head)
    everything = b""
    for piece in pieces:
        buffer.append(piece)
        everything += piece
        assert (buffer.total, buffer.omitted) == (len(everything), max(0, len(everything) - size))
    assert buffer.captured() == naive(size, head, everything)


@given(size=st.integers(0, 40), first=PIECES, second=PIECES)
def test_a_merge_equals_appending_what_the_later_one_was_given(
    size: int, first: list[bytes], second: list[bytes]
) -> None:
    merged, later = filled(size, *first), filled(size, *second)
    merged.merge(later)
    expected = filled(size, *first, *second)
    assert merged.captured() == expected.captured()
    assert (merged.total, merged.omitted) == (expected.total, expected.omitted)
    assert later.captured() == filled(size, *second).captured()  # as it was
    merged.append(b"more")
    expected.append(b"more")
    assert merged.captured() == expected.captured()


@given(size=st.integers(0, 40), parts=st.tuples(PIECES, PIECES, PIECES))
def test_it_does_not_matter_in_which_order_neighbours_are_merged(
    size: int, parts: tuple[list[bytes], list[bytes], list[bytes]]
) -> None:
    left, middle, right = (filled(size, *part) for part in parts)
    left.merge(middle)
    left.merge(right)
    first, second, third = (filled(size, *part) for part in parts)
    second.merge(third)
    first.merge(second)
    assert left.captured() == first.captured()
    assert (left.total, left.omitted) == (first.total, first.omitted)


@given(sizes=st.tuples(st.integers(0, 40), st.integers(0, 40)), first=PIECES, second=PIECES)
def test_a_merge_of_other_sizes_has_one_gap_and_counts_all(
    sizes: tuple[int, int], first: list[bytes], second: list[bytes]
) -> None:
    merged = filled(sizes[0], *first)
    merged.merge(filled(sizes[1], *second))
    kept, everything = merged.captured(), b"".join((*first, *second))
    assert kept.size == merged.total == len(everything)
    assert everything.startswith(kept.head)
    assert everything.endswith(kept.tail)
    assert len(kept.head) + len(kept.tail) <= sizes[0]


def test_what_was_taken_is_gone() -> None:
    buffer = filled(4, b"abcdefgh")
    assert buffer.take() == Captured(b"ab", b"gh", 4)
    assert (buffer.take(), buffer.total, buffer.omitted) == (Captured(), 0, 0)
    buffer.append(b"xyz")
    assert buffer.take() == Captured(b"xyz")


def test_large_and_small_pieces_keep_their_order() -> None:
    pieces = [b"a" * 5000, b"b", b"c", b"d" * 9000, b"e", b"f" * 70_000, b"g", b"h"]
    for size in (0, 7, 10_000, 80_000, 200_000):
        assert capture(size, *pieces) == naive(size, size // 2, b"".join(pieces))


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
