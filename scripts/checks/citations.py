"""
Resolves every citation in the code: `python -m scripts.checks.citations`.

A docstring or a comment cites a behaviour by its id in tests/requirements.toml, in square brackets:
`[start.check-order]`. A star stands for a family of ids: `[start.*]`. It cites a document by its
path from the project's root, with the anchor of a heading where one is meant. Documents outside the
repository are not cited: readers could not look them up.

It also counts the ids that tests in tests/unit and in tests/e2e both claim: a second test of
the same behaviour needs a reason.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from scripts.checks.markdown import anchors

__all__ = ["SHOWN_TWICE", "main", "remarks", "requirement_ids", "shown_twice", "unresolved"]

ROOT = Path(__file__).parents[2]

FOLDERS = ("src", "tests", "bench", "examples", "scripts")

SHOWN_TWICE = 140
"""
Ids claimed in both directories; lower it when there are fewer.

Most of them are edge cases of a parser or a queue in addition to one path through a server, or
promises of docs/security.md.
"""

_CLAIM = re.compile(r"pytest\.mark\.requirement\(([^()]*)\)")
_TEXT = re.compile(r'"([\w.-]+)"')
_REQUIREMENT = re.compile(r"(?<![\w`\])])\[(?P<id>[a-z][a-z0-9-]*(?:\.(?:[a-z0-9-]+|\*))+)\](?!\()")
_DOCUMENT = re.compile(r"(?<![\w./-])(?P<path>docs/[\w./-]+\.md)(?:#(?P<anchor>[\w-]+))?")
_OUTSIDE = re.compile(r"\b[Ss]pec \d+(?:\.\d+)*|\b[\w-]+ spec, ?(?:appendix|section)")


def requirement_ids(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the ids of a ledger, given as read from its file."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from requirement_ids(value, f"{prefix}{key}.")
        elif key == "says":
            yield prefix.removesuffix(".")


def unresolved(source: str, ids: Set[str], documents: Mapping[str, Set[str]]) -> Iterator[str]:
    """
    Yield what is wrong with the citations of one Python file, each with its line.

    Args:
        source: The text of the file.
        ids: All ids of requirements.
        documents: The anchors of each document, by its path.
    """
    # Finding docstrings takes a thousand times as long as this check, which excludes most files.
    if not any(pattern.search(source) for pattern in (_REQUIREMENT, _DOCUMENT, _OUTSIDE)):
        return
    for line, text in remarks(source):
        for found in _REQUIREMENT.finditer(text):
            if not _is_known(found["id"], ids):
                yield f"{_at(line, text, found)}: no requirement {found['id']}"
        for found in _DOCUMENT.finditer(text):
            path, anchor = found["path"], found["anchor"]
            if path not in documents:
                yield f"{_at(line, text, found)}: no document {path}"
            elif anchor and anchor not in documents[path]:
                yield f"{_at(line, text, found)}: no heading #{anchor} in {path}"
        for found in _OUTSIDE.finditer(text):
            yield f"{_at(line, text, found)}: cites what is not in the repository: {found[0]}"


def shown_twice(sources: Mapping[str, str]) -> set[str]:
    """Return the ids that tests in tests/unit and in tests/e2e claim, given sources by path."""
    found: dict[str, set[str]] = {"unit": set(), "e2e": set()}
    for path, source in sources.items():
        for kind, ids in found.items():
            if path.startswith(f"tests/{kind}/"):
                for claim in _CLAIM.finditer(source):
                    ids.update(_TEXT.findall(claim[1]))
    return found["unit"] & found["e2e"]


def remarks(source: str) -> Iterator[tuple[int, str]]:
    """Yield comments, and strings that are statements, with the numbers of their first lines."""
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        starts = before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and starts):
            yield token.start[0], token.string
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token.type


def _at(line: int, text: str, found: re.Match[str]) -> int:
    return line + text.count("\n", 0, found.start())


def _is_known(cited: str, ids: Set[str]) -> bool:
    if not cited.endswith(".*"):
        return cited in ids
    return any(identity.startswith(cited[:-1]) for identity in ids)


def main() -> int:
    """Print what does not resolve; return the exit status."""
    ledger = tomllib.loads((ROOT / "tests/requirements.toml").read_text())
    ids = set(requirement_ids(ledger))
    documents = {
        str(path.relative_to(ROOT)): anchors(path.read_text()) for path in ROOT.glob("docs/**/*.md")
    }
    sources = {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    wrong = [
        f"{path}:{problem}"
        for path, source in sources.items()
        for problem in unresolved(source, ids, documents)
    ]
    twice = len(shown_twice(sources))
    if twice > SHOWN_TWICE:
        wrong.append(f"{twice} ids are claimed in tests/unit and tests/e2e: keep the better test")
    print("\n".join(wrong) or "every citation resolves")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
