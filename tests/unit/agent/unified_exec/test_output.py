"""read_output: what a session wrote, kept within a mebibyte and read in pages."""

import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.unified_exec.output.kept_output import KEPT_BYTES, Archive, KeptOutput, Lost
from holdfast.agent.unified_exec.output.pages import Page, PageRequest, read_window
from holdfast.base.errors import InvalidParams
from holdfast.environments.collect.head_tail import Captured

MIB = 1 << 20


def logged(*chunks: bytes, max_bytes: int = KEPT_BYTES) -> KeptOutput:
    log = KeptOutput(max_bytes=max_bytes)
    for seq, chunk in enumerate(chunks, 1):
        log.append(seq, chunk)
    return log


def read(log: KeptOutput, **asked: Any) -> Page:
    return read_window(log.window(), PageRequest(**asked))


def numbers(last: int, first: int = 1) -> bytes:
    return b"".join(b"%d\n" % number for number in range(first, last + 1))


def span(page: Page) -> tuple[int | None, int | None]:
    return page.first_line, page.last_line


# -- lines


@pytest.mark.requirement("unified-exec.read-output")
def test_a_range_of_lines() -> None:
    page = read(logged(numbers(48_112)), lines=(1201, 1240))
    assert page.output == "[lines 1,201 to 1,240 of 48,112]\n" + numbers(1240, 1201).decode()
    assert span(page) == (1201, 1240)
    assert (page.more, page.total_lines, page.dropped_lines) == (False, 48_112, 0)


@pytest.mark.parametrize(
    ("lines", "text", "note"),
    [
        ((1, 1), "a\n", "line 1 of 4"),
        ((1, None), "a\nb\n\nd", "lines 1 to 4 of 4"),
        ((2, 3), "b\n\n", "lines 2 to 3 of 4"),
        ((-1, -1), "d", "line 4 of 4"),
        ((-2, None), "\nd", "lines 3 to 4 of 4"),
        ((-9, -1), "a\nb\n\nd", "lines 1 to 4 of 4"),
        ((3, 99), "\nd", "lines 3 to 4 of 4"),
        ((2, -2), "b\n\n", "lines 2 to 3 of 4"),
        ((5, 9), "", "no line 5, there are 4 lines"),
        ((4, -2), "", "no lines there, of 4 lines"),
        ((-9, -8), "", "no lines there, of 4 lines"),
    ],
)
def test_lines_are_counted_from_both_ends(
    lines: tuple[int, int | None], text: str, note: str
) -> None:
    for log in (logged(b"a\nb\n\nd"), logged(b"a", b"\nb", b"\n", b"\n", b"d")):
        page = read(log, lines=lines)
        assert (page.text, page.note) == (text, note)


@pytest.mark.parametrize("lines", [(0, 3), (1, 0), (3, 2), (-2, -3)])
def test_lines_that_cannot_be_are_refused(lines: tuple[int, int]) -> None:
    with pytest.raises(InvalidParams):
        read(logged(b"a\n"), lines=lines)
    with pytest.raises(InvalidParams, match="together"):
        read(logged(b"a\n"), lines=(1, 2), from_seq=1)


def test_an_empty_log() -> None:
    log = KeptOutput()
    assert read(log).output == "[no output]\n"
    assert read(log, from_seq=1).note == "no output"
    assert read(log, pattern="a").note == "no output"
    assert read(log, pattern="a").matching_lines == 0
    log.append(1, b"")
    assert (log.total_lines, read(log).note) == (0, "no output")


def test_pages_follow_each_other_by_line() -> None:
    log = logged(numbers(48_112))
    page, texts = read(log, max_bytes=40_000), []
    assert page.note == 'lines 1 to 8,221 of 48,112; continue with "lines": [8222, -1]'
    while True:
        assert len(page.text) <= 40_000
        texts.append(page.text)
        if page.next_line is None:
            break
        page = read(log, lines=(page.next_line, -1))
    assert "".join(texts).encode() == numbers(48_112)


def test_a_bounded_range_is_continued_to_its_end() -> None:
    page = read(logged(numbers(20_000)), lines=(1, 10_000))
    assert page.next_line is not None
    assert page.note.endswith(f'; continue with "lines": [{page.next_line}, 10000]')


