"""The small answer: head, tail and grep of one call, with the counts of the whole."""

import random
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.unified_exec.output.selection import Selected, Selection, Selector
from holdfast.base.errors import InvalidParams


def select(
    *chunks: bytes,
    head: int | None = None,
    tail: int | None = None,
    grep: str | None = None,
    max_bytes: int = 40_000,
) -> Selected:
    selector = Selector(Selection(head=head, tail=tail, grep=grep), max_bytes=max_bytes)
    for chunk in chunks:
        selector.feed(chunk)
    return selector.selected()


def shown(selected: Selected) -> tuple[bytes, str]:
    return selected.text_bytes, selected.note


def numbers(last: int, first: int = 1) -> bytes:
    return b"".join(b"%d\n" % number for number in range(first, last + 1))


def test_nothing_selected_is_no_selection() -> None:
    assert not Selection()
    assert Selection(head=0)
    assert Selection(grep="")


@pytest.mark.requirement("unified-exec.selection")
def test_the_first_lines() -> None:
    selected = select(numbers(48_112), head=40)
    assert shown(selected) == (numbers(40), "lines 1 to 40 of 48,112")
    assert (selected.total_lines, selected.shown_lines) == (48_112, 40)
    assert (selected.matching_lines, selected.complete) == (None, False)
    assert selected.output() == (
        b"[lines 1 to 40 of 48,112; read_output shows the rest]\n" + numbers(40)
    )
    assert selected.output(hint="") == b"[lines 1 to 40 of 48,112]\n" + numbers(40)


@pytest.mark.requirement("unified-exec.selection")
def test_the_last_lines() -> None:
    selected = select(numbers(48_112), tail=40)
    assert shown(selected) == (numbers(48_112, 48_073), "last 40 of 48,112 lines")


@pytest.mark.requirement("unified-exec.selection")
def test_the_first_and_the_last_lines() -> None:
    selected = select(numbers(1000), head=2, tail=1)
    assert selected.text_bytes == b"1\n2\n[... 997 lines left out ...]\n1000\n"
    assert selected.note == "first 2 and last 1 of 1,000 lines"


@pytest.mark.requirement("unified-exec.selection")
def test_the_lines_that_match() -> None:
    selected = select(numbers(48_112), grep="^4811[0-9]$")
    assert shown(selected) == (b"48110\n48111\n48112\n", "3 of 48,112 lines match")
    assert selected.matching_lines == 3
    selected = select(numbers(48_112), grep="^48[0]11$")
    assert shown(selected) == (b"48011\n", "1 of 48,112 lines matches")
    selected = select(numbers(100), grep="x")
    assert shown(selected) == (b"", "0 of 100 lines match")


@pytest.mark.requirement("unified-exec.selection")
def test_the_ends_of_the_lines_that_match() -> None:
    assert shown(select(numbers(100), grep="7", head=2)) == (
        b"7\n17\n",
        "19 of 100 lines match, the first 2 shown",
    )
    assert shown(select(numbers(100), grep="7", tail=2)) == (
        b"87\n97\n",
        "19 of 100 lines match, the last 2 shown",
    )
    assert shown(select(numbers(100), grep="7", head=1, tail=1)) == (
        b"7\n[... 17 lines left out ...]\n97\n",
        "19 of 100 lines match, the first 1 and the last 1 shown",
    )
    assert shown(select(numbers(100), grep="7", head=0)) == (
        b"",
        "19 of 100 lines match, none shown",
    )


@pytest.mark.parametrize(
    ("data", "head", "tail", "text", "note"),
    [
        (b"", 3, None, b"", "no output"),
        (b"", None, 3, b"", "no output"),
        (b"a", 3, None, b"a", "1 line"),
        (b"a\n", 1, None, b"a\n", "1 line"),
        (b"a\nb", 1, None, b"a\n", "line 1 of 2"),
        (b"a\nb", 2, None, b"a\nb", "all 2 lines"),
        (b"a\nb", None, 1, b"b", "last 1 of 2 lines"),
        (b"a\nb\n", None, 1, b"b\n", "last 1 of 2 lines"),
        (b"a\nb\n", None, 2, b"a\nb\n", "all 2 lines"),
        (b"a\nb\n", None, 3, b"a\nb\n", "all 2 lines"),
        (b"a\nb\nc\n", 1, 1, b"a\n[... 1 line left out ...]\nc\n", "first 1 and last 1 of 3 lines"),
        (b"a\nb\nc\n", 2, 1, b"a\nb\nc\n", "all 3 lines"),
        (b"a\nb\nc\n", 2, 2, b"a\nb\nc\n", "all 3 lines"),
        (b"a\nb\n", 0, None, b"", "none of 2 lines"),
        (b"a\r\nb\r\n", 1, None, b"a\r\n", "line 1 of 2"),
        (b"\n\n\n", None, 2, b"\n\n", "last 2 of 3 lines"),
        ("ä\nö\n".encode(), None, 1, "ö\n".encode(), "last 1 of 2 lines"),
    ],
)
def test_borders(data: bytes, head: int | None, tail: int | None, text: bytes, note: str) -> None:
    assert shown(select(data, head=head, tail=tail)) == (text, note)
    bytewise = [data[at : at + 1] for at in range(len(data))]
    assert shown(select(*bytewise, head=head, tail=tail)) == (text, note)


