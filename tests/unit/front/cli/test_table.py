"""Columns for people."""

from holdfast.front.cli.table import aligned


def test_columns_are_as_wide_as_what_is_in_them() -> None:
    lines = aligned(["NAME", "WHERE"], [["a", "x"], ["longer", "y z"]])
    assert lines == ["NAME    WHERE", "a       x", "longer  y z"]


def test_no_line_ends_in_blanks_and_an_empty_cell_shows() -> None:
    assert aligned(["A", "B"], [["", "wide"], ["x", ""]]) == ["A  B", "-  wide", "x  -"]


def test_a_cell_is_one_line() -> None:
    assert aligned(["A"], [["two\nlines"]]) == ["A", "two lines"]
