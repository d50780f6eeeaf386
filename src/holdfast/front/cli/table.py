"""Columns for people: aligned, plain, and as wide as what is in them."""

from collections.abc import Sequence

__all__ = ["aligned"]

_GAP = "  "


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """
    Return the lines of a table, its head first, without trailing blanks.

    Args:
        head: The names of the columns.
        rows: Rows with one cell per column.
    """
    lines = [head, *([_one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        _GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _one_line(cell: str) -> str:
    return " ".join(cell.split()) or "-"
