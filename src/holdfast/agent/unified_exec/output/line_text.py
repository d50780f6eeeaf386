"""Words and cuts that pages and selections share: counts, marks, lines that are too long."""

__all__ = ["BYTE_BUDGET", "LEAST_BUDGET", "count_of", "cut_line", "letter_border", "with_note"]

BYTE_BUDGET = 40_000
"""Bytes of text in one answer unless told otherwise: 10,000 tokens of 4 bytes."""

LEAST_BUDGET = 1024
"""A smaller budget counts as this one: marks and one short line have to fit."""


def count_of(number: int, noun: str) -> str:
    """Return "1 line" or "48,112 lines"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def with_note(note: str, text: str) -> str:
    """Return the text below one line with the note in brackets."""
    return f"[{note}]\n{text}"


def letter_border(data: bytes, at: int) -> int:
    """Return the last position up to `at` where no letter of UTF-8 is cut in two."""
    for position in range(at, max(at - 4, -1), -1):
        if position >= len(data) or data[position] & 0xC0 != 0x80:
            return position
    # Not UTF-8: there is no character to keep whole.
    return at


def cut_line(line: bytes, limit: int, *, length: int | None = None) -> bytes:
    """
    Return a line that has at most `limit` bytes, with a mark for what is left out.

    Args:
        line: With its newline, if it has one, which stays.
        limit: At least the length of the mark.
        length: The bytes of the whole line without its newline, if `line` is but its begin.
    """
    ending = b"\r\n" if line.endswith(b"\r\n") else line[len(line.removesuffix(b"\n")) :]
    body = line.removesuffix(ending)
    whole = len(body) if length is None else length
    if whole == len(body) and len(line) <= limit:
        return line
    # The number in the mark has never more digits than that of the whole line.
    room = limit - len(_mark(whole)) - len(ending)
    kept = body[: letter_border(body, max(0, min(len(body), room)))]
    return kept + _mark(whole - len(kept)) + ending


def _mark(number: int) -> bytes:
    return f"[... {count_of(number, 'byte')} of this line left out ...]".encode()
