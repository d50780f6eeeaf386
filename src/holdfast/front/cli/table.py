"""Plain text tables with aligned columns."""

from collections.abc import Sequence

__all__ = ["aligned"]

_GAP = "  "


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """
    Return the lines of a table, starting with its head, without trailing blanks.

    Args:
        head: Names of the columns.
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
