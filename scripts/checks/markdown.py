"""Headings, links and tables of a Markdown file, as the documentation site reads them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Link", "anchors", "cells", "links", "prose", "sentences"]

_FENCE = re.compile(r"^\s*(```+|~~~+)")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.*?)(?: *\{[^}]*\})?$")
_EXPLICIT_ID = re.compile(r"\{[^}]*#(?P<id>[\w-]+)[^}]*\}$")
_LINK = re.compile(r"\]\((?P<target>[^()\s]+)\)")
_CODE = re.compile(r"`[^`]*`")
_SHOWN = re.compile(r"\[(?P<text>[^\]]*)\]\([^()\s]+\)")
_ITEM = re.compile(r"^(?:- |\d+\. )")
_LABEL = re.compile(r"^\*\*[^*]{1,50}(?:\.\*\*|\*\*[.:]) ")
_RULE = re.compile(r"^[|:\s-]*-[|:\s-]*$")
_BETWEEN = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][)*])) +(?=[A-Z`(*])")


class Link(NamedTuple):
    """A link of a document to another file, or to a heading."""

    line: int
    file: str
    """Relative to the document; empty for the document itself."""
    anchor: str


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines outside code blocks, with their numbers from 1."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        found = _FENCE.match(line)
        if fence is None and found:
            fence = found[1]
        elif fence is None:
            yield number, line
        elif found and found[1].startswith(fence):
            fence = None


def anchors(text: str) -> set[str]:
    """Return the anchors of all headings."""
    found: set[str] = set()
    for _, line in prose(text):
        if heading := _HEADING.match(line):
            explicit = _EXPLICIT_ID.search(line)
            slug = explicit["id"] if explicit else _slug(heading["text"])
            unique, count = slug, 0
            while unique in found:
                count += 1
                unique = f"{slug}_{count}"
            found.add(unique)
    return found


def _slug(heading: str) -> str:
    """Return the anchor that Python-Markdown makes from a heading."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    plain = unicodedata.normalize("NFKD", shown).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def links(text: str) -> Iterator[Link]:
    """Yield the links that stay inside the project."""
    for number, line in prose(text):
        for found in _LINK.finditer(_CODE.sub("", line)):
            file, _, anchor = found["target"].partition("#")
            if ":" not in file:
                yield Link(number, file, anchor)


def cells(text: str) -> Iterator[tuple[int, str]]:
    """Yield the cells of all tables, with the numbers of their lines."""
    for number, line in prose(text):
        if line.startswith("|"):
            hidden = re.sub(r"\\\||(?<=`)[^`|]*\|[^`|]*(?=`)", "x", line)
            for cell in hidden.strip().strip("|").split("|"):
                yield number, cell.strip()


def sentences(text: str) -> Iterator[tuple[str, str]]:
    """
    Yield each sentence with the heading above it, without emphasis and the targets of links.

    A row of a table counts as a sentence. Names of rows and of list items are left out.
    """
    heading, block = "", ""
    for _, line in (*prose(text), (0, "")):
        found = _HEADING.match(line)
        is_row = line.startswith("|")
        if _RULE.match(line):
            block = ""  # the head of a table
        if found or is_row or not line.strip() or _ITEM.match(line) or block.startswith("|"):
            for sentence in _split(block):
                yield heading, sentence
            block = ""
        if found:
            heading = found["text"]
        elif is_row:
            block = line.strip("-:| ") and line
        else:
            block = f"{block} {line.strip()}".strip()


def _split(block: str) -> Iterator[str]:
    """Yield the sentences of a paragraph, a list item or a row of a table."""
    if block.startswith("|"):
        yield block.strip("| ")
    else:
        plain = _SHOWN.sub(r"\g<text>", _LABEL.sub("", _ITEM.sub("", block))).replace("**", "")
        # The end of a sentence cannot be inside code.
        hidden = _CODE.sub(lambda code: "`".ljust(len(code[0]), "x"), plain)
        start = 0
        for between in _BETWEEN.finditer(hidden):
            yield plain[start : between.start()]
            start = between.end()
        if plain:
            yield plain[start:]
