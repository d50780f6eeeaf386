"""A pattern in a stream, however it is cut."""

import random

import pytest

from holdfast.agent.unified_exec.output.patterns import Pattern, compile_pattern
from holdfast.agent.unified_exec.waiting.stream_search import LONGEST_MATCH, StreamSearch


class Counting(Pattern):
    """Counts what is searched."""

    def __init__(self, text: str) -> None:
        super().__init__(text, compile_pattern(text)._engine)
        self.searches = 0

    def search(self, data: bytes, start: int = 0, end: int | None = None) -> tuple[int, int] | None:
        self.searches += 1
        assert len(data) <= 2 * LONGEST_MATCH + 1  # bounded, whatever comes
        return super().search(data, start, end)


def search(pattern: str, *pieces: bytes) -> bytes | None:
    searching = StreamSearch(compile_pattern(pattern))
    for piece in pieces:
        searching.feed(piece)
    return searching.match


@pytest.mark.parametrize(
    ("pattern", "text", "match"),
    [
        (r"listening on \d+", b"x listening on 80, listening on 81", b"listening on 80"),
        (r"^b$", b"a\r\nb\r\nc", b"b"),
        (r"^b$", b"ab\r\n", None),
        (r"\$ $", b"\x1b[0mroot# $ ", b"$ "),
        ("é+", "caféé".encode(), "éé".encode()),
        (r"a\nb", b"a\r\nb", b"a\nb"),
        (r"(a*)*c", b"a" * 1000 + b"b", None),
        (r"x\xffy", b"x\xffy", None),
        (r"ready", b"\xff\xfe ready", b"ready"),
    ],
)
def test_a_match_is_found_however_the_stream_is_cut(
    pattern: str, text: bytes, match: bytes | None
) -> None:
    assert search(pattern, text) == match
    dice = random.Random(1)
    for _ in range(20):
        cuts = sorted(dice.randrange(len(text) + 1) for _ in range(5))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        found = search(pattern, *pieces)
        # The first match counts as soon as it is there: the next piece could make it longer.
        assert found == match or (match and found and match.startswith(found))


def test_a_match_may_be_as_long_as_promised() -> None:
    for noise in (b"", b"n" * 300_000, b"n" * 65_537):
        text = b"<" + b"x" * (LONGEST_MATCH - 2) + b">"
        assert search("<x+>", noise, text[:10], text[10:-1], text[-1:]) == text


def test_the_begin_of_what_is_kept_is_not_the_begin_of_a_line() -> None:
    assert search("^n", b"m", b"n" * 200_000, b"n") is None
    assert search(r"\bn", b"m", b"n" * 200_000, b"n") is None
    assert search("^n", b"m" + b"n" * 200_000, b"\n", b"n") == b"n"


def test_a_large_piece_is_searched_in_parts() -> None:
    searching = StreamSearch(Counting("needle"))
    searching.feed(b"x" * 3_000_000 + b"needle" + b"x" * 100)
    assert searching.match == b"needle"
    searching.feed(b"needle")
    assert searching.match == b"needle"


def test_a_pattern_that_is_too_slow_ends_the_search() -> None:
    searching = StreamSearch(compile_pattern("(a?){400}a{400}b"))
    searching.feed(b"a" * (1 << 20))
    searching.feed(b"a" * 400 + b"b")
    assert (searching.match, searching.given_up) == (None, True)
