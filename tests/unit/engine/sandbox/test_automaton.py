"""Comparing texts with patterns: the same as a regular expression, and never slow."""

import re
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.sandbox.profile.automaton import Automaton
from holdfast.engine.sandbox.profile.glob_syntax import (
    ANY_IN_NAME,
    BadPattern,
    Characters,
    Part,
    Wildcard,
    parts,
)
from tests.depth import times

PATTERNS = st.text(alphabet="ab/*?[]!-{},\\", max_size=14)
TEXTS = st.text(alphabet="abc/-*{", max_size=10)


# `(?:[^/]+/)*` needs no empty components: `compile_glob` has removed double slashes.
_IN_REGEX = {
    Wildcard.NAME: "[^/]*",
    Wildcard.FOLDERS: "(?:[^/]+/)*",
    Wildcard.REST: ".+",
    Wildcard.OPEN: "(?:",
    Wildcard.OR: "|",
    Wildcard.CLOSE: ")",
}


def as_regex(found: Iterable[Part]) -> str:
    """Return an equivalent regular expression; matching it may be slow."""
    return "".join(
        _IN_REGEX[part]
        if isinstance(part, Wildcard)
        else _set_in_regex(part)
        if isinstance(part, Characters)
        else re.escape(part)
        for part in found
    )


def _set_in_regex(part: Characters) -> str:
    if part == ANY_IN_NAME:
        return "[^/]"
    listed = "".join(f"{re.escape(first)}-{re.escape(last)}" for first, last in part.ranges)
    # The look-ahead excludes the slash, which a negated set would match.
    return f"(?!/)[{'^' if part.negated else ''}{listed}]"


@settings(max_examples=times(50), deadline=None)
@given(PATTERNS, st.lists(TEXTS, min_size=1, max_size=8))
def test_it_is_what_a_regular_expression_would_say(pattern: str, texts: list[str]) -> None:
    try:
        found = list(parts(pattern))
    except BadPattern:
        return
    automaton, regex = Automaton(found), re.compile(as_regex(found), re.DOTALL)
    for text in texts:
        assert automaton.matches(text) is (regex.fullmatch(text) is not None), (pattern, text)


def test_many_wildcards_take_no_time() -> None:
    """Of each of these, a regular expression would not see the end."""
    for pattern in ("*a" * 40 + "b", "**/" * 40 + "b", "{*a,*aa}" * 30 + "b", "{**/,*/}" * 30):
        assert not Automaton(parts(pattern)).matches("a" * 200 + "/a" * 200 + "c")


def test_what_is_kept_is_bounded() -> None:
    """Each text leads to other sets of states: there are more than could be kept."""
    automaton = Automaton(parts("*a" + "?" * 40))
    for number in range(400):
        text = f"{number:012b}".replace("0", "b").replace("1", "a") + "b" * 40
        assert automaton.matches(text) is (text[-41] == "a")
    assert len(automaton._kept) < 1000