def test_everything_needs_no_hint() -> None:
    assert select(b"a\nb\n", head=5).output() == b"[all 2 lines]\na\nb\n"
    assert select(b"a\nb\n", grep=".").output() == b"[2 of 2 lines match]\na\nb\n"
    assert select(head=5).output() == b"[no output]\n"


@pytest.mark.parametrize("name", ["head", "tail"])
def test_a_negative_number_is_refused(name: str) -> None:
    with pytest.raises(InvalidParams, match=f"{name} is -1"):
        Selection(**{name: -1})  # type: ignore[arg-type]


def test_a_bad_pattern_is_refused_at_once() -> None:
    with pytest.raises(InvalidParams, match=r"'\('"):
        Selector(Selection(grep="("))


def test_more_lines_than_fit() -> None:
    assert shown(select(numbers(10_000), head=5000, max_bytes=1024))[1] == (
        "lines 1 to 283 of 10,000; more do not fit"
    )
    selected = select(numbers(10_000), tail=5000, max_bytes=1024)
    assert selected.note == "last 204 of 10,000 lines; more do not fit"
    assert selected.text_bytes == numbers(10_000, 9797)
    both = select(numbers(10_000), grep="", max_bytes=1024)
    assert both.note == (
        "10,000 of 10,000 lines match, the first 155 and the last 102 shown; more do not fit"
    )
    assert b"\n155\n[... 9,743 lines left out ...]\n9899\n" in both.text_bytes


def test_a_line_of_10_mb() -> None:
    line = b"x" * 10_000_000
    for chunks in ([line], [line[:65_536]] * 152 + [line[: 10_000_000 - 152 * 65_536]]):
        selected = select(b"a\n", *chunks, b"\nb\n", head=3)
        first, long, last, end = selected.text_bytes.split(b"\n")
        assert (first, last, end) == (b"a", b"b", b"")
        mark = b"[... 9,986,716 bytes of this line left out ...]"
        assert long.endswith(mark), long[-80:]
        assert len(long) - len(mark) == 10_000_000 - 9_986_716
        assert (selected.note, selected.complete) == ("all 3 lines", False)
        assert selected.total_bytes == 10_000_005


@pytest.mark.parametrize("newline", [b"", b"\n", b"\r\n"])
def test_a_long_line_is_cut_once_it_does_not_fit(newline: bytes) -> None:
    fits = b"x" * (40_000 - len(newline)) + newline
    for chunk in (100, 5000, 40_000):
        chunks = [fits[at : at + chunk] for at in range(0, len(fits), chunk)]
        assert select(*chunks, head=1).text_bytes == fits
        assert select(*chunks, tail=1).complete
        cut = select(b"y", *chunks, head=1)
        assert len(cut.text_bytes) <= 40_000
        assert cut.text_bytes.endswith(b" bytes of this line left out ...]" + newline)
        assert not cut.complete


def test_several_long_lines_are_all_shown() -> None:
    line = b"x" * 30_000 + b"\n"
    for selected in (select(line * 20, head=9), select(line * 20, tail=9)):
        assert selected.shown_lines == 9
        assert selected.text_bytes.count(b"bytes of this line left out ...]\n") == 9
        assert len(selected.text_bytes) <= 40_000


def test_a_match_far_inside_of_a_long_line_counts() -> None:
    line = b"x" * 5_000_000 + b"needle" + b"x" * 5_000_000
    selected = select(b"a\n", line, b"\nb\n", grep="needle")
    assert selected.note == "1 of 3 lines matches"
    assert select(line, grep="needle").matching_lines == 1
    assert select(line, grep="needle$").matching_lines == 0
    assert select(line + b"end\r\n", grep="end$").matching_lines == 1


def test_a_million_empty_lines() -> None:
    chunk = b"\n" * 65_536
    chunks = [chunk] * 15 + [b"\n" * (1_000_000 - 15 * 65_536)]
    assert select(*chunks, head=3).note == "lines 1 to 3 of 1,000,000"
    assert shown(select(*chunks, tail=3)) == (b"\n\n\n", "last 3 of 1,000,000 lines")
    assert select(*chunks, grep="^$", tail=1).matching_lines == 1_000_000
    assert select(*chunks, grep=".").matching_lines == 0


def test_binary_output_is_shown_as_it_is() -> None:
    data = random.Random(1).randbytes(300_000)
    lines = data.split(b"\n")
    assert select(data, head=2).text_bytes == b"\n".join(lines[:2]) + b"\n"
    assert select(data, tail=2).text_bytes == b"\n".join(lines[-2:])
    assert select(data, grep="a").matching_lines == sum(b"a" in line for line in lines)


def test_a_gap_is_told() -> None:
    selector = Selector(Selection(head=1))
    selector.feed(b"a\n")
    selector.gap(2, 5)
    selected = selector.selected()
    assert selected.note == (
        "1 line; some output was lost on the way, the counts are of what arrived"
    )
    assert not selected.complete


