"""
Warns about words that read like a translation: `python -m scripts.checks.words [-v]`.

It looks at the prose of documents, and at docstrings and comments in src. Each warning names the
place, the odd word and a better one. It never fails: where the word is right, it stays.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from scripts.checks.citations import remarks
from scripts.checks.documents import PATTERNS
from scripts.checks.markdown import prose
from scripts.pages import GENERATED

__all__ = ["BETTER", "SHOWN", "in_document", "in_source", "main"]

ROOT = Path(__file__).parents[2]

BETTER: Mapping[str, str] = {
    r"nobody": "name the actor: no client, no process, no reader",
    r"somebody": "name the actor: a user, a client, another program",
    r"whoever": "name the actor: the caller, the operator",
    r"tells? of|told of": "reports, notifies",
    r"told": "reported, notified, configured",
    r"any more": "no longer",
    r"anew": "again, new",
    r"(?:inside|outside) of": "inside, outside",
    r"beside": "next to, in addition to",
    r"(?:of its|of their) own": "its own, separate",
    # "There is no" and "there are none" are English; "that is no URL" is not.
    r"(?<!there )is no(?! longer| more| such)": "is not a",
    r"(?<!there )(?:is|are) none": "not, no, zero",
    r"mend(?:s|ed|ing)?": "fix, restore",
    r"folders?": "directory",
}
"""Odd words, as patterns, each with a better one."""

SHOWN = 50
"""Warnings that are printed unless `-v` is given."""

_ODD = re.compile("|".join(rf"\b(?P<w{i}>{odd})\b" for i, odd in enumerate(BETTER)), re.IGNORECASE)
_CODE = re.compile(r"``.+?``|`[^`\n]+`|\]\([^)\s]+\)")

_DOCUMENTS = [pattern for pattern in PATTERNS if pattern != "CHANGELOG.md"]
"""The changelog is history."""


def in_document(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the odd word and a better one of each place in a Markdown file."""
    for number, line in prose(text):
        yield from _odd(number, line)


def in_source(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield the same of the docstrings and comments of a Python file."""
    # Tokenizing takes far longer than this search, which rules out most files.
    if _ODD.search(source):
        for first, text in remarks(source):
            for number, line in enumerate(text.splitlines(), first):
                yield from _odd(number, line)


def _odd(number: int, line: str) -> Iterator[tuple[int, str, str]]:
    for found in _ODD.finditer(_CODE.sub("``", line)):
        index = int((found.lastgroup or "w0")[1:])
        yield number, found[0], list(BETTER.values())[index]


def main() -> int:
    """Print each odd word and how many there are; return 0."""
    documents = {path for pattern in _DOCUMENTS for path in ROOT.glob(pattern)}
    warnings: list[str] = []
    for path in sorted(documents | set((ROOT / "src").rglob("*.py"))):
        name = str(path.relative_to(ROOT))
        if name not in GENERATED:
            find = in_source if path.suffix == ".py" else in_document
            for line, odd, better in find(path.read_text()):
                warnings.append(f"{name}:{line}: {odd!r}, better: {better}")
    shown = warnings if "-v" in sys.argv[1:] else warnings[:SHOWN]
    print(
        *shown, f"{len(warnings)} odd words, {len(shown)} shown (warnings; -v shows all)", sep="\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
