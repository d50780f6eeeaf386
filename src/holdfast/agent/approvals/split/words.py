"""A word of a shell script: its known parts, and those that only the shell will know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.agent.approvals.split.budget import AmbiguousError

__all__ = [
    "UNKNOWN",
    "Word",
    "WordPart",
    "decode_ansi_c",
    "expand_braces",
    "refuse_doubtful_quote",
]

UNKNOWN = "\0"
"""Stands in a word of `Split.literals` for a part that only the shell will know.

No rule and no argument can contain it, so a word with such a part equals nothing.
"""

# Most words that a word may expand to by braces.
MAX_BRACE_WORDS = 64

# Most braces, commas and pieces between them in one word.
MAX_BRACE_PIECES = 2000

_EXPANSION_SIGNS = frozenset("$`\\")
_NAME_START = re.compile(rf"\{{+(?:[A-Za-z0-9_./,}}{UNKNOWN}-]|$)")
_UNKNOWN_RUN = re.compile(f"{UNKNOWN}+")
_BLANKS = re.compile(r"[ \t\n]+")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[.*\])?\+?=", re.DOTALL)
_INDEX = re.compile(r"[^\W\d]\w*\[")
_SEQUENCE = re.compile(r"(-?\d{1,4}|[A-Za-z])\.\.(-?\d{1,4}|[A-Za-z])(?:\.\.-?\d{1,3})?")
# echo takes four digits where others take three.
_PRINTED_OCTAL = re.compile(r"\\0([0-7]{3})")
_SIMPLE_ESCAPES = {
    "a": 7, "b": 8, "e": 27, "E": 27, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11,
}  # fmt: skip
_ANSI_C = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2}|\{[0-9A-Fa-f]*\}?)|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|c(.)|(.))",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class WordPart:
    """A part of a word with uniform quoting."""

    text: str
    """The text, or for an unknown part what it stands for if its variable is not set."""

    quoted: bool = False
    """True if quotes or a backslash remove the text's special meaning."""

    unknown: bool = False
    """Only the shell will know the text: a variable, a substitution.

    One expansion may be several parts, if its word for an unset variable has quotes.
    """

    nested: bool = False
    """Unknown also if the variable is not set: its word for that has an expansion in it."""