def test_memory_is_bounded() -> None:
    rng = random.Random(2)
    inputs = [
        [b"x" * 65_536] * 100,
        [b"ab\n" * 20_000] * 50,
        [b"a"] * 50_000 + [b"a\n"] * 50_000,
        [b"no\n" * 20_000 + b"a\n"] * 100,
        [rng.randbytes(65_536) for _ in range(40)],
    ]
    for chunks in inputs:
        for selection in (Selection(head=10**9, tail=10**9), Selection(grep="a")):
            tracemalloc.start()
            try:
                selector = Selector(selection)
                for chunk in chunks:
                    selector.feed(chunk)
                grown = tracemalloc.get_traced_memory()[0]
            finally:
                tracemalloc.stop()
            assert grown < 320 << 10


def naive(data: bytes, head: int | None, tail: int | None, letter: bytes | None) -> bytes:
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    lines = [line for line in lines if line and (letter is None or letter in line)]
    if head is None and tail is None:
        return b"".join(lines)
    first, last = head or 0, tail or 0
    left_out = len(lines) - first - last
    if left_out <= 0:
        return b"".join(lines)
    shown_first, shown_last = lines[:first], lines[len(lines) - last :]
    word = "line" if left_out == 1 else "lines"
    mark = b"[... %d %s left out ...]\n" % (left_out, word.encode())
    between = [mark] if shown_first and shown_last else []
    return b"".join(shown_first + between + shown_last)


@given(
    chunks=st.lists(st.text("ab\n\r\né", max_size=12).map(str.encode), max_size=12),
    head=st.none() | st.integers(0, 6),
    tail=st.none() | st.integers(0, 6),
    letter=st.sampled_from([None, "a", "é"]),
)
def test_it_agrees_with_a_naive_selection(
    chunks: list[bytes], head: int | None, tail: int | None, letter: str | None
) -> None:
    data = b"".join(chunks)
    selected = select(*chunks, head=head, tail=tail, grep=letter)
    wanted = None if letter is None else letter.encode()
    assert selected.text_bytes == naive(data, head, tail, wanted)
    assert selected.total_lines == data.count(b"\n") + (not data.endswith((b"\n",)) and data != b"")
    assert selected.total_bytes == len(data)


@given(
    sizes=st.lists(st.sampled_from([0, 1, 5, 900, 3000, 5000, 33_000, 70_000]), max_size=8),
    chunk=st.sampled_from([777, 8192, 65_536, 200_000]),
    head=st.none() | st.integers(0, 4),
    tail=st.none() | st.integers(0, 4),
    newline=st.sampled_from([b"\n", b"\r\n"]),
    grep=st.sampled_from([None, "x", "a$"]),
)
def test_whatever_is_too_long_is_cut_and_counted(
    sizes: list[int],
    chunk: int,
    head: int | None,
    tail: int | None,
    newline: bytes,
    grep: str | None,
) -> None:
    data = newline.join([b"x" * size + b"a" for size in sizes])
    chunks = [data[at : at + chunk] for at in range(0, len(data), chunk)]
    selected = select(*chunks, head=head, tail=tail, grep=grep)
    assert selected.total_lines == len(sizes)
    wanted = sizes if grep != "x" else [size for size in sizes if size]
    assert selected.matching_lines == (None if grep is None else len(wanted))
    assert len(selected.text_bytes) <= 40_000 + 50
    if selected.complete:
        assert selected.text_bytes == data
    mark = b"[... "
    for line in selected.text_bytes.split(newline):
        assert len(line) <= 40_000
        assert line.endswith((b"a", b"]", b"\n")) or not line or mark in line


def test_lines_behind_a_pattern_that_is_too_slow_are_counted_only() -> None:
    line = b"a" * 999 + b"\n"
    selected = select(b"a" * 400 + b"b\n", *[line * 64] * 100, line[:-1], grep="(a?){400}a{400}b")
    assert selected.total_lines == 6402
    assert selected.matching_lines == 1
    assert re.fullmatch(
        r"1 of \d+ lines matches; 6,\d+ more lines not searched, the pattern takes too long",
        selected.note,
    )
    assert selected.text_bytes == b"a" * 400 + b"b\n"
    assert not selected.complete


def test_a_large_pattern_is_searched_in_small_blocks() -> None:
    lines = numbers(20_000)
    selected = select(lines, grep=r"(?i)^\pL*7777$|x{100}")
    assert shown(selected) == (b"7777\n", "1 of 20,000 lines matches")


def test_what_is_left_out_is_told_and_joins_no_lines() -> None:
    selector = Selector(Selection(head=1, tail=1))
    selector.feed(b"one\ntw")
    selector.leave_out(1234)
    selector.feed(b"ee\nfour\n")
    selected = selector.selected()
    assert selected.text_bytes == b"one\n[... 2 lines left out ...]\nfour\n"
    assert selected.note == (
        "first 1 and last 1 of 4 lines; 1,234 bytes from before this call are not counted"
    )
    assert selected.total_bytes == 14
    assert not selected.complete
