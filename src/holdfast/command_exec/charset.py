"""
Output as text: UTF-8, else by a guess of its encoding [command-exec.output.charset].

The guess is that of chardetng, the detector of the original. It holds the interpreter lock
for about 0.1 s per MiB, so it is fed in pieces, between which the event loop runs.
"""

import asyncio
import codecs
from collections.abc import Iterator

__all__ = ["PIECE", "decode"]

PIECE = 64 << 10
"""Bytes that are looked at before the event loop runs again."""

_AT_ONCE = 1 << 20
"""Bytes of UTF-8 that are decoded in one step, in less than a millisecond."""

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks, which count more than a guess."""

_CODECS = {
    "Big5": "big5hkscs",
    "EUC-KR": "cp949",
    "GBK": "gb18030",
    "IBM866": "cp866",
    "ISO-8859-8-I": "iso8859-8",
    "Shift_JIS": "cp932",
    "windows-874": "cp874",
}
"""Python's codecs for encodings of the web, where it has another one by that name, or none."""

_PUNCTUATION = frozenset([0x91, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x99])
"""Quotes, dashes, the bullet and the trade mark of Windows-1252."""


async def decode(data: bytes) -> str:
    """Return output as text. Never fails; what is no text at all has U+FFFD in it."""
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
        assert text is not None  # that never fails
    return text


async def _decoded(data: bytes, name: str, errors: str | None = None) -> str | None:
    """Return the text, or `None` if the bytes are no text in that encoding."""
    try:
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
    """Return the likely encoding by its name on the web."""
    # Imported when it is needed. It has no marker for type checkers.
    from chardetng_py import EncodingDetector  # type: ignore[import-untyped]

    detector = EncodingDetector()
    for piece in _pieces(data):
        detector.feed(piece, last=False)
        await asyncio.sleep(0)
    detector.feed(b"", last=True)
    name = str(detector.guess(tld=None, allow_utf8=True))
    if name == "IBM866" and await _is_punctuation(data):
        # Short texts whose only bytes above ASCII are quotes are taken for Cyrillic letters.
        return "windows-1252"
    return name


async def _is_punctuation(data: bytes) -> bool:
    """Return True for ASCII words with punctuation of Windows-1252."""
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
    Decode bytes that the encodings of the web have and Python's leave out.

    Bytes without a letter in 0x80 to 0x9F are control characters, and GBK has the euro sign.
    """
    if isinstance(error, UnicodeDecodeError):
        value = error.object[error.start]
        if error.encoding in _SINGLE_BYTE and value < 0xA0:
            return chr(value), error.start + 1
        if error.encoding == "gb18030" and value == 0x80:
            return "€", error.start + 1
    raise error


_SINGLE_BYTE = frozenset(["charmap"])
"""The name by which Python's table codecs report an error."""

_WEB = "holdfast.web"
codecs.register_error(_WEB, _as_on_the_web)
