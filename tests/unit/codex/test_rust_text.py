"""Texts and numbers are shown as Rust shows them."""

import pytest

from holdfast.codex.rust_text import debug_text, float_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ~ text's", '"plain ~ text\'s"'),
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("\0\t\n\r\x01\x1b\x7f", '"\\0\\t\\n\\r\\u{1}\\u{1b}\\u{7f}"'),
        ("é漢😀\ufffd", '"é漢😀\ufffd"'),
        ("\xa0\u200b\ue000\u3000\U0001d173", '"\\u{a0}\\u{200b}\\u{e000}\\u{3000}\\u{1d173}"'),
        ("e\u0301\u0903", '"e\\u{301}\u0903"'),
    ],
)
def test_a_text_in_quotes(text: str, shown: str) -> None:
    assert debug_text(text) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1000.0, "1000.0"),
        (-0.0, "-0.0"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e+16"),
        (1.8446744073709552e19, "1.8446744073709552e+19"),
        (0.0001, "0.0001"),
        (1e-5, "0.00001"),
        (-1.5e-5, "-0.000015"),
        (1e-6, "1e-6"),
        (5e-324, "5e-324"),
    ],
)
def test_a_float(value: float, shown: str) -> None:
    assert float_text(value) == shown
