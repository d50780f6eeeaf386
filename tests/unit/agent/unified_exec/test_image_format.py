"""Kind and size of an image, from its header alone."""

import struct
import zlib

import pytest

from holdfast.agent.unified_exec.view_image import ImageFormat, image_format
from tests.images import GIF, JPEG, WEBP, png

pytestmark = pytest.mark.requirement("tools.images")


def riff(content: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", len(content) + 4) + b"WEBP" + content


LOSSY = riff(b"VP8 " + struct.pack("<I", 10) + b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 5, 4))
EXTENDED = riff(b"VP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + b"\x09\0\0" + b"\x07\0\0")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (png(3, 7), ImageFormat("image/png", 3, 7)),
        (png() + b"more", ImageFormat("image/png", 2, 2)),
        (GIF, ImageFormat("image/gif", 1, 1)),
        (JPEG, ImageFormat("image/jpeg", 3, 2)),
        (WEBP, ImageFormat("image/webp", 1, 1)),
        (LOSSY, ImageFormat("image/webp", 5, 4)),
        (EXTENDED, ImageFormat("image/webp", 10, 8)),
    ],
)
def test_the_kind_is_found_by_the_content(data: bytes, expected: ImageFormat) -> None:
    assert image_format(data) == expected


@pytest.mark.parametrize("data", [png(3, 7), GIF, JPEG, WEBP, LOSSY, EXTENDED])
def test_an_image_that_is_cut_off_is_none(data: bytes) -> None:
    assert [size for size in range(len(data)) if image_format(data[:size])] == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"BM" + bytes(60),
        b"<svg/>",
        png(0, 4),
        png()[:45] + b"?" + png()[46:],
        b"RIFF" + bytes(40),
        b"\xff\xd8\xff\xe0\x00\x00" * 9,
        b"GIF88a" + GIF[6:],
    ],
)
def test_anything_else_is_none(data: bytes) -> None:
    assert image_format(data) is None


def test_a_file_of_many_parts_is_none_since_it_would_hold_the_loop() -> None:
    empty = struct.pack(">I4sI", 0, b"tEXt", zlib.crc32(b"tEXt"))
    comment = b"\xff\xfe\x00\x02"
    for count, found in ((9, True), (300_000, False)):
        assert bool(image_format(png()[:33] + empty * count + png()[33:])) is found
        assert bool(image_format(JPEG[:2] + comment * count + JPEG[2:])) is found
