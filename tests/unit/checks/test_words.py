"""The check of words finds those that read like a translation, and warns only."""

import re

import pytest

from scripts.checks.words import BETTER, SHOWN, in_document, in_source, main


def odd(text: str) -> list[tuple[int, str]]:
    return [(line, word) for line, word, _ in in_document(text)]


def test_an_odd_word_of_a_document_is_found_with_its_line_and_a_better_one() -> None:
    text = "First.\n\nThe server is told, and nobody waits any more.\n"
    assert list(in_document(text)) == [
        (3, "told", BETTER["told"]),
        (3, "nobody", BETTER["nobody"]),
        (3, "any more", "no longer"),
    ]


def test_code_and_links_of_a_document_are_not_prose() -> None:
    assert odd("The user `nobody` owns ``a `folder` ``; see [here](beside.md).") == []
    assert odd("```\nnobody\n```\nwhoever") == [(4, "whoever")]


@pytest.mark.parametrize(
    "text", ["there is no network", "if there are none", "it is no longer open", "besides"]
)
def test_common_english_is_fine(text: str) -> None:
    assert odd(text) == []


def test_only_docstrings_and_comments_of_a_program_count() -> None:
    source = '''
"""Fixes a folder."""

nobody = "whoever"  # a pipe that
# tells of an end


def told() -> str:
    """
    Return nothing.

    It is no URL.
    """
    return "somebody"
'''
    found = [(line, word) for line, word, _ in in_source(source)]
    assert found == [(2, "folder"), (5, "tells of"), (12, "is no")]


def test_every_better_word_is_not_odd_itself() -> None:
    assert [better for better in BETTER.values() if odd(better)] == []
    assert all(re.compile(pattern) for pattern in BETTER)


def test_the_check_warns_and_does_not_fail(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    *warnings, last = capsys.readouterr().out.splitlines()
    assert re.match(rf"\d+ odd words, {len(warnings)} shown", last)
    assert len(warnings) <= SHOWN
    assert all(re.match(r"[\w./-]+:\d+: '", line) for line in warnings)
