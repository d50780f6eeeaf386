"""
Decoding of output: UTF-8, else a guessed encoding [command-exec.output.charset].

The guess is that of chardetng, so that all servers of this protocol decode alike. It holds the GIL
for about 0.1 s per MiB, so it gets the data in pieces, and the event loop runs between them.
"""

import asyncio
import codecs
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.base.late_import import late_module

if TYPE_CHECKING:
    import chardetng_py  # type: ignore[import-untyped]
else:
    # An extension module, which UTF-8 output does not need.
    chardetng_py = late_module("chardetng_py")

__all__ = ["PIECE", "decode"]

PIECE = 64 << 10
"""Bytes to process before the event loop runs again."""

# Maximum bytes of UTF-8 to decode in one step, which takes less than a millisecond.
_AT_ONCE = 1 << 20

# Byte order marks, which take precedence over a guess.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

# Python codecs for WHATWG encodings that Python names or defines differently.
_CODECS = {
    "Big5": "big5hkscs",
    "EUC-KR": "cp949",
    "GBK": "gb18030",
    "IBM866": "cp866",
    "ISO-8859-8-I": "iso8859-8",
    "Shift_JIS": "cp932",
    "windows-874": "cp874",
}

# Quotes, dashes, the bullet and the trade mark of Windows-1252.
_PUNCTUATION = frozenset([0x91, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x99])


async def decode(data: bytes) -> str:
    """Return output as text; never fails, and replaces undecodable bytes with U+FFFD."""
    text = await _decoded(data, "utf-8")
    if text is not None:
        return text
    for mark, name in _MARKS:
        if data.startswith(mark):
            text = await _decoded(data[len(mark) :], name)
            break
    else:
        name = await _guess(data)
        text = await _decoded(data, _CODECS.get(name, name))
    if text is None:
        text = await _decoded(data, "utf-8", "replace")
        # With `replace`, decoding never fails.
        assert text is not None
    return text


async def _decoded(data: bytes, name: str, errors: str | None = None) -> str | None:
    """Return the text, or None if the bytes are invalid in that encoding."""
    try:
        # The common case, without splitting.
        if name == "utf-8" and len(data) <= _AT_ONCE:
            return data.decode(errors=errors or "strict")
        decoder = codecs.getincrementaldecoder(name)(errors or _WEB)
        parts = []
        for piece in _pieces(data):
            parts.append(decoder.decode(piece))
            await asyncio.sleep(0)
        parts.append(decoder.decode(b"", final=True))
    except (UnicodeDecodeError, LookupError):
        return None
    return "".join(parts)


async def _guess(data: bytes) -> str:
    """Return the WHATWG name of the likely encoding."""
    detector = chardetng_py.EncodingDetector()
    for piece in _pieces(data):
        detector.feed(piece, last=False)
        await asyncio.sleep(0)
    detector.feed(b"", last=True)
    name = str(detector.guess(tld=None, allow_utf8=True))
    if name == "IBM866" and await _is_punctuation(data):
        # Otherwise short texts with only quotes beyond ASCII are detected as Cyrillic.
        return "windows-1252"
    return name


async def _is_punctuation(data: bytes) -> bool:
    """Return True for ASCII words with Windows-1252 punctuation."""
    words = extended = False
    for piece in _pieces(data):
        values = set(piece)
        high = {value for value in values if value >= 0x80}
        if not high <= _PUNCTUATION:
            return False
        extended = extended or bool(high)
        words = words or any(chr(value).isalpha() for value in values - high)
        await asyncio.sleep(0)
    return extended and words


def _pieces(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), PIECE):
        yield data[at : at + PIECE]


def _as_on_the_web(error: UnicodeError) -> tuple[str, int]:
    """
    Error handler for bytes that WHATWG encodings define, but Python's do not.

    Unassigned bytes in 0x80 to 0x9F are control characters, and GBK has the euro sign.
    """
    if isinstance(error, UnicodeDecodeError):
        value = error.object[error.start]
        if error.encoding in _SINGLE_BYTE and value < 0xA0:
            return chr(value), error.start + 1
        if error.encoding == "gb18030" and value == 0x80:
            return "€", error.start + 1
    raise error


# The name in errors of Python's table codecs.
_SINGLE_BYTE = frozenset(["charmap"])

_WEB = "holdfast.web"
codecs.register_error(_WEB, _as_on_the_web)
