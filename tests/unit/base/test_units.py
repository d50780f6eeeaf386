"""Amounts as people write them."""

import pytest

from holdfast.base.units import parse_seconds, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("17", 17), ("10K", 10_240), ("10k", 10_240), ("2 GiB", 2 << 30), ("1TB", 1 << 40)],
)
def test_a_size_has_a_unit_or_none(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("0.5", 0.5), (".5s", 0.5), ("500ms", 0.5), ("1m", 60.0), ("1h 30min", 5400.0)],
)
def test_a_time_has_units_or_none(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "K", "1.5K", "-1", "1x", "1KiBB"])
def test_what_is_no_size_is_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 10K or 512M, not "):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "m", "-1", "1x", "1 2", "1m 2", "nan", "inf", "1e3"])
def test_what_is_no_time_is_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 500ms, 1m or 2h, not "):
        parse_seconds(text)
