"""Reads the lines of here-documents."""

from __future__ import annotations

import re

from holdfast.agent.approvals.split import signs
from holdfast.agent.approvals.split.budget import AmbiguousError
from holdfast.agent.approvals.split.lexer import Lexer
from holdfast.agent.approvals.split.read_command import Document

__all__ = ["read_document"]

_LINE = re.compile(r"[^\n]*")


def read_document(lexer: Lexer, document: Document, depth: int, *, nested: bool) -> None:
    """Read the lines of a here-document that begins here; `nested`: in a substitution."""
    lexer.waiting -= 1
    begin = lexer.position
    lines = []
    while lexer.char:
        start = lexer.position
        line = _take_line(lexer, joined=not document.quoted)
        if document.strip_tabs:
            line = line.lstrip("\t")
        if lexer.posix and "\n" in lexer.text_since(start)[:-1]:
            document.refuse_joined_end(lexer.text_since(start), line)
        if line == document.delimiter:
            break
        # Some versions of bash end the document here, and some do not.
        if nested and line.startswith(document.delimiter) and ")" in line:
            raise AmbiguousError("the end of a here-document is not clear")
        lines.append(line + "\n")
    else:
        lexer.doubtful = True
    text = "".join(lines)
    if document.quoted:
        document.command.input_texts.append(text)
    else:
        if lexer.posix and signs.joins_in_substitution(lexer.text_since(begin)):
            raise AmbiguousError("shells disagree about a joined line in a here-document")
        document.command.add_input(lexer.expand_again(text, depth))


def _take_line(lexer: Lexer, *, joined: bool) -> str:
    """Read one line; with `joined`, including lines that a backslash joins to it."""
    parts = []
    while True:
        line = lexer.take(_LINE) or ""
        lexer.skip(len(lexer.char))
        backslashes = len(line) - len(line.rstrip("\\"))
        if not joined or backslashes % 2 == 0 or not lexer.char:
            parts.append(line)
            return "".join(parts)
        parts.append(line[:-1])
