"""Base64 that is none: the texts recorded from the real app-server."""

import pytest

from holdfast.wire.rpc.base64 import InvalidBase64, decode_base64

RECORDED = {
    "a": "Invalid input length: 1",
    "YWJja": "Invalid input length: 5",
    "ab": "Invalid padding",
    "abc": "Invalid padding",
    "YQ=": "Invalid padding",
    "a=": "Invalid symbol 61, offset 1.",
    "a===": "Invalid symbol 61, offset 1.",
    "=": "Invalid symbol 61, offset 0.",
    "====": "Invalid symbol 61, offset 0.",
    "YWJj=": "Invalid symbol 61, offset 4.",
    "YWJj====": "Invalid symbol 61, offset 4.",
    "YQ==YQ==": "Invalid symbol 61, offset 2.",
    "YWJ=YWJj": "Invalid symbol 61, offset 3.",
    "YQ=Q": "Invalid symbol 61, offset 2.",
    "Y=Q=": "Invalid symbol 61, offset 1.",
    "YQ==\n": "Invalid symbol 10, offset 4.",
    "%YQ==": "Invalid symbol 37, offset 0.",
    "YWJja%a": "Invalid symbol 37, offset 5.",
    "YWJj%": "Invalid symbol 37, offset 4.",
    "é": "Invalid symbol 195, offset 0.",
    "YWJ é": "Invalid symbol 32, offset 3.",
    "YR==": "Invalid last symbol 82, offset 1.",
    "YWJjYR==": "Invalid last symbol 82, offset 5.",
}


@pytest.mark.parametrize(("text", "reason"), RECORDED.items(), ids=RECORDED)
def test_the_first_fault_is_named(text: str, reason: str) -> None:
    with pytest.raises(InvalidBase64) as caught:
        decode_base64(text)
    assert str(caught.value) == reason


def test_good_base64_is_decoded() -> None:
    assert decode_base64("") == b""
    assert decode_base64("YQ==") == b"a"
    assert decode_base64("YWJj") == b"abc"
