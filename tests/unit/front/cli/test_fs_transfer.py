"""A download over a line that breaks, and the bar on a terminal that is none."""

import io
from typing import cast

import pytest

from holdfast.backends import FileSystem
from holdfast.base.errors import ConnectionLost, OperationFailed
from holdfast.engine.files.transfer import BLOCK
from holdfast.front.cli import fs_transfer
from holdfast.front.cli.fs import EnvironmentFiles
from holdfast.front.cli.fs_transfer import Progress, human_size
from holdfast.wire.protocol.fs import FileMetadata, GetMetadataParams, OpenParams
from holdfast.wire.protocol.paths import PathUri

PATH = PathUri.parse("file:///f")
DATA = bytes(range(256)) * 4096 * 5  # five blocks


class BreakingFiles:
    """One file, and a connection that is lost after so many blocks each time."""

    def __init__(self, *, blocks: int) -> None:
        self.blocks = blocks
        self.opened = 0
        self.modified = 1
        self._left = 0

    async def open(self, params: OpenParams) -> "BreakingFiles":
        self.opened += 1
        self._left = self.blocks
        return self

    async def read_block(self, offset: int, size: int) -> tuple[bytes, bool]:
        if not self._left:
            raise ConnectionLost("cut")
        self._left -= 1
        chunk = DATA[offset : offset + size]
        return chunk, len(chunk) < size

    async def aclose(self) -> None:
        pass

    async def get_metadata(self, params: GetMetadataParams) -> FileMetadata:
        return FileMetadata(
            is_directory=False,
            is_file=True,
            is_symlink=False,
            size=len(DATA),
            created_at_ms=0,
            modified_at_ms=self.modified,
        )


async def fetch(files: BreakingFiles, *, start: int = 0) -> bytes:
    location = EnvironmentFiles(cast(FileSystem, files), "/", writes_blocks=True)
    into = io.BytesIO()
    metadata = await files.get_metadata(GetMetadataParams(PATH))
    advanced: list[int] = []
    await fs_transfer._fetch(location, PATH, metadata, into, start, advanced.append)
    assert sum(advanced) == len(into.getvalue())
    return into.getvalue()


async def test_a_download_goes_on_after_each_lost_connection() -> None:
    files = BreakingFiles(blocks=2)
    assert await fetch(files) == DATA
    assert files.opened > 2


async def test_a_download_begins_where_it_is_told_to() -> None:
    assert await fetch(BreakingFiles(blocks=100), start=BLOCK + 5) == DATA[BLOCK + 5 :]


async def test_a_line_that_carries_nothing_is_given_up() -> None:
    files = BreakingFiles(blocks=0)
    with pytest.raises(ConnectionLost):
        await fetch(files)
    assert files.opened == 5


async def test_a_file_that_changes_meanwhile_is_not_mixed() -> None:
    files = BreakingFiles(blocks=2)
    usual = files.open

    async def open_and_change(params: OpenParams) -> BreakingFiles:
        files.modified = 2
        return await usual(params)

    files.open = open_and_change  # type: ignore[method-assign]
    with pytest.raises(OperationFailed, match="it changed while the connection was lost"):
        await fetch(files)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_nothing_is_shown_where_nobody_looks() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress("f", 100, stream=stream, clock=clock) as progress:
        clock.now = 5.0
        progress.advance(50)
    assert stream.getvalue() == ""


def test_a_short_transfer_shows_nothing() -> None:
    stream, clock = Terminal(), Clock()
    with Progress("f", 100, stream=stream, clock=clock) as progress:
        clock.now = 0.4
        progress.advance(100)
    assert stream.getvalue() == ""


def test_a_long_one_shows_how_far_it_is_and_cleans_up() -> None:
    stream, clock = Terminal(), Clock()
    with Progress("big", 4096, stream=stream, clock=clock) as progress:
        clock.now = 1.0
        progress.advance(2048)
        shown = stream.getvalue()
        clock.now = 1.05
        progress.advance(1)
        assert stream.getvalue() == shown  # not so soon again
    assert "big  ████████████░░░░░░░░░░░░  50%  2.0 KiB of 4.0 KiB  2.0 KiB/s  0:01 left" in shown
    assert stream.getvalue().endswith("\r\x1b[K")


def test_without_a_size_there_is_no_bar() -> None:
    stream, clock = Terminal(), Clock()
    with Progress("stdin", None, stream=stream, clock=clock) as progress:
        clock.now = 2.0
        progress.advance(2048)
    assert "stdin  2.0 KiB  1.0 KiB/s" in stream.getvalue()


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 40, "3.0 TiB")],
)
def test_sizes_are_readable(size: int, text: str) -> None:
    assert human_size(size) == text