def test_long_lines_are_cut() -> None:
    long = b"x" * 100_000
    page = read(logged(b"a\n" + long + b"\n" + long + b"\nb\n"))
    assert span(page) == (1, 4)
    lines = page.text.split("\n")
    assert (lines[0], lines[3], lines[4]) == ("a", "b", "")
    for line in lines[1:3]:
        assert len(line) <= 10_000
        assert line.endswith(" bytes of this line left out ...]")


def test_letters_are_not_cut_in_two() -> None:
    page = read(logged("é".encode() * 50_000))
    assert "\ufffd" not in page.text
    assert page.text.startswith("éé")
    page = read(logged("€".encode() * 50_000), from_seq=1)
    assert "\ufffd" not in page.text


# -- what is no longer kept


@pytest.mark.requirement("unified-exec.read-output")
def test_what_is_no_longer_kept_is_said() -> None:
    chunk = b"0123456\n" * 8192  # 64 KiB
    log = logged(*[chunk] * 32)
    assert (log.total_bytes, log.total_lines) == (2 * MIB, 262_144)
    page = read(log, lines=(1, 131_073))
    assert page.text == "0123456\n"
    assert page.note == "line 131,073 of 262,144; the first 131,072 lines are no longer kept"
    assert page.dropped_lines == 131_072
    assert read(log, lines=(1, 5)).note == "the first 131,072 lines are no longer kept"
    assert read(log, lines=(131_073, 131_073)).note == "line 131,073 of 262,144"


def test_the_border_of_what_is_kept_is_exact() -> None:
    log = logged(b"ab\ncd\nef\n", max_bytes=6)
    assert read(log).output == ("[lines 2 to 3 of 3; the first line is no longer kept]\ncd\nef\n")
    log = logged(b"ab\ncd\nef\n", max_bytes=5)
    assert read(log).text == "[... 1 byte of this line no longer kept ...]d\nef\n"
    log = logged(b"ab\n", b"cd\n", b"ef\n", max_bytes=7)
    assert read(log, lines=(1, 2)).output == (
        "[lines 1 to 2 of 3; the first 2 bytes are no longer kept]\n"
        "[... 2 bytes of this line no longer kept ...]\ncd\n"
    )


def test_a_line_of_10_mb() -> None:
    log = KeptOutput()
    for seq in range(1, 161):
        log.append(seq, b"x" * 62_500)
    assert (log.total_bytes, log.total_lines) == (10_000_000, 1)
    page = read(log)
    assert page.note == "line 1 of 1; the first 8,951,424 bytes are no longer kept"
    assert page.text.startswith("[... 8,951,424 bytes of this line no longer kept ...]xxx")
    assert page.text.endswith("bytes of this line left out ...]")
    assert len(page.text) <= 40_000
    found = read(log, pattern="x$")
    assert found.matching_lines == 1
    one = logged(b"x" * 10_000_000)
    assert one.total_lines == 1
    assert one.window().size <= MIB
    assert read(one).text[:60] == page.text[:60]


def test_a_million_empty_lines() -> None:
    log = logged(*[b"\n" * 50_000] * 20)
    assert log.total_lines == 1_000_000
    page = read(log, lines=(-3, -1))
    assert (page.text, page.note) == (
        "\n\n\n",
        "lines 999,998 to 1,000,000 of 1,000,000",
    )
    assert read(log).next_line == 40_001
    assert read(log, pattern="^$").matching_lines == 1_000_000


# -- sequence numbers


def test_pages_by_sequence_number() -> None:
    log = logged(b"one\ntw", b"o\nthree\n", b"four")
    assert read(log, from_seq=1).output == "[lines 1 to 4 of 4]\none\ntwo\nthree\nfour"
    page = read(log, from_seq=2)
    assert page.output == "[lines 2 to 4 of 4]\no\nthree\nfour"
    assert read(log, from_seq=0).text == "one\ntwo\nthree\nfour"
    assert read(log, from_seq=4).note == "nothing from sequence 4 on"
    assert read(log, from_seq=3, pattern="t").matching_lines == 0
    assert read(log, from_seq=2, pattern="t").note == "2 of 3 lines match in lines 2 to 4 of 4"
    assert read(log, from_seq=4, pattern="t").note == "nothing from sequence 4 on"


