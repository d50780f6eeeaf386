"""Reads an image for a model, in the sandbox of its commands."""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast.agent.unified_exec.options import Options
from holdfast.agent.unified_exec.result import ImageResult
from holdfast.agent.unified_exec.tool_errors import CallRefused
from holdfast.agent.unified_exec.tool_starter import directory_of, refuse_lone_surrogates
from holdfast.backends import FileSystem
from holdfast.base.dialect import texts
from holdfast.base.errors import Refused, RemoteError
from holdfast.environments.environment import Environment
from holdfast.wire.protocol.fs import GetMetadataParams, OpenParams
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["LONGEST_SIDE", "ImageFormat", "image_format", "view_image"]

LONGEST_SIDE: Final = 8_000
"""Most pixels of an image in one direction: the lowest limit among large providers."""

# Bytes per read; a handle returns at most 1 MiB.
_BLOCK: Final = 1 << 20

_SMALLER: Final = "make a smaller copy and view that"


async def view_image(
    environment: Environment, path: str, options: Options, *, call_id: str
) -> ImageResult:
    """
    Return an image by path.

    Args:
        environment: The environment of the file.
        path: The path as the model wrote it, relative to the directory of the environment.
        options: The options of the tools, for the sandbox and the largest size.
        call_id: The id of the call.

    Raises:
        CallRefused: The file cannot be read, is too large or not an image; the text is for the
            model.
    """
    refuse_lone_surrogates(path=path)
    try:
        uri = await directory_of(environment, path)
    except CallRefused as error:
        raise CallRefused(texts.image_not_resolved(path, await environment.uri(), error)) from error
    shown = uri.shown
    sandbox = await environment.sandbox_context(options.sandbox)
    data = await _content(environment.filesystem, uri, sandbox, options.largest_image)
    found = image_format(data)
    if found is None:
        raise CallRefused(texts.NO_IMAGE)
    if max(found.width, found.height) > LONGEST_SIDE:
        raise CallRefused(
            f"unable to process image: it has {found.width} x {found.height} pixels, limit is"
            f" {LONGEST_SIDE} in each direction; {_SMALLER}"
        )
    return ImageResult(
        call_id=call_id,
        path=shown,
        data=data,
        mime_type=found.mime_type,
        width=found.width,
        height=found.height,
    )


async def _content(
    files: FileSystem, uri: PathUri, sandbox: SandboxContext | None, largest: int
) -> bytes:
    """
    Return the content of a file.

    Raises:
        CallRefused: The file is too large or cannot be read.
    """
    shown = uri.shown
    try:
        metadata = await files.get_metadata(GetMetadataParams(uri, sandbox=sandbox))
    except (Refused, RemoteError) as error:
        raise CallRefused(texts.image_not_found(shown, _reason(error))) from error
    if not metadata.is_file:
        raise CallRefused(texts.image_not_a_file(shown))
    blocks: list[bytes] = []
    size = metadata.size
    try:
        if size <= largest:
            handle = await files.open(OpenParams(handle_id="", path=uri, sandbox=sandbox))
            try:
                size, ended = 0, False
                # In blocks: the file may grow, and its size is not always known.
                while not ended and size <= largest:
                    block, ended = await handle.read_block(size, _BLOCK)
                    blocks.append(block)
                    size += len(block)
            finally:
                await handle.aclose()
    except (Refused, RemoteError) as error:
        raise CallRefused(texts.image_not_read(shown, _reason(error))) from error
    if size > largest:
        raise CallRefused(
            f"unable to read image at `{shown}`: file is too large to read: limit is"
            f" {largest} bytes; {_SMALLER}"
        )
    return b"".join(blocks)


def _reason(error: Refused | RemoteError) -> str:
    return error.message if isinstance(error, RemoteError) else str(error)


# -- kind and size of an image, read from its bytes without decoding it
#
# A sandboxed command may have written the file, and a decoder outside the sandbox would be a way
# to escape. So only headers and ends are read, which is enough to refuse files that are not images
# or are truncated.

_PNG = b"\x89PNG\r\n\x1a\n"

# Most parts to read; a file with millions of them would block the event loop.
_MOST_PARTS = 10_000

# JPEG markers of a frame, which contains the size; the gaps are tables.
_FRAMES = frozenset(
    {*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)}
)

# JPEG markers that are not followed by a length.
_ALONE = frozenset({0x01, *range(0xD0, 0xD8)})


@dataclass(frozen=True, slots=True)
class ImageFormat:
    """The kind and the size in pixels of an image."""

    mime_type: str
    width: int
    height: int


def image_format(data: bytes) -> ImageFormat | None:
    """
    Return the kind and the size of an image: PNG, JPEG, GIF or WebP.

    Returns:
        None for other content, and for an image without an end or a size.
    """
    for begins, mime_type, size in _READERS:
        if data.startswith(begins):
            try:
                found = size(data)
            except (struct.error, IndexError):
                # The header is truncated.
                return None
            return None if found is None or 0 in found else ImageFormat(mime_type, *found)
    return None


def _png(data: bytes) -> tuple[int, int] | None:
    """Return the size of a PNG that is complete and has correct checksums."""
    at, found = len(_PNG), None
    for _ in range(_MOST_PARTS):
        length, kind = struct.unpack_from(">I4s", data, at)
        if found is None:
            if kind != b"IHDR" or length != 13:
                return None
            found = struct.unpack_from(">II", data, at + 8)
        end = at + 8 + length
        (checksum,) = struct.unpack_from(">I", data, end)
        if zlib.crc32(memoryview(data)[at + 4 : end]) != checksum:
            return None
        if kind == b"IEND":
            return found[0], found[1]
        at = end + 4
    return None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    """Return the size in the first frame of a JPEG, if an end follows it."""
    at = 2
    for _ in range(_MOST_PARTS):
        mark, kind = data[at], data[at + 1]
        if mark != 0xFF:
            return None
        if kind == 0xFF:
            # Any number of fill bytes may precede a marker.
            at += 1
        elif kind in _ALONE:
            at += 2
        elif kind in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return (width, height) if data.rfind(b"\xff\xd9") > at else None
        else:
            (length,) = struct.unpack_from(">H", data, at + 2)
            at += 2 + length
    return None


def _gif(data: bytes) -> tuple[int, int] | None:
    """Return the size of a GIF, if its end is present."""
    width, height = struct.unpack_from("<HH", data, 6)
    ended = data[:6] in (b"GIF87a", b"GIF89a") and data.rstrip(b"\0").endswith(b";")
    return (width, height) if ended else None


def _webp(data: bytes) -> tuple[int, int] | None:
    """Return the size of a WebP, if its length is correct."""
    length, kind, form = struct.unpack_from("<I4s4s", data, 4)
    if kind != b"WEBP" or length + 8 > len(data):
        return None
    if form == b"VP8X":
        extent = data[24:30]
        width, height = (int.from_bytes(part, "little") for part in (extent[:3], extent[3:]))
        return width + 1, height + 1
    if form == b"VP8L" and data[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if form == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        # The two upper bits are a display scale.
        return width & 0x3FFF, height & 0x3FFF
    return None


_READERS: tuple[tuple[bytes, str, Callable[[bytes], tuple[int, int] | None]], ...] = (
    (_PNG, "image/png", _png),
    (b"\xff\xd8\xff", "image/jpeg", _jpeg),
    (b"GIF8", "image/gif", _gif),
    (b"RIFF", "image/webp", _webp),
)
