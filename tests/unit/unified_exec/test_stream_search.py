"""A pattern in a stream, however it is cut."""

import asyncio
import random

import pytest

from holdfast.unified_exec.output.patterns import Pattern, compile_pattern
from holdfast.unified_exec.waiting import stream_search
from holdfast.unified_exec.waiting.stream_search import LONGEST_MATCH, StreamSearch

pytestmark = pytest.mark.virtual_time


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
    found: list[bytes] = []
    searching = StreamSearch(compile_pattern(pattern), found.append)
    for piece in pieces:
        searching.feed(piece)
    searching.flush()
    searching.close()
    assert len(found) <= 1
    return found[0] if found else None


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
async def test_a_match_is_found_however_the_stream_is_cut(
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


async def test_a_match_may_be_as_long_as_promised() -> None:
    for noise in (b"", b"n" * 300_000, b"n" * 65_537):
        text = b"<" + b"x" * (LONGEST_MATCH - 2) + b">"
        assert search("<x+>", noise, text[:10], text[10:-1], text[-1:]) == text


async def test_the_begin_of_what_is_kept_is_not_the_begin_of_a_line() -> None:
    assert search("^n", b"m", b"n" * 200_000, b"n") is None
    assert search(r"\bn", b"m", b"n" * 200_000, b"n") is None
    assert search("^n", b"m" + b"n" * 200_000, b"\n", b"n") == b"n"


async def test_a_large_piece_is_searched_in_parts() -> None:
    found: list[bytes] = []
    pattern = Counting("needle")
    searching = StreamSearch(pattern, found.append)
    searching.feed(b"x" * 3_000_000 + b"needle" + b"x" * 100)
    searching.flush()
    assert found == [b"needle"]
    searching.feed(b"needle")
    searching.flush()
    assert found == [b"needle"]


async def test_a_stream_of_single_bytes_is_not_searched_for_each() -> None:
    found: list[bytes] = []
    pattern = Counting("needle")
    searching = StreamSearch(pattern, found.append)
    for _ in range(10_000):
        searching.feed(b"x")
    for byte in b"needle":
        searching.feed(bytes([byte]))
    assert pattern.searches == 1
    await asyncio.sleep(stream_search._INTERVAL)
    assert pattern.searches == 2
    assert found == [b"needle"]


async def test_a_closed_search_finds_nothing() -> None:
    found: list[bytes] = []
    searching = StreamSearch(compile_pattern("b"), found.append)
    searching.feed(b"a")
    searching.feed(b"b")
    searching.close()
    searching.close()
    searching.feed(b"b")
    searching.flush()
    await asyncio.sleep(1)
    assert found == []


async def test_a_pattern_that_is_too_slow_ends_the_search() -> None:
    found: list[bytes] = []
    given_up: list[bool] = []
    pattern = compile_pattern("(a?){400}a{400}b")
    searching = StreamSearch(pattern, found.append, lambda: given_up.append(True))
    searching.feed(b"a" * (1 << 20))
    searching.feed(b"a" * 400 + b"b")
    searching.flush()
    assert (found, given_up) == ([], [True])
