"""Watches for what is missing: what they notice, and what they leave alone."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.files import watch as module
from holdfast.engine.files.inotify import Inotify
from holdfast.engine.files.watch import LocalMissingWatch, watch_missing


@pytest.fixture
async def inotify() -> AsyncIterator[Inotify]:
    made = Inotify()
    made.open()
    yield made
    made.close()


def watching(inotify: Inotify, *missing: Path, present: Path | None = None) -> LocalMissingWatch:
    watch = watch_missing(
        inotify, [str(path) for path in missing], None if present is None else str(present)
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
async def test_what_matters_is_noticed(
    inotify: Inotify, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    for name in ("other", "present"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    watch = watching(
        inotify,
        tmp_path / "missing",
        tmp_path / "a" / "b" / "c",
        tmp_path / "folder" / "x",
        present=tmp_path / "present",
    )
    change(tmp_path)
    async with asyncio.timeout(5):
        await watch.changed()


@pytest.mark.requirement("fs.watch.neighbours")
async def test_neighbours_do_not_matter(inotify: Inotify, tmp_path: Path) -> None:
    watch = watching(inotify, tmp_path / "missing")
    (tmp_path / "other").touch()
    (tmp_path / "missing2").touch()
    changed = asyncio.ensure_future(watch.changed())
    await asyncio.sleep(0)  # it waits now
    inotify._read()
    assert not changed.done()
    (tmp_path / "missing").touch()
    async with asyncio.timeout(5):
        await changed


async def test_a_watch_that_is_cancelled_is_closed(inotify: Inotify, tmp_path: Path) -> None:
    watch = watching(inotify, tmp_path / "missing")
    changed = asyncio.ensure_future(watch.changed())
    await asyncio.sleep(0)  # it waits now
    changed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await changed
    watch.cancel()  # harmless
    assert len(inotify) == 0


@pytest.mark.requirement("fs.watch.unsuitable")
async def test_what_is_not_as_it_should_be_is_not_watched(inotify: Inotify, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "broken").symlink_to("nowhere")
    for name in ("file", "broken", "link/x", "file/x", "broken/x"):
        assert watch_missing(inotify, [str(tmp_path / name)], None) is None, name
    missing = [str(tmp_path / "missing")]
    for name in ("missing", "link", "broken"):
        assert watch_missing(inotify, missing, str(tmp_path / name)) is None, name
    assert watch_missing(inotify, [], None) is None
    assert watch_missing(inotify, missing * 65, None) is None
    watching(inotify, *(tmp_path / f"n{number}" for number in range(64))).cancel()
    assert len(inotify) == 0


async def test_watches_share_folders_and_end_each_for_itself(
    inotify: Inotify, tmp_path: Path
) -> None:
    first = watching(inotify, tmp_path / "missing", tmp_path / "first")
    second = watching(inotify, tmp_path / "missing", tmp_path / "second")
    shared = len(inotify)
    assert shared == len(tmp_path.parts)
    first.cancel()
    assert len(inotify) == shared
    (tmp_path / "second").touch()
    async with asyncio.timeout(5):
        await second.changed()
    assert len(inotify) == 0


async def test_a_folder_that_goes_ends_the_watches_of_all(inotify: Inotify, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    watches = [watching(inotify, folder / name) for name in "ab"]
    folder.rmdir()
    async with asyncio.timeout(5):
        await asyncio.gather(*(watch.changed() for watch in watches))
    assert len(inotify) == 0


async def test_a_watch_that_ends_while_another_is_added_is_added_again(
    inotify: Inotify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel names the same watch to both, and then the first one ends it."""
    first = watching(inotify, tmp_path / "first")
    register = inotify._register

    def end_first(*arguments: Any) -> bool:
        first.cancel()
        return register(*arguments)

    monkeypatch.setattr(inotify, "_register", end_first)
    second = watching(inotify, tmp_path / "second")
    (tmp_path / "second").touch()
    async with asyncio.timeout(5):
        await second.changed()


@pytest.mark.requirement("security.others.watches")
async def test_one_watch_cannot_use_up_what_the_user_has(
    inotify: Inotify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WATCHED", len(tmp_path.parts) - 1)
    assert watch_missing(inotify, [str(tmp_path / "missing")], None) is None
    assert len(inotify) == 0
