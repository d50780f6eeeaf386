"""Bytes as text: UTF-8, else the guess of chardetng [command-exec.output.charset]."""

import asyncio
from typing import Self

import pytest

from holdfast.front.app_server.command_exec.charset import PIECE, decode


@pytest.mark.requirement("command-exec.output.charset")
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        ("né\0\r\n語".encode(), "né\0\r\n語"),
        (b"caf\xe9 na\xefve", "café naïve"),
        (b"\x93quoted\x94", "“quoted”"),
        (b"ab\xc3", "abĂ"),
        ("привет, мир".encode("cp1251"), "привет, мир"),
        ("こんにちは世界".encode("cp932"), "こんにちは世界"),
        # Byte order marks count more than a guess.
        (b"\xff\xfeh\x00i\x00", "hi"),
        (b"\xfe\xff\x00h\x00i", "hi"),
        (b"\xff\xfeh\x00i", "\ufffd\ufffdh\x00i"),  # half a character
        (b"\xef\xbb\xbfab\xff", "\ufeffab\ufffd"),
        # A byte without a letter in Windows-1252 is a control character on the web.
        (b"caf\xe9 \x81 na\xefve", "café \x81 naïve"),
        # In GBK it is the euro sign.
        (b"\x80ok\x93\xe4\xb7\xc2\xa0\xef\xbb\xbf\n\xa4\xb3\xa4\xec", "€ok撲仿狅豢\nこれ"),
    ],
)
async def test_text_of_bytes(data: bytes, text: str) -> None:
    assert await decode(data) == text


async def test_a_quote_among_words_is_no_cyrillic_letter() -> None:
    """chardetng takes such short texts for IBM866."""
    assert await decode(b"it\x92s \x96 ok\x99") == "it’s – ok™"  # noqa: RUF001 - as expected
    assert await decode(b"\x93\x94 test") == "“” test"


@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, (1 << 20) + 1, 3 << 20])
async def test_a_letter_may_be_cut_anywhere(size: int) -> None:
    utf8 = ("é" * size).encode()[: size - size % 2]
    assert await decode(utf8) == "é" * (size // 2)
    sjis = ("語" * size).encode("cp932")[: size - size % 2]
    assert await decode(sjis) == "語" * (size // 2)


class Turns:
    """Counts the turns of the event loop while its block runs."""

    count = 0

    async def __aenter__(self) -> Self:
        self._counting = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._counting.cancel()

    async def _run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


@pytest.mark.requirement("command-exec.output.charset-turns")
async def test_a_long_guess_lets_the_event_loop_run() -> None:
    data = b"caf\xe9 na\xefve " * (1 << 17)
    async with Turns() as turns:
        assert (await decode(data)).startswith("café naïve")
    assert turns.count >= len(data) // PIECE


@pytest.mark.requirement("command-exec.output.charset-turns")
async def test_bytes_that_are_no_text_let_the_event_loop_run() -> None:
    """Read by their mark and then, as half a letter is at their end, with replacements."""
    data = b"\xff\xfe" + b"a\0\xc3" * (1 << 19) + b"\x00\xd8"
    async with Turns() as turns:
        assert await decode(data) == data.decode(errors="replace")
    assert turns.count >= 2 * (len(data) // PIECE)


async def test_any_bytes_have_a_text() -> None:
    import random

    made = random.Random(0)
    for _ in range(300):
        data = made.randbytes(made.randrange(1, 40))
        assert isinstance(await decode(data), str)