@dataclass(slots=True)
class Word:
    """A word as a sequence of parts."""

    pieces: list[WordPart] = field(default_factory=list)
    quoted: bool = False
    """Quotes occur in it, so it is a word even if it is empty."""

    @property
    def bare(self) -> str | None:
        """The text, if it has no quotes and expansions; otherwise None."""
        if self.quoted or any(piece.quoted or piece.unknown for piece in self.pieces):
            return None
        return "".join([piece.text for piece in self.pieces])

    @property
    def text(self) -> str:
        """The text, with one `UNKNOWN` where the shell decides."""
        text = "".join([UNKNOWN if piece.unknown else piece.text for piece in self.pieces])
        return _UNKNOWN_RUN.sub(UNKNOWN, text)

    @property
    def text_if_unset(self) -> str:
        """The text if no variable in it is set."""
        return "".join([piece.text for piece in self.pieces])

    @property
    def has_substitution_sign(self) -> bool:
        """Its text has a sign that would begin an expansion if a command expands its words."""
        return any(not _EXPANSION_SIGNS.isdisjoint(piece.text) for piece in self.pieces)

    @property
    def is_assignment(self) -> bool:
        """True if the word sets a variable when it precedes a command."""
        return _ASSIGNMENT.match(self._head) is not None

    @property
    def begins_array(self) -> bool:
        """The word is a name and an equals sign: values in parentheses may follow."""
        if any(piece.quoted for piece in self.pieces):
            return False
        return _ASSIGNMENT.fullmatch(self._head) is not None

    @property
    def has_open_index(self) -> bool:
        """The word starts like `a[`, and the bracket is not closed in it."""
        if _INDEX.match(self._head) is None:
            return False
        text = "".join([p.text for p in self.pieces if not (p.quoted or p.unknown)])
        return text.count("[") > text.count("]")

    @property
    def has_quoted_index(self) -> bool:
        """The word starts like `a[`, and the shell expands the quoted text that follows."""
        head = self._head
        if _INDEX.match(head) is None or "]" in head:
            return False
        return any(p.quoted and not {"$", "`"}.isdisjoint(p.text) for p in self.pieces)

    def without_opening_brace(self) -> Word | None:
        """Return the word without opening braces at its start, or None if it has none."""
        head = self._head
        if not head.startswith("{") or self.bare == "{":
            return None
        if _NAME_START.match(head) is None:
            raise AmbiguousError("shells disagree about a brace before a command")
        pieces = list(self.pieces)
        while pieces and not (pieces[0].quoted or pieces[0].unknown):
            rest = pieces[0].text.lstrip("{")
            if rest:
                pieces[0] = WordPart(rest)
                break
            del pieces[0]
        return Word(pieces, quoted=self.quoted)

    def without_closing_brace(self) -> Word | None:
        """Return the word before an unmatched closing brace at its end, or None."""
        if not self.pieces or self.pieces[-1].quoted or self.pieces[-1].unknown:
            return None
        last = self.pieces[-1].text
        bare = "".join([p.text for p in self.pieces if not (p.quoted or p.unknown)])
        if not last.endswith("}") or bare.count("}") <= bare.count("{"):
            return None
        kept = [WordPart(last[:-1])] if len(last) > 1 else []
        return Word([*self.pieces[:-1], *kept], quoted=self.quoted)

    @property
    def _head(self) -> str:
        """The text before the first quoted part."""
        head = []
        for piece in self.pieces:
            if piece.quoted:
                break
            head.append(UNKNOWN if piece.unknown else piece.text)
        return "".join(head)

    def if_unset(self, *, split: bool, marked: bool) -> list[str]:
        """
        Return the words that result if no variable in it is set.

        For example no word for `$X`, `rm` for `${X:-rm}`, and `r` with `m` for `r$IFS'm'`.

        Args:
            split: Split the text of expansions at blanks, as shells do outside quotes.
            marked: Put `UNKNOWN` in place of expansions in the words of others.
        """
        words = [""]
        for piece in self.pieces:
            cut = split and piece.unknown and not piece.quoted
            text = UNKNOWN if marked and piece.nested and not piece.text else piece.text
            first, *more = _BLANKS.split(text) if cut else [text]
            words[-1] += first
            words += more
        return [word for word in words if word or (self.quoted and len(words) == 1)]


def decode_ansi_c(text: str, *, printed: bool = False) -> str:
    r"""
    Return what stands for `text` in `$'…'`; like bash, end at a NUL.

    With `printed`, decode it as `echo -e` and `printf` do, without NULs.
    """
    if printed:
        text = _PRINTED_OCTAL.sub(r"\\\1", text)

    def decoded(match: re.Match[str]) -> bytes:
        byte, short, long, octal, control, other = match.groups()
        if byte is not None:
            return bytes([int(byte.strip("{}") or "0", 16) & 0xFF])
        if octal is not None:
            return bytes([int(octal, 8) & 0xFF])
        if short is not None or long is not None:
            return _encoded(int(short or long, 16))
        if control is not None:
            return bytes([ord(control[0]) & 0x1F])
        if other in _SIMPLE_ESCAPES:
            return bytes([_SIMPLE_ESCAPES[other]])
        kept = other if other in "\\'\"?" else "\\" + other
        return kept.encode("utf-8", "surrogatepass")

    parts = []
    end = 0
    for match in _ANSI_C.finditer(text):
        parts.append(text[end : match.start()].encode("utf-8", "surrogatepass"))
        parts.append(decoded(match))
        end = match.end()
    parts.append(text[end:].encode("utf-8", "surrogatepass"))
    whole = b"".join(parts)
    kept = whole.replace(b"\0", b"") if printed else whole.partition(b"\0")[0]
    return kept.decode("utf-8", "surrogateescape")


