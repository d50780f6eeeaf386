"""Text helpers for pages and selections: counts, marks, cutting long lines."""

__all__ = ["BYTE_BUDGET", "LEAST_BUDGET", "count_of", "cut_line", "letter_border", "with_note"]

BYTE_BUDGET = 40_000
"""Default number of bytes in one answer: 10,000 tokens of 4 bytes."""

LEAST_BUDGET = 1024
"""Smallest budget: marks and one short line must fit."""


def count_of(number: int, noun: str) -> str:
    """Return "1 line" or "48,112 lines"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def with_note(note: str, text: str) -> str:
    """Return the text preceded by a line with the note in brackets."""
    return f"[{note}]\n{text}"


def letter_border(data: bytes, at: int) -> int:
    """Return the last position up to `at` that does not split a UTF-8 character."""
    for position in range(at, max(at - 4, -1), -1):
        if position >= len(data) or data[position] & 0xC0 != 0x80:
            return position
    # Invalid UTF-8, so there is no character to preserve.
    return at


def cut_line(line: bytes, limit: int, *, length: int | None = None) -> bytes:
    """
    Return a line cut to at most `limit` bytes, with a mark for the rest.

    Args:
        line: The line. A newline at its end is kept.
        limit: The limit, which must be at least the length of the mark.
        length: Bytes of the whole line without its newline, if `line` is only its beginning.
    """
    ending = b"\r\n" if line.endswith(b"\r\n") else line[len(line.removesuffix(b"\n")) :]
    body = line.removesuffix(ending)
    whole = len(body) if length is None else length
    if whole == len(body) and len(line) <= limit:
        return line
    # The number in the mark never has more digits than the length of the whole line.
    room = limit - len(_mark(whole)) - len(ending)
    kept = body[: letter_border(body, max(0, min(len(body), room)))]
    return kept + _mark(whole - len(kept)) + ending


def _mark(number: int) -> bytes:
    return f"[... {count_of(number, 'byte')} of this line left out ...]".encode()
