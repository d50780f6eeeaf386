"""Watches for what is missing: what they notice, and what they leave alone."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.filesystem.watch import LocalMissingWatch, watch_missing


def watching(*missing: Path, present: Path | None = None) -> LocalMissingWatch:
    watch = watch_missing(
        [str(path) for path in missing], None if present is None else str(present)
    )
    assert watch is not None
    return watch


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write("more")


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file appears": lambda root: (root / "missing").touch(),
    "a folder appears": lambda root: (root / "missing").mkdir(),
    "a link appears": lambda root: (root / "missing").symlink_to("nowhere"),
    "a file is moved there": lambda root: os.rename(root / "other", root / "missing"),
    "a folder above appears": lambda root: (root / "a").mkdir(),
    "a folder above moves": lambda root: os.rename(root / "folder", root / "moved"),
    "a folder above goes": lambda root: (root / "folder").rmdir(),
    "present is modified": lambda root: append(root / "present"),
    "present goes": lambda root: (root / "present").unlink(),
    "present changes its mode": lambda root: (root / "present").chmod(0o600),
    "present is replaced": lambda root: os.rename(root / "other", root / "present"),
}


@pytest.mark.requirement("fs.watch")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_what_matters_is_noticed(tmp_path: Path, change: Callable[[Path], object]) -> None:
    for name in ("other", "present"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    watch = watching(
        tmp_path / "missing",
        tmp_path / "a" / "b" / "c",
        tmp_path / "folder" / "x",
        present=tmp_path / "present",
    )
    change(tmp_path)
    async with asyncio.timeout(5):
        await watch.changed()


@pytest.mark.requirement("fs.watch.neighbours")
async def test_neighbours_do_not_matter(tmp_path: Path) -> None:
    watch = watching(tmp_path / "missing")
    (tmp_path / "other").touch()
    (tmp_path / "missing2").touch()
    changed = asyncio.ensure_future(watch.changed())
    await asyncio.sleep(0)  # it waits now
    watch._look()
    assert not changed.done()
    (tmp_path / "missing").touch()
    async with asyncio.timeout(5):
        await changed


async def test_a_watch_that_is_cancelled_is_closed(tmp_path: Path) -> None:
    watch = watching(tmp_path / "missing")
    changed = asyncio.ensure_future(watch.changed())
    await asyncio.sleep(0)  # it waits now
    changed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await changed
    watch.cancel()  # harmless


@pytest.mark.requirement("fs.watch.unsuitable")
def test_what_is_not_as_it_should_be_is_not_watched(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "broken").symlink_to("nowhere")
    for name in ("file", "broken", "link/x", "file/x", "broken/x"):
        assert watch_missing([str(tmp_path / name)], None) is None, name
    missing = [str(tmp_path / "missing")]
    for name in ("missing", "link", "broken"):
        assert watch_missing(missing, str(tmp_path / name)) is None, name
    assert watch_missing([], None) is None
    assert watch_missing(missing * 65, None) is None
    watching(*(tmp_path / f"n{number}" for number in range(64))).cancel()
