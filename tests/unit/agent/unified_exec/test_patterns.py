"""Patterns of a model: linear time, errors that name them, lines found in blocks."""

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.unified_exec.output import patterns
from holdfast.agent.unified_exec.output.line_search import LineRun, LineSearch
from holdfast.agent.unified_exec.output.patterns import PATTERN_CHARACTERS, compile_pattern
from holdfast.base.errors import InvalidParams


def matching(pattern: str, block: bytes) -> list[bytes]:
    runs = LineSearch(pattern).runs(block)
    return [block[run.start : run.end] for run in runs]


def test_a_pattern_is_searched_in_bytes() -> None:
    pattern = compile_pattern("é+")
    assert pattern.search("caféé!".encode()) == (3, 7)
    assert pattern.search(b"cafe") is None
    assert repr(pattern) == "Pattern('é+')"


def test_anchors_see_what_is_outside_of_the_searched_part() -> None:
    assert compile_pattern("c$").search(b"abcd", 0, 3) is None
    assert compile_pattern("^b").search(b"ab", 1) is None
    assert compile_pattern("^b").search(b"a\nb") == (2, 3)


@pytest.mark.parametrize("text", ["[", "a)|(b", "(?=a)", r"(a)\1", r"(\pL{100}){100}", "\ud800"])
def test_an_unusable_pattern_is_named(text: str) -> None:
    with pytest.raises(InvalidParams) as refused:
        compile_pattern(text)
    assert repr(text) in str(refused.value)


def test_a_pattern_has_a_bounded_size() -> None:
    compile_pattern("x" * PATTERN_CHARACTERS)
    with pytest.raises(InvalidParams, match="1,001 characters"):
        compile_pattern("x" * (PATTERN_CHARACTERS + 1))
    with pytest.raises(InvalidParams, match="too large"):
        compile_pattern("[^x]{600}")


def test_without_the_engine_the_extra_is_named() -> None:
    code = """
import sys
sys.modules["re2"] = None
from holdfast.base.errors import InvalidParams
from holdfast.agent.unified_exec.output.patterns import compile_pattern
try:
    compile_pattern("a")
except InvalidParams as error:
    print(error)
"""
    run = [sys.executable, "-c", code]
    said = subprocess.run(run, capture_output=True, text=True, timeout=20, check=True)
    assert "holdfast-exec[patterns]" in said.stdout


def test_neighbouring_lines_are_one_run() -> None:
    runs = LineSearch("a").runs(b"a\nba\nb\n\na\n")
    assert runs == [LineRun(0, 2, 0, 5), LineRun(4, 1, 8, 10)]


@pytest.mark.parametrize(
    ("pattern", "block", "lines"),
    [
        ("", b"a\n\n", [b"a\n\n"]),
        ("^$", b"a\n\nb\n\n", [b"\n", b"\n"]),
        (r"a\sb", b"a\nb\na b\n", [b"a b\n"]),
        ("a[^x]b", b"a\nb\n", []),
        ("(?s)a.b", b"a\nb\n", []),
        (r"a\nb", b"a\nb\n", []),
        ("b$", b"ab\r\nb\rc\r\n", [b"ab\r\n"]),
        (r"\Qa.b", b"axb\na.b\n", [b"a.b\n"]),
        (r"\Aa", b"ba\nab\n", [b"ab\n"]),
        (r"a\z", b"ba\nab\n", [b"ba\n"]),
        (r"a\Cb", b"a\nb\na.b\n", [b"a.b\n"]),
        ("(?-m)^a$", b"b\na\n", [b"a\n"]),
        ("(?i)É", "é\nE\n".encode(), ["é\n".encode()]),
        ("a.b", b"a\xffb\na\xff\xfeb\r\n", [b"a\xffb\n"]),
        ("^.x", b"\xffx\r\n\xff\xffx\n", [b"\xffx\r\n"]),
        ("a|b", b"xa\nxb\nc\n", [b"xa\nxb\n"]),
    ],
)
def test_a_pattern_sees_one_line_at_a_time(pattern: str, block: bytes, lines: list[bytes]) -> None:
    assert matching(pattern, block) == lines


