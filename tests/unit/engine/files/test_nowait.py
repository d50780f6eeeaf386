"""Facts about files, from memory and from the file system."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from holdfast.base.errors import NotFound
from holdfast.engine.files import nowait
from holdfast.engine.files.nowait import (
    cached_content,
    cached_content_of_command,
    cached_metadata,
    metadata,
    metadata_of,
)
from holdfast.engine.linux import kernel_cache


@pytest.mark.requirement("fs.metadata.times")
def test_the_facts_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    found = metadata(str(path))
    assert (found.is_file, found.is_directory, found.is_symlink) == (True, False, False)
    assert found.size == 5
    assert found.modified_at_ms == 1_700_000_000_123
    assert found.created_at_ms > found.modified_at_ms


@pytest.mark.requirement("fs.metadata.times")
def test_a_time_before_1970_is_not_known(tmp_path: Path) -> None:
    os.utime(tmp_path, ns=(0, -5_000_000_000))
    assert metadata(str(tmp_path)).modified_at_ms == 0


def test_a_link_tells_about_itself_only_that_it_is_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(".")
    found = metadata(str(tmp_path / "link"))
    assert (found.is_directory, found.is_symlink) == (True, True)


def test_memory_says_the_same_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, *tmp_path.iterdir(), Path("/dev/null"), Path("/")):
        assert cached_metadata(str(path)) in (None, metadata(str(path)))


def test_memory_knows_a_file_that_was_just_looked_at(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    expected = metadata(str(tmp_path / "link"))
    if not kernel_cache._is_local(kernel_cache.look(-100, os.fsencode(tmp_path), 0).mount):
        pytest.skip("the file system of the tests is not a local one")
    assert cached_metadata(str(tmp_path / "link")) == expected


def test_memory_knows_what_is_not_there(tmp_path: Path) -> None:
    path = str(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        metadata(path)
    with pytest.raises(NotFound, match="os error 2"):
        assert cached_metadata(path)


def test_memory_has_the_content_of_a_small_file_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert cached_content(str(tmp_path / "file")) in (b"12345", None)
    assert cached_content(str(tmp_path / "link")) in (b"12345", None)
    with (tmp_path / "file").open("ab") as file:
        file.write(b"6")
    assert cached_content(str(tmp_path / "file")) in (b"123456", None)


def test_without_links_nothing_is_known_of_what_is_behind_one(tmp_path: Path) -> None:
    path = Path("/etc/passwd")
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "folder").symlink_to(path.parent)
    for link in (tmp_path / "link", tmp_path / "folder/passwd"):
        assert cached_content_of_command(str(link), nullcontext()) is None
        assert cached_metadata(str(link), links=False) is None
    assert cached_content_of_command(str(path), nullcontext()) in (path.read_bytes(), None)
    assert cached_metadata(str(path), links=False) in (metadata(str(path)), None)


@pytest.mark.requirement("security.sandbox.recent")
def test_a_file_is_read_again_without_the_block_only_if_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nowait, "_MOMENT", 1000.0)
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    entered: list[int] = []

    @contextmanager
    def block() -> Iterator[None]:
        entered.append(1)
        yield

    def read() -> tuple[bytes | None, int]:
        entered.clear()
        return cached_content_of_command(str(path), block()), len(entered)

    if read()[0] is None:
        pytest.skip("this file system has nothing in memory")
    assert read() == (b"12345", 0)
    # Other rights, another file, and a link in its place.
    path.chmod(0o600)
    assert read() == (b"12345", 1)
    assert read() == (b"12345", 0)
    (tmp_path / "other").write_bytes(b"54321")
    (tmp_path / "other").rename(path)
    assert read() == (b"54321", 1)
    path.rename(tmp_path / "moved")
    path.symlink_to("moved")
    assert read() == (None, 1)


def test_what_was_only_looked_at_does_not_count_as_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file may be in its place for the moment of the open."""
    monkeypatch.setattr(nowait, "_MOMENT", 1000.0)
    path = tmp_path / "file"
    for name in ("file", "other"):
        (tmp_path / name).write_bytes(b"12345")

    def swap(name: bytes, how: kernel_cache.CachedLookup) -> int | None:
        (tmp_path / "other").rename(path)
        return kernel_cache.open_cached(name, how)

    with monkeypatch.context() as patch:
        patch.setattr(nowait, "open_cached", swap)
        assert cached_content_of_command(str(path), nullcontext()) is None
    assert os.fsencode(path) not in nowait._recent


def test_memory_has_a_file_of_the_system() -> None:
    """One on a disk: files in memory only are not read in this way by older kernels."""
    path = Path("/etc/passwd")
    expected = path.read_bytes()
    if not kernel_cache._is_local(kernel_cache.look(-100, os.fsencode(path), 0).mount):
        pytest.skip("the file system of the system is not a local one")
    assert cached_content(str(path)) == expected


def test_memory_has_no_content_of_what_is_large_empty_or_no_file(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(70_000))
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, *tmp_path.iterdir(), Path("/dev/null"), Path("/proc/self/status")):
        assert cached_content(str(path)) is None
    assert not (tmp_path / "missing").exists()  # so that this is known
    with pytest.raises(NotFound):
        assert cached_content(str(tmp_path / "missing"))


def test_a_fifo_is_not_even_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert cached_content(str(tmp_path / "fifo")) is None
    with pytest.raises(OSError, match="No such device"):  # whoever opened it would be a reader
        os.open(tmp_path / "fifo", os.O_WRONLY | os.O_NONBLOCK)


def test_nothing_is_believed_of_other_file_systems() -> None:
    assert cached_metadata("/proc/self/status") is None


def test_an_entry_of_a_folder_is_looked_at_itself(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    folder = os.open(tmp_path, os.O_PATH)
    try:
        assert metadata_of(folder, "link").is_symlink
        assert metadata_of(folder, "").is_directory
        with pytest.raises(FileNotFoundError):
            metadata_of(folder, "missing")
    finally:
        os.close(folder)


def test_what_is_neither_file_nor_folder_is_neither(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        found = metadata(str(tmp_path / "socket"))
    assert (found.is_file, found.is_directory) == (False, False)


def test_a_nul_never_stands_for_the_file_before_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    for lookup in (cached_metadata, cached_content):
        with pytest.raises(ValueError, match="null byte"):
            lookup(f"{tmp_path}/file\0.txt")
