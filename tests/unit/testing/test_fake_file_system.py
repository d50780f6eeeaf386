"""The fake file system, where it goes beyond the contract of all file systems."""

import asyncio
import errno

import pytest

from holdfast.base.errors import InvalidRequest, NotFound, OperationFailed
from holdfast.engine.files.handle import MAX_FILE
from holdfast.testing import FakeFileSystem, FakePath, FileRequest
from holdfast.wire.protocol.fs import (
    CopyParams,
    FileContent,
    OpenParams,
    ReadFileParams,
    RemoveParams,
    RenameParams,
    WatchMissingParams,
    WriteFileParams,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import ManagedProfile, RestrictedFiles, SandboxContext


def uri(path: str) -> PathUri:
    return PathUri.from_path(path)


async def test_what_a_test_says_happens_and_what_is_asked_is_recorded() -> None:
    files = FakeFileSystem({"/a/b/c": "text", "/bytes": b"\xff"})
    assert await files.read_file(ReadFileParams(uri("/a/b/c"))) == b"text"
    worn = OperationFailed("worn out", errno=errno.EIO)
    files.refuse("read_file", worn, "/bytes")
    with pytest.raises(OperationFailed, match=r"^worn out$"):
        await files.read_file(ReadFileParams(uri("/bytes")))
    assert await files.read_file(ReadFileParams(uri("/a/b/c"))) == b"text"
    files.refuse("read_file", None, "/bytes")
    assert await files.read_file(ReadFileParams(uri("/bytes"))) == b"\xff"
    assert files.asked == [
        FileRequest("read_file", (path,)) for path in ("/a/b/c", "/bytes", "/a/b/c", "/bytes")
    ]
    await files.copy(
        CopyParams(source_path=uri("/bytes"), destination_path=uri("/more"), recursive=False)
    )
    assert files.asked[-1] == ("copy", ("/bytes", "/more"))


async def test_calls_wait_until_they_are_let() -> None:
    files = FakeFileSystem()
    files.hold()
    writes = [
        asyncio.create_task(
            files.write_file(WriteFileParams(uri(f"/{n}"), data_base64=FileContent(b"x")))
        )
        for n in range(3)
    ]
    await files.until(lambda: len(files.asked) == 3)
    assert not files.path("/0").exists()
    files.let(2)
    await asyncio.wait(writes[:2])
    assert [files.path(f"/{n}").exists() for n in range(3)] == [True, True, False]
    files.let()
    await asyncio.gather(*writes)
    files.hold("remove")
    await files.read_file(ReadFileParams(uri("/2")))  # nothing else waits
    removing = asyncio.create_task(files.remove(RemoveParams(uri("/2"))))
    await files.until(lambda: files.asked[-1].call == "remove")
    removing.cancel()
    await asyncio.wait([removing])
    assert files.path("/2").exists()


async def test_a_sandbox_that_restricts_is_refused() -> None:
    files = FakeFileSystem({"/f": ""})
    profile = ManagedProfile(file_system=RestrictedFiles(entries=()), network="restricted")
    sandbox = SandboxContext(permissions=profile, windows_sandbox_level="disabled")
    with pytest.raises(InvalidRequest, match=r"^a fake file system enforces no sandbox$"):
        await files.read_file(ReadFileParams(uri("/f"), sandbox=sandbox))


@pytest.mark.parametrize(
    ("source", "target", "number"),
    [
        ("/d", "/d/below", errno.EINVAL),
        ("/f", "/d", errno.EISDIR),
        ("/d", "/f", errno.ENOTDIR),
        ("/d", "/full", errno.ENOTEMPTY),
        ("/", "/x", errno.EBUSY),
        ("/f", "/f/x", errno.ENOTDIR),
    ],
)
async def test_names_that_do_not_fit_are_refused(source: str, target: str, number: int) -> None:
    files = FakeFileSystem({"/f": "", "/full/x": "", "/d/x": ""})
    with pytest.raises((OperationFailed, InvalidRequest)) as refused:
        await files.rename(RenameParams(source_path=uri(source), destination_path=uri(target)))
    assert refused.value.errno == number
    assert files.path("/d/x").exists()
    assert files.path("/full/x").exists()


async def test_a_name_is_moved_with_all_below_it_and_to_itself() -> None:
    files = FakeFileSystem({"/d/e/f": "deep"})
    await files.rename(RenameParams(source_path=uri("/d"), destination_path=uri("/d")))
    await files.rename(RenameParams(source_path=uri("/d"), destination_path=uri("/other")))
    assert files.path("/other/e/f").read_text() == "deep"
    with pytest.raises(OperationFailed, match=r"\(os error 16\)$"):
        await files.remove(RemoveParams(uri("/")))


async def test_a_replaced_file_is_the_one_of_that_name_at_the_end() -> None:
    files = FakeFileSystem({"/f": "old"})
    reading = await files.open(OpenParams(handle_id="", path=uri("/f")))
    writing = await files.open(OpenParams(handle_id="", path=uri("/f"), mode="replace"))
    await writing.write_block(0, b"new")
    files.path("/f").unlink()
    await writing.aclose()
    assert files.path("/f").read_text() == "new"
    assert await reading.read_block(0, 9) == (b"old", True)
    for wrong in (
        reading.write_block(0, b"x"),
        (await files.open(OpenParams(handle_id="", path=uri("/f"), mode="replace"))).read_block(
            0, 1
        ),
    ):
        with pytest.raises(OperationFailed, match=r"\(os error 9\)$"):
            await wrong
    # Memory is bounded, however far away a block is.
    huge = await files.open(OpenParams(handle_id="", path=uri("/g"), mode="replace"))
    with pytest.raises(OperationFailed, match=r"\(os error 27\)$"):
        await huge.write_block(MAX_FILE, b"x")
    reading.discard()
    with pytest.raises(NotFound):
        await reading.read_block(0, 1)


async def test_a_watch_sees_the_present_file_change_and_can_be_given_up() -> None:
    files = FakeFileSystem({"/here": "1"})
    watch = await files.watch_missing(
        WatchMissingParams(watch_id=0, missing=[uri("/there")], present=uri("/here"))
    )
    assert watch is not None
    waiting = asyncio.create_task(watch.changed())
    files.path("/elsewhere").touch()
    await asyncio.sleep(0)
    assert not waiting.done()
    files.path("/here").write_text("2")
    await waiting
    other = await files.watch_missing(WatchMissingParams(watch_id=0, missing=[uri("/there")]))
    assert other is not None
    other.cancel()
    files.path("/there").touch()
    assert (
        await files.watch_missing(WatchMissingParams(watch_id=0, missing=[uri("/there")])) is None
    )


def test_a_path_is_like_one_of_pathlib() -> None:
    files = FakeFileSystem()
    folder = files.path("/a//b/")
    with pytest.raises(FileNotFoundError):
        folder.mkdir()
    folder.mkdir(parents=True)
    folder.mkdir(exist_ok=True)
    with pytest.raises(FileExistsError):
        folder.mkdir()
    file = folder / "f"
    file.write_text("é")
    (folder / "link").symlink_to("/a/b/f")
    assert (folder / "link").read_bytes() == "é".encode()
    assert (folder / "link").resolve() == file
    assert {path.name for path in folder.iterdir()} == {"f", "link"}
    assert (str(folder), folder.parent.name, repr(file)) == ("/a/b", "a", "FakePath('/a/b/f')")
    assert len({file, FakePath(folder._tree, "/a/b/f")}) == 1
    for wrong, error in (
        (folder.read_bytes, IsADirectoryError),
        (folder.unlink, IsADirectoryError),
        ((folder / "none").unlink, FileNotFoundError),
        ((folder / "none").stat, FileNotFoundError),
    ):
        with pytest.raises(error):
            wrong()


async def test_a_failed_read_closes_the_handle_and_leaves_the_old_file() -> None:
    files = FakeFileSystem({"/f": "old"})
    handle = await files.open(OpenParams(handle_id="", path=uri("/f"), mode="replace"))
    await handle.write_block(0, b"new")
    with pytest.raises(OperationFailed, match=r"^Bad file descriptor"):
        await handle.read_block(0, 1)
    with pytest.raises(NotFound, match=r"^the file handle is closed$"):
        await handle.write_block(0, b"more")
    await handle.aclose()
    assert files.path("/f").read_bytes() == b"old"


async def test_a_copy_to_a_path_below_a_file_fails_as_on_a_disk() -> None:
    files = FakeFileSystem({"/d/f": "", "/f": ""})
    with pytest.raises(OperationFailed, match=r"^Not a directory") as failed:
        await files.copy(
            CopyParams(source_path=uri("/d"), destination_path=uri("/f/d"), recursive=True)
        )
    assert (failed.value.errno, failed.value.path) == (errno.ENOTDIR, "/f/d")
