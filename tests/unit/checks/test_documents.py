"""The check of documents finds wide lines, full cells and dead links."""

import re
import tomllib
from pathlib import Path

import pytest

from scripts.checks.documents import LONGEST_CELL, LONGEST_LINE, problems
from scripts.checks.markdown import anchors, sentences

ROOT = Path(__file__).parents[3]

FILES = {"docs/a.md": {"one", "two"}, "docs/b.md": {"three"}, "README.md": set[str]()}


def wrong(text: str) -> list[str]:
    return list(problems("docs/a.md", text, FILES))


def test_a_wide_line_is_found_also_in_code() -> None:
    wide = "x" * (LONGEST_LINE + 1)
    assert wrong(f"{wide[1:]}\n```\n{wide}\n```") == ["docs/a.md:3: 161 characters, more than 160"]


def test_a_full_cell_is_found() -> None:
    fits = " ".join("w" * LONGEST_CELL)
    code = "`" + fits + " | more`"
    assert wrong(f"| {fits} | {code} and more |") == []
    assert wrong(f"| a | {fits} more |") == ["docs/a.md:1: a table cell of 21 words, more than 20"]


@pytest.mark.parametrize("target", ["b.md", "b.md#three", "#two", "../README.md", "https://a.b/c"])
def test_a_link_that_leads_somewhere_is_right(target: str) -> None:
    assert wrong(f"See [it]({target}).") == []


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("c.md", "a link to docs/c.md, which is not there"),
        ("b.md#one", "a link to docs/b.md#one: no such heading"),
        ("#three", "a link to docs/a.md#three: no such heading"),
    ],
)
def test_a_dead_link_is_found(target: str, problem: str) -> None:
    assert wrong(f"Text.\n\nSee [it]({target}).") == [f"docs/a.md:3: {problem}"]


def test_code_has_neither_links_nor_headings() -> None:
    assert wrong("```\n# One\n[x](nowhere.md)\n```\nAnd `[x](nowhere.md)`.") == []


def test_anchors_are_those_of_the_site() -> None:
    text = "# A `b/c`, d\n## A `b/c`, d\n## See [it](x.md) – now\n## Named {#own}\n"
    assert anchors(text) == {"a-bc-d", "a-bc-d_1", "see-it-now", "own"}


def test_a_document_is_read_sentence_by_sentence() -> None:
    text = """
# One

**A whole paragraph in bold letters counts, since a name has at most 50 of them.** It goes
on (as `a. B` does: see [there](b.md#x)). `c` too.

```sh
Not. This.
```

## Two
- **Name.** What it
  says.
- **Other**: *Here*, and so on. (In brackets.)

| a | b |
|---|--:|
| c | D. E |
The end.
"""
    assert list(sentences(text)) == [
        (
            "One",
            "A whole paragraph in bold letters counts, since a name has at most 50 of them.",
        ),
        ("One", "It goes on (as `a. B` does: see there)."),
        ("One", "`c` too."),
        ("Two", "What it says."),
        ("Two", "*Here*, and so on."),
        ("Two", "(In brackets.)"),
        ("Two", "c | D. E"),
        ("Two", "The end."),
    ]


def test_the_architecture_has_every_layer_in_its_order_and_stays_short() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    assert len(page.splitlines()) <= 220
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    there = {path.stem for path in (ROOT / "src/holdfast").iterdir()} - {"testing"}
    layers = [
        set(re.findall(r"\w+", layer)) & there for layer in settings["contracts"][0]["layers"]
    ]
    # Without the first line, which may have attributes of the block.
    drawn = page.partition("## Rooms")[2].split("```")[1].partition("\n")[2]
    assert [set(re.findall(r"\w+", layer)) for layer in drawn.split(">")] == list(
        filter(None, layers)
    )
