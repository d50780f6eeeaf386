"""Live output comes in pieces of bounded size that do not end inside of a character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.unified_exec.sessions.session_events import (
    DELTA_BYTES,
    MOST_DELTAS,
    DeltaCutter,
)


def pieces(*chunks: bytes) -> list[bytes]:
    cutter = DeltaCutter()
    found = [piece for chunk in chunks for piece in cutter.feed(chunk)]
    return found + cutter.finish()


@pytest.mark.requirement("unified-exec.events.delta-size")
@given(st.lists(st.text(max_size=9_000).map(str.encode), max_size=4), st.integers(1, 40))
def test_nothing_is_lost_and_no_character_is_cut(texts: list[bytes], step: int) -> None:
    data = b"".join(texts)
    chunks = [data[at : at + step * 211] for at in range(0, len(data), step * 211)]
    found = pieces(*chunks)
    assert b"".join(found) == data
    assert all(0 < len(piece) <= DELTA_BYTES for piece in found)
    for piece in found:
        piece.decode()  # each is whole


@pytest.mark.requirement("unified-exec.events.delta-size")
@given(st.lists(st.binary(min_size=1, max_size=20_000), max_size=4))
def test_bytes_that_are_no_text_pass_through(chunks: list[bytes]) -> None:
    found = pieces(*chunks)
    assert b"".join(found) == b"".join(chunks)
    assert all(0 < len(piece) <= DELTA_BYTES for piece in found)


@pytest.mark.requirement("unified-exec.events.delta-size")
def test_an_unfinished_character_waits_for_its_rest() -> None:
    cutter = DeltaCutter()
    euro = "€".encode()
    assert cutter.feed(b"a" + euro[:1]) == [b"a"]
    assert cutter.feed(euro[1:2]) == []
    assert cutter.feed(euro[2:] + b"b") == [euro + b"b"]
    assert cutter.feed(b"\xf0\x9f\x98") == []
    assert cutter.finish() == [b"\xf0\x9f\x98"]
    assert cutter.finish() == []


def test_a_first_byte_that_begins_no_character_is_not_waited_for() -> None:
    for byte in (b"\x80", b"\xc0", b"\xc1", b"\xf5", b"\xff"):
        assert DeltaCutter().feed(byte) == [byte]


@pytest.mark.requirement("unified-exec.events.delta-count", "unified.12.delta-count")
def test_after_ten_thousand_pieces_none_follow() -> None:
    cutter = DeltaCutter()
    for _ in range(MOST_DELTAS - 2):
        assert cutter.feed(b"x") == [b"x"]
    assert [len(piece) for piece in cutter.feed(bytes(3 * DELTA_BYTES))] == [DELTA_BYTES] * 2
    assert cutter.feed(b"x") == []
    assert cutter.finish() == []