def test_a_page_by_number_ends_with_a_chunk() -> None:
    log = logged(*[b"x" * 9 + b"\n"] * 300)
    page, texts = read(log, from_seq=1, max_bytes=1024), []
    assert page.next_seq == 103
    assert page.note == 'lines 1 to 102 of 300; continue with "from_seq": 103'
    while True:
        texts.append(page.text)
        if page.next_seq is None:
            break
        page = read(log, from_seq=page.next_seq, max_bytes=1024)
    assert "".join(texts) == ("x" * 9 + "\n") * 300


def test_a_large_chunk_is_continued_by_line() -> None:
    log = logged(numbers(20_000))
    page = read(log, from_seq=1)
    assert page.next_seq is None
    assert page.next_line == 8222
    assert page.text.endswith("\n8221\n")


def test_a_large_chunk_without_lines_is_left_for_the_next() -> None:
    log = logged(b"x" * 50_000, b"y")
    page = read(log, from_seq=1)
    assert page.text == "x" * 40_000 + "[... 10,000 bytes left out ...]"
    assert page.next_seq == 2
    assert read(log, from_seq=2).text == "y"
    assert not read(logged(b"x" * 50_000), from_seq=1).more


def test_a_letter_between_two_chunks_is_on_one_page() -> None:
    data = "€uro".encode()
    log = logged(b"x" * 1022 + data[:1], data[1:2], data[2:])
    page = read(log, from_seq=1, max_bytes=1024)
    assert page.text == "x" * 1022 + "€"
    assert page.next_seq is not None
    rest = read(log, from_seq=page.next_seq)
    assert rest.text == "uro"


def test_numbers_that_are_no_longer_kept() -> None:
    log = logged(b"ab\n", b"cd\n", b"ef\n", max_bytes=3)
    page = read(log, from_seq=1)
    assert page.output == "[line 3 of 3; the first 2 lines are no longer kept]\nef\n"
    assert read(log, from_seq=3).note == "line 3 of 3"


# -- patterns


@pytest.mark.requirement("unified-exec.read-output")
def test_lines_that_match() -> None:
    page = read(logged(numbers(48_112)), pattern="^4811[0-2]$")
    assert page.output == ("[3 of 48,112 lines match]\n48110:48110\n48111:48111\n48112:48112\n")
    assert (page.matching_lines, span(page)) == (3, (48_110, 48_112))
    none = read(logged(numbers(3)), pattern="x")
    assert none.output == "[0 of 3 lines match]\n"
    assert read(logged(b"a\r\nb"), pattern="[ab]$").text == "1:a\r\n2:b"


def test_matches_within_a_range() -> None:
    page = read(logged(numbers(100)), pattern="7$", lines=(10, 30))
    assert page.output == "[2 of 21 lines match in lines 10 to 30 of 100]\n17:17\n27:27\n"


def test_pages_of_matches_follow_each_other() -> None:
    log = logged(numbers(9000))
    page = read(log, pattern="7", max_bytes=2000)
    matching = [number for number in range(1, 9001) if "7" in str(number)]
    assert page.matching_lines == len(matching)
    assert page.next_line is not None
    assert page.note == (
        f"{len(matching):,} of 9,000 lines match, the first {page.text.count(':')} shown;"
        f' continue with "lines": [{page.next_line}, -1]'
    )
    rows = []
    while True:
        assert len(page.text) <= 2000
        rows += page.text.splitlines()
        if page.next_line is None:
            break
        page = read(log, pattern="7", lines=(page.next_line, -1), max_bytes=2000)
    assert rows == [f"{number}:{number}" for number in matching]


def test_matches_in_what_is_left() -> None:
    log = logged(b"ab\ncd\nef\n", max_bytes=6)
    assert read(log, pattern=".").note == (
        "2 of 2 lines match in lines 2 to 3 of 3; the first line is no longer kept"
    )


def test_a_search_is_of_one_moment() -> None:
    log = logged(b"a\n" * 100_000)
    window = log.window()
    for number in range(4):
        log.append(2 + number, b"a\n" * 200_000)
    page = read_window(window, PageRequest(pattern="a"))
    assert page.matching_lines == page.total_lines == 100_000