@given(
    pattern=st.text("ab.*^$|?[](){}\\sW \n", max_size=8),
    block=st.lists(st.text("ab \té\r", max_size=4), min_size=1, max_size=12),
)
def test_blocks_and_single_lines_agree(pattern: str, block: list[str]) -> None:
    try:
        search = LineSearch(pattern)
    except InvalidParams:
        return
    single = compile_pattern(pattern, within_lines=True)
    data = "".join(f"{line}\n" for line in block).encode()
    expected = [
        number
        for number, line in enumerate(block)
        if single.search(line.removesuffix("\r").encode()) is not None
    ]
    runs = search.runs(data)
    assert [n for run in runs for n in range(run.first, run.first + run.lines)] == expected
    lines = data.split(b"\n")
    joined = b"".join(data[run.start : run.end] for run in runs)
    assert search.matching(data) == (joined, len(expected))
    for run in runs:
        whole = b"".join(line + b"\n" for line in lines[run.first : run.first + run.lines])
        assert data[run.start : run.end] == whole


@given(st.lists(st.text("ab\r", max_size=2), max_size=8), st.sampled_from(["a", "^b$", "", "x"]))
def test_equal_short_lines_are_looked_for_once(lines: list[str], pattern: str) -> None:
    """The same result as for each line by itself, however it was found."""
    data = "".join(f"{line}\n" for line in lines * 300).encode()
    single = compile_pattern(pattern)
    expected = [
        number
        for number, line in enumerate(lines * 300)
        if single.search(line.removesuffix("\r").encode()) is not None
    ]
    search = LineSearch(pattern)
    runs = search.runs(data)
    assert [n for run in runs for n in range(run.first, run.first + run.lines)] == expected
    joined = b"".join(data[run.start : run.end] for run in runs)
    assert search.matching(data) == (joined, len(expected))


@given(data=st.binary(max_size=60), letter=st.sampled_from("abé\ufffd"))
def test_invalid_utf8_is_searched_as_it_is_shown(data: bytes, letter: str) -> None:
    data += b"\n"
    shown = data.decode(errors="replace").split("\n")[:-1]
    found = LineSearch(re.escape(letter)).runs(data)
    expected = [number for number, line in enumerate(shown) if letter in line.removesuffix("\r")]
    assert [n for run in found for n in range(run.first, run.first + run.lines)] == expected


def test_a_long_line_is_searched_in_parts() -> None:
    def found(pattern: str, *parts: bytes) -> bool:
        search = LineSearch(pattern).in_parts()
        for part in parts:
            search.feed(part)
        return search.finish()

    filler = b"x" * 20_000
    assert found("ab", filler, b"xa", b"bx", filler)
    assert found("^a", b"a", filler, filler)
    assert not found("^a", b"x", b"a", filler, b"a")
    assert not found("^a", filler, b"a")
    assert found("a$", filler, b"a\r")
    assert found("a$", filler, b"a")
    assert not found("a$", filler, b"a", b"b")
    assert found("é", filler, b"\xc3", b"\xa9", filler)
    assert not found("a")


SLOW = "(a?){400}a{400}b"
"""Takes some 15 µs for each `a`: the automaton of the engine becomes too large."""


def test_a_pattern_that_is_too_slow_is_given_up() -> None:
    pattern = compile_pattern(SLOW)
    assert pattern.window < 8 << 10  # so that no search holds up others for long
    text = b"a" * pattern.window
    searches = 0
    while not pattern.given_up:
        assert pattern.search(text) is None
        searches += 1
        assert searches < 100
    assert pattern.search(b"a" * 400 + b"b") is None
    assert list(pattern.spans(b"a" * 400 + b"b")) == []


def test_a_common_pattern_is_never_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "SLOW_SECONDS", 0.005)  # the first searches take longer
    pattern = compile_pattern("[02468]$")
    lines = b"".join(b"%d\n" % number for number in range(20_000))
    assert len(list(pattern.spans(lines))) == 10_000
    assert not pattern.given_up
    for text in (r"\Ax", "^$"):  # the first is searched line by line
        search = LineSearch(text)
        found = search.matching(b"\n" * 20_000 + b"x\n\n" * 10_000)[1]
        assert (found, search.given_up) == ((10_000, False) if "x" in text else (30_000, False))


def test_a_pattern_of_many_classes_is_refused_before_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # To compile it would hold the interpreter for 30 ms.
    monkeypatch.setattr("re2.compile", None)
    for text in (r"\pL" * 333, r"\PN" * 33):
        with pytest.raises(InvalidParams, match="is too large"):
            compile_pattern(text)
