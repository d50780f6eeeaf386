"""Patterns in output that comes piece by piece."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.environments.commands.expect import AnyPattern, ExpectMatch, PatternSearch


def search(pattern: AnyPattern, *pieces: bytes) -> tuple[ExpectMatch | None, int]:
    looking = PatternSearch(pattern)
    for piece in pieces:
        looking.add(piece)
        found = looking.find()
        if found is not None:
            return found, looking.end
    return None, looking.end


@given(st.binary(max_size=30), st.lists(st.integers(0, 30), max_size=6))
def test_it_does_not_matter_how_the_output_is_cut(data: bytes, cuts: list[int]) -> None:
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(at)]
    expected = data.find(b"\x01\x02")
    found, end = search(b"\x01\x02", *pieces)
    if expected < 0:
        assert (found, end) == (None, 0)
    else:
        assert found is not None
        assert end == expected + 2
        assert found.before == data[:expected].decode(errors="replace")


@given(st.binary(max_size=40))
def test_the_end_of_a_match_in_text_is_one_in_bytes(data: bytes) -> None:
    found, end = search(re.compile("[aä€]x?"), data + "€x".encode() + b"rest")
    assert found is not None
    matched = found.text.encode()
    whole = data + "€x".encode() + b"rest"
    assert whole[end - len(matched) : end] == matched


def test_a_letter_that_comes_in_two_pieces_is_one() -> None:
    found, end = search(re.compile("n.n"), b"gr", b"\xc3", b"n\xc3", b"\xa4n!")
    assert found is not None
    assert (found.text, end) == ("nän", 7)


def test_half_of_a_letter_does_not_match() -> None:
    assert search(re.compile("r."), b"gr\xc3") == (None, 0)


def test_a_match_of_a_regular_expression_has_its_groups() -> None:
    found, _ = search(re.compile(rb"(\d+)%"), b"at 4", b"2% of it")
    assert found is not None
    assert found.match is not None
    assert (found.before, found.text, found.match[1]) == ("at ", "42%", b"42")


def test_what_was_skipped_is_counted() -> None:
    looking = PatternSearch("end")
    looking.add(b"0123456789en")
    assert looking.find() is None
    looking.skip(10)
    looking.add(b"d!")
    found = looking.find()
    assert found is not None
    assert (found.before, found.skipped, looking.end) == ("", 10, 3)


def test_a_long_window_begins_with_a_whole_letter() -> None:
    looking = PatternSearch(re.compile("€!"))
    for _ in range(100):
        looking.add("€".encode() * 1000)
        assert looking.find() is None
    looking.add(b"!")
    found = looking.find()
    assert found is not None
    assert (found.text, looking.end) == ("€!", looking.size)


def test_what_is_no_pattern_is_refused() -> None:
    with pytest.raises(TypeError, match="not list"):
        PatternSearch(["x"])  # type: ignore[arg-type]
    for empty in ("", b""):
        with pytest.raises(ValueError, match="empty"):
            PatternSearch(empty)