def test_a_line_of_a_mebibyte_is_searched_in_parts() -> None:
    log = logged(b"x" * 300_000 + b"needle" + b"x" * 300_000 + b"\nneedle\n")
    page = read(log, pattern="x{9}needle")
    assert (page.matching_lines, page.first_line) == (1, 1)
    assert read(log, pattern="^x+needlex+$").matching_lines == 0  # too long a match
    with pytest.raises(InvalidParams, match="takes too long"):
        read(logged(b"a" * (1 << 20)), pattern="(a?){400}a{400}b")


# -- gaps


def test_gaps_are_told_on_their_page() -> None:
    log = logged(b"a\n", b"b\n")
    log.gap(3, 5)
    log.append(6, b"c\n")
    log.gap(7, 7)
    log.gap(8, 9)
    assert log.total_lines == 3
    page = read(log)
    assert page.text == "a\nb\nc\n"
    assert page.lost == (Lost(3, 5), Lost(7, 9))
    assert page.note == "lines 1 to 3 of 3; output numbered 3 to 5 and 7 to 9 was lost on the way"
    assert read(log, lines=(1, 1)).lost == ()
    assert read(log, from_seq=3).lost == (Lost(3, 5), Lost(7, 9))
    assert read(log, from_seq=3).text == "c\n"
    assert log.last_seq == 9


def test_many_gaps_are_counted() -> None:
    log = KeptOutput()
    for seq in range(1, 1000, 2):
        log.gap(seq, seq)
        log.append(seq + 1, b"x")
    page = read(log)
    assert page.note.endswith("and 253 other gaps was lost on the way")
    only = KeptOutput()
    only.gap(1, 4)
    assert read(only).note == "no output; output numbered 1 to 4 was lost on the way"


# -- memory


def test_a_large_chunk_is_kept_as_the_object_it_is() -> None:
    chunk = b"x" * 5000
    before = sys.getrefcount(chunk)
    log = logged(chunk)
    assert sys.getrefcount(chunk) == before + 1
    assert log.window().size == 5000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seqs", "chunk", "keep", "most"),
    [
        (range(1, 50_000), b"x", 32 << 10, 3.5),
        (range(1, 10_000), b"\n" * 10, 32 << 10, 1.5),
        (range(1, 200), b"x" * 4096, 128 << 10, 1.2),
        (range(1, 40, 2), b"x" * 65_536, 128 << 10, 1.2),
        (
            range(1, 40_000, 2),
            b"x",
            128 << 10,
            8.5,
        ),  # no two neighbours: a thousand kilobytes at most
    ],
)
def test_memory_is_bounded_for_chunks_of_any_size(
    seqs: range, chunk: bytes, keep: int, most: float
) -> None:
    log = KeptOutput(max_bytes=keep)
    tracemalloc.start()
    try:
        for seq in seqs:
            log.append(seq, bytes(bytearray(chunk)))
        window = log.window()
        del log
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert window.total_bytes == len(seqs) * len(chunk)
    assert grown < most * keep


def test_empty_chunks_cost_nothing() -> None:
    log = KeptOutput()
    for seq in range(1, 10_000):
        log.append(seq, b"")
    assert (log.window().size, log.last_seq) == (0, 9999)


def test_a_log_that_can_keep_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="0 bytes"):
        KeptOutput(max_bytes=0)


# -- against a naive log

CHUNKS = st.lists(
    st.one_of(
        st.text("ab\n\ré", max_size=8).map(str.encode),
        st.binary(max_size=6),
        st.sampled_from([b"x" * 5000, b"y\n" * 3000, b"\n"]),
    ),
    max_size=14,
)


