"""Of a stream of any length the beginning and the end are kept, and the rest is counted."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.environments.commands.capture import Capture, Captured


def capture(cap: int, *pieces: bytes) -> Captured:
    capturing = Capture(cap)
    for piece in pieces:
        capturing.add(piece)
    return capturing.captured()


def test_what_fits_is_kept_as_it_is() -> None:
    assert capture(10) == Captured()
    assert capture(10, b"01234", b"56789") == Captured(b"0123456789")
    assert capture(10, b"0123456789") == Captured(b"0123456789")


def test_what_does_not_fit_is_left_out_in_the_middle() -> None:
    kept = capture(10, b"0123456789abcdef")
    assert kept == Captured(b"01234", b"bcdef", 6)
    assert kept.size == 16
    assert bytes(kept) == b"01234\n[... 6 bytes left out ...]\nbcdef"
    assert kept.text == "01234\n[... 6 bytes left out ...]\nbcdef"


def test_nothing_may_be_kept_at_all() -> None:
    assert capture(0, b"abc", b"d" * 5000) == Captured(b"", b"", 5003)
    assert capture(1, b"abc") == Captured(b"a", b"", 2)


@given(
    cap=st.integers(0, 64),
    pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=20),
)
def test_the_parts_are_those_of_the_stream_however_it_was_cut(
    cap: int, pieces: list[bytes]
) -> None:
    everything = b"".join(pieces)
    kept = capture(cap, *pieces)
    assert kept.size == len(everything)
    if len(everything) <= cap:
        assert kept == Captured(everything)
    else:
        assert kept.head == everything[: cap - cap // 2]
        assert kept.tail == everything[len(everything) - cap // 2 :]


def test_large_and_small_pieces_keep_their_order() -> None:
    pieces = [b"a" * 5000, b"b", b"c", b"d" * 9000, b"e", b"f" * 70_000, b"g", b"h"]
    everything = b"".join(pieces)
    for cap in (0, 7, 10_000, 80_000, 200_000):
        kept = capture(cap, *pieces)
        assert kept.head == everything[: max(cap - cap // 2, len(kept.head))]
        assert (kept.head + everything[len(kept.head) : len(kept.head) + kept.omitted]) + (
            kept.tail
        ) == everything


def test_a_byte_at_a_time_costs_no_more_than_the_cap() -> None:
    capturing = Capture(1 << 16)
    for _ in range(300_000):
        capturing.add(b"x")
    assert capturing.captured().size == 300_000
    blocks = [*capturing._head, *capturing._tail]
    assert sum(map(sys.getsizeof, blocks)) < 4 << 16


@pytest.mark.parametrize("cap", range(8, 24))
def test_a_letter_that_the_cap_cuts_in_two_is_left_out(cap: int) -> None:
    kept = capture(cap, "ä€😀".encode() * 10)
    assert kept.omitted
    assert "\ufffd" not in kept.text


def test_what_is_no_text_is_replaced() -> None:
    assert Captured(b"a\xffb").text == "a\ufffdb"
    assert Captured(b"a\xffb", b"\x80\x80\x80\x80\x80", 7).text.startswith("a\ufffdb\n[... 7 ")
