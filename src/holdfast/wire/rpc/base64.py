"""Base64 as the protocol requires: standard alphabet, padded, no loose bits."""

import re
from collections.abc import Iterable, Iterator

import pybase64

from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidParams, InvalidRequest, RemoteProtocolError
from holdfast.wire.protocol.fs import FileContent

__all__ = [
    "InvalidBase64",
    "content_bytes",
    "content_pieces",
    "decode_answer",
    "decode_base64",
    "encode_base64",
]


class InvalidBase64(InvalidParams):
    """A text that is not base64; the message names the first fault."""


# Characters decoded at a time; a multiple of four.
PIECE = 1 << 20

# Padding counts as stray: it is valid only at the end, which `_fault` checks.
_STRAY = re.compile(rb"[^+/0-9A-Za-z]")
_PAD = b"="[0]


def encode_base64(data: bytes) -> bytes:
    encoded: bytes = pybase64.b64encode(data)
    return encoded


def decode_answer(text: str) -> bytes:
    """
    Return the bytes of a server's base64.

    Raises:
        RemoteProtocolError: It is not base64.
    """
    try:
        # `validate`, because the lenient decoder skips foreign characters and returns other
        # bytes.
        data: bytes = pybase64.b64decode(text, validate=True)
    except ValueError as error:
        raise RemoteProtocolError(
            f"failed to serialize or deserialize exec-server JSON: {error}"
        ) from error
    return data


def decode_base64(text: str) -> bytes:
    """
    Return the bytes of a base64 text.

    Raises:
        InvalidBase64: It is not base64.
    """
    try:
        data: bytes = pybase64.b64decode(text, validate=True)
    except ValueError:
        raise InvalidBase64(_fault(text.encode("utf-8", "surrogatepass"))) from None
    # Unused bits before the padding must be zero, or a value would have two spellings.
    if text.endswith("=") and pybase64.b64encode(data[-(len(data) % 3) :]).decode() != text[-4:]:
        offset = len(text.rstrip("=")) - 1
        raise InvalidBase64(f"Invalid last symbol {ord(text[offset])}, offset {offset}.")
    return data


def _fault(data: bytes) -> str:
    """Return the error text for the first fault, in the order of the protocol."""
    size = len(data)
    # A single byte beyond whole groups of four comes before all others.
    if size % 4 == 1 and data[-1] != _PAD and _STRAY.match(data, size - 1):
        return f"Invalid symbol {data[-1]}, offset {size - 1}."
    last_group = (size - 1) // 4 * 4
    padding: int | None = None
    for stray in _STRAY.finditer(data):
        at = stray.start()
        if data[at] != _PAD or at < last_group + 2:
            break
        padding = at if padding is None else padding
    else:
        if padding is not None and data[padding:].strip(b"="):
            return f"Invalid symbol {_PAD}, offset {padding}."
        return f"Invalid input length: {size}" if size % 4 == 1 else "Invalid padding"
    # Characters after padding mean that the padding itself is misplaced.
    at = stray.start() if padding is None else padding
    return f"Invalid symbol {data[at]}, offset {at}."


def content_bytes(content: FileContent) -> bytes:
    """Return the bytes of a file; see `content_pieces`."""
    return b"".join(content_pieces(content))


def content_pieces(content: FileContent) -> Iterable[bytes]:
    """
    Return the bytes of a file, a large string decoded piece by piece.

    So a huge one does not need its memory twice. A fault in it is raised when its piece is due.

    Raises:
        InvalidRequest: The content is a text that is not base64.
    """
    data = content.data
    if isinstance(data, bytes):
        return (data,)
    # A single piece is decoded here: that takes less than a millisecond.
    return (_decode_content(data),) if len(data) <= PIECE else _decode_pieces(data)


def _decode_content(text: str) -> bytes:
    try:
        return decode_base64(text)
    except InvalidBase64 as error:
        raise InvalidRequest(texts.content_not_base64(error)) from None


def _decode_pieces(text: str) -> Iterator[bytes]:
    last = max(0, len(text) - 1) // PIECE * PIECE
    for start in range(0, len(text), PIECE):
        piece = text[start : start + PIECE]
        try:
            if start < last and piece.endswith("="):
                raise InvalidBase64("Invalid padding")
            yield decode_base64(piece)
        except InvalidBase64:
            # Decode all of it: the error then names the offset in the whole text.
            _decode_content(text)
            raise