@given(
    chunks=CHUNKS,
    keep=st.sampled_from([1, 7, 60, 6000, MIB]),
    first=st.integers(-6, 9),
    size=st.integers(0, 6),
    looked=st.booleans(),
)
def test_lines_agree_with_a_naive_log(
    chunks: list[bytes], keep: int, first: int, size: int, looked: bool
) -> None:
    log = KeptOutput(max_bytes=keep)
    for seq, chunk in enumerate(chunks, 1):
        log.append(seq, chunk)
        if looked:
            log.window()
    data = b"".join(chunks)
    lines = data.split(b"\n")
    lines = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    assert (log.total_bytes, log.total_lines) == (len(data), len(lines))
    # What is left of each line within the last bytes.
    kept_from = max(0, len(data) - keep)
    # Whole chunks only are cut off, so never more than is read.
    assert log.window().size >= min(keep, len(data))
    first = first or 1
    last = first + size if first > 0 else min(first + size, -1)
    page = read(log, lines=(first, last))
    start = first if first > 0 else max(1, len(lines) + 1 + first)
    end = min(last if last > 0 else len(lines) + 1 + last, len(lines))
    expected, at, numbers = [], 0, []
    for number, line in enumerate(lines, 1):
        left = line[max(0, kept_from - at) :]
        missing = len(line) - len(left)
        at += len(line)
        if start <= number <= end and left:
            mark = ""
            if missing:
                unit = "byte" if missing == 1 else "bytes"
                mark = f"[... {missing:,} {unit} of this line no longer kept ...]"
            expected.append(mark + left.decode(errors="replace"))
            numbers.append(number)
    assert page.text == "".join(expected)
    assert span(page) == ((numbers[0], numbers[-1]) if numbers else (None, None))
    assert page.dropped_lines == data[:kept_from].count(b"\n")


@given(chunks=CHUNKS, from_seq=st.integers(0, 16), keep=st.sampled_from([5, 60, MIB]))
def test_numbers_agree_with_a_naive_log(chunks: list[bytes], from_seq: int, keep: int) -> None:
    log = logged(*chunks, max_bytes=keep)
    data = b"".join(chunks)
    start = len(b"".join(chunks[: max(0, from_seq - 1)]))
    page = read(log, from_seq=from_seq, max_bytes=MIB)
    shown = data[max(start, len(data) - keep) :]
    # The rest of a letter that began before is not shown again.
    assert page.text in {shown[at:].decode(errors="replace") for at in range(4)}
    assert not page.more


@given(chunks=CHUNKS, max_bytes=st.sampled_from([1024, 3000, 40_000]))
def test_pages_by_number_go_to_the_end(chunks: list[bytes], max_bytes: int) -> None:
    log = logged(*chunks)
    page, text = read(log, from_seq=1, max_bytes=max_bytes), ""
    for _ in range(200):
        assert len(page.text.encode()) <= 3 * max_bytes + 60  # U+FFFD has three bytes
        text += page.text
        if page.next_seq is not None:
            page = read(log, from_seq=page.next_seq, max_bytes=max_bytes)
        elif page.next_line is not None:
            page = read(log, lines=(page.next_line, -1), max_bytes=max_bytes)
        else:
            break
    else:
        pytest.fail("it does not end")


@given(chunks=CHUNKS, letter=st.sampled_from("abé"), keep=st.sampled_from([60, 6000, MIB]))
def test_matches_agree_with_a_naive_search(chunks: list[bytes], letter: str, keep: int) -> None:
    log = logged(*chunks, max_bytes=keep)
    data = b"".join(chunks)
    kept_from = max(0, len(data) - keep)
    before = data[:kept_from].count(b"\n")
    lines = data[kept_from:].decode(errors="replace").split("\n")
    matching = [number for number, line in enumerate(lines, before + 1) if letter in line]
    page = read(log, pattern=letter)
    assert page.matching_lines == len(matching)
    assert span(page) == ((matching[0], matching[-1]) if matching else (None, None))


# -- the head and the tail


def head_and_tail(data: bytes, keep: int) -> Captured:
    if len(data) <= keep:
        return Captured(data)
    half = keep // 2
    return Captured(data[:half], data[len(data) - keep + half :], len(data) - keep)


@given(
    chunks=CHUNKS,
    keep=st.sampled_from([1, 7, 60, 6000, MIB]),
    looks=st.lists(st.sampled_from(["window", "unreported", "report"]), min_size=14, max_size=14),
)
def test_every_view_agrees_with_all_that_came(
    chunks: list[bytes], keep: int, looks: list[str]
) -> None:
    log, data, reported = KeptOutput(max_bytes=keep), b"", 0
    for seq, (chunk, look) in enumerate(zip(chunks, looks, strict=False), 1):
        log.append(seq, chunk)
        data += chunk
        if look == "window":
            assert log.window().total_bytes == len(data)
        else:
            expected = head_and_tail(data[reported:], keep)
            assert (log.report() if look == "report" else log.unreported) == expected
            reported = len(data) if look == "report" else reported
    assert log.transcript == head_and_tail(data, keep)
    assert log.unreported == head_and_tail(data[reported:], keep)
    size = min(keep, 5)
    assert log.end(size) == data[max(0, len(data) - size) :]