def refuse_doubtful_quote(text: str, *, single_quotes: bool) -> None:
    """Raise if a single quote is ambiguous: for some shells it is a letter within quotes."""
    if not single_quotes and set('}"$`\\') & set(text):
        raise AmbiguousError("shells disagree about a quote in an expansion")


def _encoded(code: int) -> bytes:
    return chr(code).encode("utf-8", "surrogatepass") if code <= 0x10FFFF else b"\xef\xbf\xbd"


def expand_braces(word: Word) -> list[Word] | None:
    """Return the words that braces make of a word: `{rm,-f,x}` is three. None: too many."""
    if not any("{" in piece.text and not (piece.quoted or piece.unknown) for piece in word.pieces):
        return [word]
    pieces = _single(word)
    if len(pieces) > MAX_BRACE_PIECES:
        return None
    pending = [pieces]
    done: list[list[WordPart]] = []
    while pending:
        if len(done) + len(pending) > MAX_BRACE_WORDS:
            return None
        pieces = pending.pop()
        alternatives = _first_brace(pieces)
        if alternatives is None:
            done.append(pieces)
        else:
            pending.extend(reversed(alternatives))
    return [
        Word(pieces, quoted=word.quoted and any(piece.quoted for piece in pieces))
        for pieces in done
        if pieces or word.quoted
    ]


def _single(word: Word) -> list[WordPart]:
    """Return the pieces with each character that may belong to a brace as a separate piece."""
    pieces: list[WordPart] = []
    for piece in word.pieces:
        if piece.quoted or piece.unknown:
            pieces.append(piece)
        else:
            pieces.extend(WordPart(part) for part in re.split(r"([{},])", piece.text) if part)
    return pieces


def _first_brace(pieces: list[WordPart]) -> list[list[WordPart]] | None:
    """Return the alternatives of the first brace with any, each as a whole word."""
    openings = [number for number, piece in enumerate(pieces) if piece == WordPart("{")]
    # Limited, since each opening takes a scan; no real word has more than a few.
    for start in openings[:MAX_BRACE_WORDS]:
        options = _alternatives(pieces, start)
        if options is not None:
            end, texts = options
            return [[*pieces[:start], *text, *pieces[end + 1 :]] for text in texts]
    return None


def _alternatives(pieces: list[WordPart], start: int) -> tuple[int, list[list[WordPart]]] | None:
    """Return the end of the brace that opens at `start`, and its alternatives."""
    depth = 0
    parts: list[list[WordPart]] = [[]]
    for number in range(start, len(pieces)):
        piece = pieces[number]
        if piece == WordPart("{"):
            depth += 1
            if depth == 1:
                continue
        elif piece == WordPart("}"):
            depth -= 1
            if depth == 0:
                if len(parts) > 1:
                    return number, parts
                sequence = _sequence(parts[0])
                return None if sequence is None else (number, sequence)
        elif piece == WordPart(",") and depth == 1:
            parts.append([])
            continue
        parts[-1].append(piece)
    return None


def _sequence(pieces: list[WordPart]) -> list[list[WordPart]] | None:
    """Return the items of `{1..3}` or `{a..c}`, at most slightly more than the limit."""
    text = "".join([UNKNOWN if p.quoted or p.unknown else p.text for p in pieces])
    match = _SEQUENCE.fullmatch(text)
    if match is None:
        return None
    return [[WordPart(item)] for item in _items(match[1], match[2])]


def _items(first: str, last: str) -> Iterator[str]:
    numbers = not (first.isalpha() or last.isalpha())
    if first.isalpha() != last.isalpha():
        return
    start, end = (int(first), int(last)) if numbers else (ord(first), ord(last))
    step = 1 if end >= start else -1
    for count in range(MAX_BRACE_WORDS + 1):
        value = start + step * count
        yield str(value) if numbers else chr(value)
        if value == end:
            return
