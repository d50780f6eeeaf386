"""A late module is imported by its first use, and by nothing else."""

import sys

import pytest

from holdfast.late_import import late_module


def test_the_first_name_that_is_read_imports_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    late = late_module("colorsys")
    assert "colorsys" not in sys.modules
    assert late.rgb_to_hsv(0, 0, 1) == (2 / 3, 1, 1)  # type: ignore[attr-defined]
    assert "colorsys" in sys.modules


def test_a_module_that_is_not_there_is_told_at_its_first_use() -> None:
    late = late_module("holdfast.no_such_module")
    with pytest.raises(ImportError, match="no_such_module"):
        _ = late.anything  # type: ignore[attr-defined]


def test_a_module_that_is_taken_away_is_missed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    late = late_module("colorsys")
    _ = late.rgb_to_hsv  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "colorsys", None)
    with pytest.raises(ImportError, match="colorsys"):
        _ = late.rgb_to_hsv  # type: ignore[attr-defined]