def test_the_vectors_of_unified_exec() -> None:
    log = logged(b"0123456789", b"ab", max_bytes=10)
    assert bytes(log.unreported) == b"01234\n... 2 bytes omitted ...\n789ab"
    assert logged(b"abc", max_bytes=1).unreported == Captured(b"", b"c", 2)


def test_a_report_in_the_middle_of_a_block_begins_there() -> None:
    log = logged(b"ab", b"cd", max_bytes=8)
    assert log.report() == Captured(b"abcd")
    for seq in range(3, 9):
        log.append(seq, b"%d" % seq * 2)
    assert log.unreported == Captured(b"3344", b"7788", 4)
    assert log.transcript == Captured(b"abcd", b"7788", 8)
    assert log.report().size == 12
    assert log.report() == Captured()


def test_tiny_chunks_between_gaps_lose_bytes_of_the_tail_only() -> None:
    log = KeptOutput()
    for seq in range(1, 20_000, 2):
        log.append(seq, b"x")
    assert log.transcript == Captured(b"x" * 10_000)
    log.report()
    log.append(20_001, b"y" * MIB)
    log.append(20_003, b"z")
    assert log.transcript.size == log.total_bytes
    assert log.unreported == Captured(b"y" * (MIB // 2), b"y" * (MIB // 2 - 1) + b"z", 1)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [b"x" * 16, b"x" * 500, b"x" * 65_536])
def test_all_views_together_take_twice_what_one_shows(chunk: bytes) -> None:
    keep = 256 << 10
    log = KeptOutput(max_bytes=keep)
    tracemalloc.start()
    try:
        for seq in range(1, 5 * keep // len(chunk)):
            log.append(seq, bytes(bytearray(chunk)))
            if log.total_bytes > 2 * keep > log.total_bytes - len(chunk):
                log.report()
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert log.unreported.omitted
    assert grown < 2.5 * keep


# -- the archive


@pytest.mark.requirement("unified-exec.archive")
def test_the_last_logs_are_found_by_their_ids() -> None:
    archive = Archive()
    logs = [logged(b"%d\n" % number).window() for number in range(40)]
    for number, log in enumerate(logs):
        archive.add(log, call_ids=[f"call-{number}", f"poll-{number}"], session_id=1000 + number)
    assert len(archive) == 32
    assert archive.find("call-7") is archive.find("poll-7") is archive.find(1007) is None
    assert archive.find("call-8") is archive.find("poll-8") is archive.find(1008) is logs[8]
    assert archive.find(1039) is logs[39]
    assert archive.find("1039") is None


@pytest.mark.requirement("unified-exec.archive")
def test_the_archive_is_bounded_in_bytes() -> None:
    archive = Archive(max_bytes=3 * MIB)
    for number in range(10):
        archive.add(logged(*[b"x" * 65_536] * 20).window(), session_id=number)
        assert archive.size <= 3 * MIB
    assert len(archive) == 3
    assert archive.find(7) is not None
    assert archive.find(6) is None


def test_an_id_that_comes_again_names_the_newer_log() -> None:
    archive = Archive(max_logs=2)
    old, new, other = (logged(text).window() for text in (b"a", b"b", b"c"))
    archive.add(old, session_id=1)
    archive.add(new, session_id=1)
    assert archive.find(1) is new
    archive.add(other, session_id=2)
    assert archive.find(1) is new
    archive.add(logged(b"d").window(), session_id=3)
    assert archive.find(1) is None


@pytest.mark.parametrize(
    "wrong", [{"lines": "ab"}, {"lines": [1]}, {"lines": 5}, {"from_seq": "x"}, {"pattern": 5}]
)
def test_arguments_of_a_wrong_type_are_named(wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(TypeError, match=f"{name} is "):
        read(KeptOutput(), **wrong)
