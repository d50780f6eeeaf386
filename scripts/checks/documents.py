"""
Checks the form of README.md, CONTRIBUTING.md and docs: `python -m scripts.checks.documents`.

Lines and table cells have a maximum size, so that a page can be read on a phone and a change can be
reviewed. Every link leads to a file and to a heading that exist.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from scripts.checks.markdown import anchors, cells, links
from scripts.pages import GENERATED

__all__ = ["LONGEST_CELL", "LONGEST_LINE", "main", "problems"]

ROOT = Path(__file__).parents[2]

LONGEST_LINE = 160
"""Characters of a line, also inside a code block."""

LONGEST_CELL = 20
"""Words of a table cell; text in backticks is one word."""

PATTERNS = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *("docs/**/*.md", "examples/*/README.md", "src/**/README.md"),
)


def problems(path: str, text: str, files: Mapping[str, Set[str]]) -> Iterator[str]:
    """
    Yield what is wrong with one document, each with its line.

    Args:
        path: Its path from the project's root.
        text: Its content.
        files: All files of the project, with their anchors if they are documents.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > LONGEST_LINE:
            yield f"{path}:{number}: {len(line)} characters, more than {LONGEST_LINE}"
    for number, cell in cells(text):
        words = _words(cell)
        if words > LONGEST_CELL:
            yield f"{path}:{number}: a table cell of {words} words, more than {LONGEST_CELL}"
    for link in links(text):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link.file))
        target = target if link.file else path
        if target not in files:
            yield f"{path}:{link.line}: a link to {target}, which is not there"
        elif link.anchor and link.anchor not in files[target]:
            yield f"{path}:{link.line}: a link to {target}#{link.anchor}: no such heading"


def _words(cell: str) -> int:
    outside = cell.split("`")[::2]
    spans = len(cell.split("`")[1::2])
    return sum(len(part.split()) for part in outside) + spans


def main() -> int:
    """Print what is wrong; return the exit status."""
    files: dict[str, set[str]] = {name: set() for name in GENERATED}
    for path in ROOT.rglob("*"):
        name = path.relative_to(ROOT)
        if not any(part.startswith(".") for part in name.parts) and name.parts[0] != "site":
            is_text = path.suffix == ".md" and path.is_file()
            files[str(name)] = anchors(path.read_text()) if is_text else set()
    wrong = [
        problem
        for pattern in PATTERNS
        for path in sorted(ROOT.glob(pattern))
        if str(path.relative_to(ROOT)) not in GENERATED
        for problem in problems(str(path.relative_to(ROOT)), path.read_text(), files)
    ]
    print("\n".join(wrong) or "every document is in form")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
