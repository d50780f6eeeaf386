"""
Contract of every `FileSystem`.

Nothing here says where the files are: on this machine, behind any of our transports, on the
real Codex server behind our client, or in memory.
"""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal, cast

import pytest
from msgspec import UNSET

from holdfast.backends import FileSystem
from holdfast.base.errors import InvalidRequest, NotFound, OperationFailed, Unsupported
from holdfast.client.client import ExecServerClient
from holdfast.engine.files.local_files import LocalFileSystem
from holdfast.engine.files.transfer import BLOCK, move, read_blocks, write_blocks
from holdfast.testing import FakePath
from holdfast.wire.protocol.fs import (
    CanonicalizeParams,
    CopyParams,
    CreateDirectoryParams,
    FileContent,
    GetMetadataParams,
    OpenParams,
    ReadDirectoryParams,
    ReadFileParams,
    RemoveParams,
    RenameParams,
    WalkOptions,
    WalkParams,
    WatchMissingParams,
    WriteFileParams,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import (
    Access,
    DisabledProfile,
    FileEntry,
    ManagedProfile,
    PlainPath,
    RestrictedFiles,
    SandboxContext,
    SpecialPath,
    SpecialValue,
)
from tests.contract.conftest import FakeSubject, Subject
from tests.e2e.wire import LIMIT

BIG = 5 * BLOCK + 17
"""Bytes of a file that remote ones move in blocks."""

DISABLED = SandboxContext(permissions=DisabledProfile(), windows_sandbox_level="disabled")


@pytest.fixture
async def files(subject: Subject) -> AsyncIterator[FileSystem]:
    """The files of each subject in turn."""
    if isinstance(subject, FakeSubject) and not subject.remote:
        yield subject.files
    elif subject.remote:
        assert isinstance(subject.backend, ExecServerClient)
        yield subject.backend.files
    else:
        local = LocalFileSystem()
        yield local
        await local.aclose()


@pytest.fixture
def tmp_path(subject: Subject, tmp_path: Path) -> Path:
    """The directory of a test: on a fake disk an object that stands in for a `Path`."""
    if not isinstance(subject, FakeSubject):
        return tmp_path
    folder = subject.files.path("/tmp/test")
    folder.mkdir(parents=True)
    return cast("Path", folder)


def need_sandboxes(subject: Subject) -> None:
    if isinstance(subject, FakeSubject):
        pytest.skip("a fake file system enforces no sandbox, and refuses to try")


def make_fifo(path: Path | FakePath) -> None:
    if isinstance(path, FakePath):
        path.mkfifo()
    else:
        os.mkfifo(path)


def link_at(path: Path) -> str:
    return str(path.readlink())


def touch(folder: Path | FakePath, name: bytes) -> None:
    if isinstance(folder, FakePath):
        folder.child(name).touch()
    else:
        os.close(os.open(os.fsencode(folder) + b"/" + name, os.O_CREAT))


def uri(*parts: object) -> PathUri:
    return PathUri.from_path(os.path.join(*map(str, parts)))


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def resolved(path: Path) -> Path:
    return path.resolve()


def below(path: PathUri, folder: Path) -> str:
    return os.path.relpath(path.native, str(folder))


def walk_options(**options: object) -> WalkOptions:
    usual = {
        "max_depth": 8,
        "max_directories": 100,
        "max_entries": 100,
        "follow_directory_symlinks": False,
    }
    return WalkOptions(**{**usual, **options})  # type: ignore[arg-type]


# -- whole files


@pytest.mark.requirement("fs.read")
@pytest.mark.parametrize("size", [0, 1, 70_000, BLOCK, 4 * BLOCK, BIG])
async def test_a_file_is_read_back_as_it_was_written(
    files: FileSystem, tmp_path: Path, size: int
) -> None:
    data = os.urandom(size)
    await files.write_file(WriteFileParams(uri(tmp_path, "a b%é"), data_base64=FileContent(data)))
    assert (tmp_path / "a b%é").read_bytes() == data
    assert await files.read_file(ReadFileParams(uri(tmp_path, "a b%é"))) == data


@pytest.mark.requirement("fs.write")
@pytest.mark.parametrize("size", [3, BIG])
async def test_a_shorter_file_replaces_a_longer_one(
    files: FileSystem, tmp_path: Path, size: int
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 2 * BIG)
    path.chmod(0o640)
    await files.write_file(WriteFileParams(uri(path), data_base64=FileContent(b"y" * size)))
    assert path.read_bytes() == b"y" * size
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.requirement("fs.write.link")
@pytest.mark.parametrize("size", [3, BIG])
async def test_a_file_is_written_through_a_link(
    files: FileSystem, tmp_path: Path, size: int
) -> None:
    (tmp_path / "link").symlink_to("target")
    await files.write_file(
        WriteFileParams(uri(tmp_path, "link"), data_base64=FileContent(b"z" * size))
    )
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").stat().st_size == size


@pytest.mark.requirement("fs.write")
@pytest.mark.parametrize("size", [3, BIG])
async def test_a_file_needs_its_folder(files: FileSystem, tmp_path: Path, size: int) -> None:
    with pytest.raises(NotFound, match=r"^No such file or directory \(os error 2\)$"):
        await files.write_file(
            WriteFileParams(uri(tmp_path, "none", "f"), data_base64=FileContent(b"x" * size))
        )


@pytest.mark.requirement("fs.errors.codes", "fs.canonicalize", "fs.walk.root")
async def test_what_is_not_there_is_not_found(files: FileSystem, tmp_path: Path) -> None:
    missing = uri(tmp_path, "none")
    for work in (
        files.read_file(ReadFileParams(missing)),
        files.read_file(ReadFileParams(missing, follow_symlinks=False)),
        files.open(OpenParams(handle_id="", path=missing)),
        files.get_metadata(GetMetadataParams(missing)),
        files.canonicalize(CanonicalizeParams(missing)),
        files.read_directory(ReadDirectoryParams(missing)),
        files.walk(WalkParams(missing, options=walk_options())),
        files.remove(RemoveParams(missing, force=False)),
        files.copy(
            CopyParams(source_path=missing, destination_path=uri(tmp_path, "other"), recursive=True)
        ),
    ):
        with pytest.raises(NotFound, match=r"^No such file or directory \(os error 2\)$"):
            await work


@pytest.mark.requirement("fs.read.regular-only", "fs.open.replace.target")
async def test_a_folder_is_not_a_file(files: FileSystem, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=f"^path `{tmp_path}` is not a file$"):
        await files.read_file(ReadFileParams(uri(tmp_path)))
    with pytest.raises(InvalidRequest, match=f"^path `{tmp_path}` is not a file$"):
        await files.open(OpenParams(handle_id="", path=uri(tmp_path)))
    with pytest.raises(OperationFailed, match=r"\(os error 21\)$"):
        await files.write_file(WriteFileParams(uri(tmp_path), data_base64=FileContent(b"x")))
    with pytest.raises(OperationFailed, match=r"\(os error 21\)$"):
        await files.open(OpenParams(handle_id="", path=uri(tmp_path), mode="replace"))


@pytest.mark.requirement("fs.no-follow.last")
async def test_links_are_not_followed_where_they_must_not_be(
    files: FileSystem, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "link").symlink_to("f")
    link = uri(tmp_path, "link")
    assert await files.read_file(ReadFileParams(uri(tmp_path, "f"), follow_symlinks=False)) == b"x"
    with pytest.raises(OperationFailed, match=r"\(os error 40\)$"):
        await files.read_file(ReadFileParams(link, follow_symlinks=False))
    with pytest.raises(OperationFailed, match=r"\(os error 40\)$"):
        await files.write_file(
            WriteFileParams(link, data_base64=FileContent(b"y"), follow_symlinks=False)
        )
    with pytest.raises(InvalidRequest, match=r"^path contains a symbolic link$"):
        await files.get_metadata(GetMetadataParams(link, follow_symlinks=False))
    with pytest.raises(InvalidRequest, match=r"^path contains a symbolic link$"):
        await files.remove(RemoveParams(link, recursive=False, follow_symlinks=False))
    assert (tmp_path / "f").read_bytes() == b"x"


@pytest.mark.parametrize("size", [5, 70_000, BIG])
async def test_a_file_over_the_limit_of_its_reader_is_refused(
    files: FileSystem, tmp_path: Path, size: int
) -> None:
    (tmp_path / "f").write_bytes(bytes(size))
    path = uri(tmp_path, "f")
    assert await files.read_file(ReadFileParams(path, max_bytes=size)) == bytes(size)
    for follow in (True, False):
        params = ReadFileParams(path, max_bytes=size - 1, follow_symlinks=follow)
        with pytest.raises(
            InvalidRequest, match=f"too large to read: limit is {size - 1} "
        ) as over:
            await files.read_file(params)
        assert over.value.errno == errno.EFBIG


@pytest.mark.requirement("path.foreign")
async def test_a_path_of_another_system_is_refused(files: FileSystem) -> None:
    foreign = PathUri.parse("file:///C:/x")
    for work in (
        files.read_file(ReadFileParams(foreign)),
        files.open(OpenParams(handle_id="", path=foreign)),
        files.get_metadata(GetMetadataParams(foreign)),
    ):
        with pytest.raises(InvalidRequest, match=r"^'file:///C:/x' is invalid on 'linux'$"):
            await work


@pytest.mark.requirement(
    "fs.no-follow.last",
    "fs.no-follow.earlier",
    "fs.no-follow.regular-only",
    "fs.no-follow.root",
    "fs.no-follow.remove",
)
async def test_nothing_but_entries_that_are_no_links_is_touched(
    files: FileSystem, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"x")
    (tmp_path / "link").symlink_to("d")
    make_fifo(tmp_path / "fifo")
    behind, link, root = uri(tmp_path, "link/f"), uri(tmp_path, "link"), uri("/")
    for work in (
        files.read_file(ReadFileParams(behind, follow_symlinks=False)),
        files.write_file(
            WriteFileParams(behind, data_base64=FileContent(b"y"), follow_symlinks=False)
        ),
        files.get_metadata(GetMetadataParams(behind, follow_symlinks=False)),
        files.remove(RemoveParams(behind, recursive=False, follow_symlinks=False)),
        files.create_directory(
            CreateDirectoryParams(uri(tmp_path, "link/new"), follow_symlinks=False)
        ),
        files.create_directory(CreateDirectoryParams(link, follow_symlinks=False)),
    ):
        with pytest.raises(OperationFailed, match=r"\(os error 20\)$"):
            await work
    with pytest.raises(OperationFailed, match=r"\(os error 17\)$"):
        await files.create_directory(
            CreateDirectoryParams(link, recursive=False, follow_symlinks=False)
        )
    for work in (
        files.read_file(ReadFileParams(uri(tmp_path), follow_symlinks=False)),
        files.read_file(ReadFileParams(uri(tmp_path, "fifo"), follow_symlinks=False)),
        files.write_file(
            WriteFileParams(uri("/dev/null"), data_base64=FileContent(b""), follow_symlinks=False)
        ),
    ):
        with pytest.raises(InvalidRequest, match=r"^path is not a regular file$"):
            await work
    with pytest.raises(OperationFailed, match=r"\(os error 21\)$"):
        await files.write_file(
            WriteFileParams(uri(tmp_path), data_base64=FileContent(b""), follow_symlinks=False)
        )
    with pytest.raises(OperationFailed, match=r"\(os error 6\)$"):
        await files.write_file(
            WriteFileParams(
                uri(tmp_path, "fifo"), data_base64=FileContent(b""), follow_symlinks=False
            )
        )
    for work in (
        files.read_file(ReadFileParams(root, follow_symlinks=False)),
        files.write_file(
            WriteFileParams(root, data_base64=FileContent(b""), follow_symlinks=False)
        ),
        files.remove(RemoveParams(root, recursive=False, follow_symlinks=False)),
    ):
        with pytest.raises(InvalidRequest, match=r"^path must name an entry$"):
            await work
    with pytest.raises(OperationFailed, match=r"^directory already exists$"):
        await files.create_directory(
            CreateDirectoryParams(root, recursive=False, follow_symlinks=False)
        )
    with pytest.raises(OperationFailed, match=r"^recursive no-follow removal is unsupported$"):
        await files.remove(RemoveParams(uri(tmp_path, "d"), follow_symlinks=False))
    assert (tmp_path / "d/f").read_bytes() == b"x"


@pytest.mark.requirement("fs.write.device")
async def test_a_device_can_be_written_to(files: FileSystem) -> None:
    await files.write_file(WriteFileParams(uri("/dev/null"), data_base64=FileContent(b"x")))
    with pytest.raises(OperationFailed, match=r"^No space left on device \(os error 28\)$"):
        await files.write_file(WriteFileParams(uri("/dev/full"), data_base64=FileContent(b"x")))


# -- blocks


@pytest.mark.requirement("fs.read-block", "fs.read-block.length")
async def test_blocks_are_read_at_any_place(files: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    handle = await files.open(OpenParams(handle_id="", path=uri(tmp_path, "f")))
    assert await handle.read_block(2, 3) == (b"234", False)
    assert await handle.read_block(8, 5) == (b"89", True)
    assert await handle.read_block(100, 5) == (b"", True)
    for size in (0, BLOCK + 1):
        with pytest.raises(InvalidRequest, match=r"^file read block length must be between 1 and"):
            await handle.read_block(0, size)
    assert await handle.read_block(0, 1) == (b"0", False)
    await handle.aclose()
    await handle.aclose()
    with pytest.raises(NotFound):
        await handle.read_block(0, 1)


@pytest.mark.requirement("fs.write-block")
@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 6 * BLOCK, BIG])
async def test_a_file_goes_through_a_handle_and_back(
    files: FileSystem, tmp_path: Path, size: int
) -> None:
    data = os.urandom(size)
    pieces = iter([data[at : at + BLOCK] for at in range(0, size, BLOCK)])
    given: list[int] = []
    handle = await files.open(OpenParams(handle_id="", path=uri(tmp_path, "f"), mode="replace"))
    await write_blocks(handle, lambda: next(pieces, b""), gave=given.append)
    await handle.aclose()
    assert sum(given) == size
    assert (tmp_path / "f").read_bytes() == data
    chunks: list[bytes] = []

    async def take(chunk: bytes) -> None:
        chunks.append(chunk)

    handle = await files.open(OpenParams(handle_id="", path=uri(tmp_path, "f")))
    await read_blocks(handle, take)
    assert b"".join(chunks) == data
    chunks.clear()
    await read_blocks(handle, take, start=size // 2)
    assert b"".join(chunks) == data[size // 2 :]
    await handle.aclose()


@pytest.mark.requirement("fs.write-block", "fs.write-block.range")
async def test_a_gap_becomes_zeros(files: FileSystem, tmp_path: Path) -> None:
    handle = await files.open(OpenParams(handle_id="", path=uri(tmp_path, "f"), mode="replace"))
    await handle.write_block(5, b"end")
    await handle.write_block(0, b"a")
    with pytest.raises(InvalidRequest, match=r"^file write block length must be between 1 and"):
        await handle.write_block(0, b"")
    with pytest.raises(InvalidRequest, match=r"^file write range exceeds the signed 64-bit"):
        await handle.write_block((1 << 63) - 1, b"ab")
    await handle.aclose()
    assert (tmp_path / "f").read_bytes() == b"a\0\0\0\0end"


async def test_a_discarded_replacement_leaves_the_old_file(
    files: FileSystem, subject: Subject, tmp_path: Path
) -> None:
    if subject.real:
        pytest.skip("different on purpose: Codex writes into the file itself")
    (tmp_path / "f").write_bytes(b"old")
    handle = await files.open(OpenParams(handle_id="", path=uri(tmp_path, "f"), mode="replace"))
    await handle.write_block(0, b"new and unfinished")
    handle.discard()
    await handle.aclose()
    assert (tmp_path / "f").read_bytes() == b"old"


# -- names


@pytest.mark.requirement("fs.metadata", "fs.metadata.kinds")
async def test_metadata_tells_what_a_path_leads_to(files: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("f")
    make_fifo(tmp_path / "fifo")
    file = await files.get_metadata(GetMetadataParams(uri(tmp_path, "f")))
    assert (file.is_file, file.is_directory, file.is_symlink, file.size) == (True, False, False, 5)
    assert abs(file.modified_at_ms - (tmp_path / "f").stat().st_mtime * 1000) < 2
    link = await files.get_metadata(GetMetadataParams(uri(tmp_path, "link")))
    assert (link.is_file, link.is_symlink, link.size) == (True, True, 5)
    folder = await files.get_metadata(GetMetadataParams(uri(tmp_path)))
    assert (folder.is_file, folder.is_directory) == (False, True)
    fifo = await files.get_metadata(GetMetadataParams(uri(tmp_path, "fifo")))
    assert (fifo.is_file, fifo.is_directory) == (False, False)
    (tmp_path / "f").unlink()
    with pytest.raises(NotFound):
        await files.get_metadata(GetMetadataParams(uri(tmp_path, "link")))


@pytest.mark.requirement("fs.canonicalize")
async def test_a_path_is_resolved(files: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "loop").symlink_to("loop")
    assert await files.canonicalize(CanonicalizeParams(uri(tmp_path, "link"))) == uri(
        resolved(tmp_path), "d"
    )
    with pytest.raises(OperationFailed, match=r"\(os error 40\)$"):
        await files.canonicalize(CanonicalizeParams(uri(tmp_path, "loop")))


@pytest.mark.requirement("fs.mkdir", "fs.mkdir.single", "fs.list")
async def test_folders_are_made_and_listed(files: FileSystem, tmp_path: Path) -> None:
    await files.create_directory(CreateDirectoryParams(uri(tmp_path, "a/b")))
    await files.create_directory(CreateDirectoryParams(uri(tmp_path, "a/b")))
    with pytest.raises(OperationFailed, match=r"\(os error 17\)$"):
        await files.create_directory(CreateDirectoryParams(uri(tmp_path, "a"), recursive=False))
    with pytest.raises(NotFound):
        await files.create_directory(CreateDirectoryParams(uri(tmp_path, "x/y"), recursive=False))
    (tmp_path / "a/f").touch()
    (tmp_path / "a/broken").symlink_to("nowhere")
    entries = await files.read_directory(ReadDirectoryParams(uri(tmp_path, "a")))
    assert {(e.file_name, e.is_directory, e.is_file) for e in entries} == {
        ("b", True, False),
        ("f", False, True),
    }
    with pytest.raises(OperationFailed, match=r"\(os error 20\)$"):
        await files.read_directory(ReadDirectoryParams(uri(tmp_path, "a/f")))


@pytest.mark.requirement("fs.mkdir", "fs.mkdir.in-the-way")
async def test_a_folder_is_not_made_over_or_below_something_else(
    files: FileSystem, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "f").touch()
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "broken").symlink_to("nowhere")
    await files.create_directory(CreateDirectoryParams(uri(tmp_path, "link")))
    for name, number in (("f", 17), ("broken", 17), ("f/x", 20)):
        with pytest.raises(OperationFailed, match=rf"\(os error {number}\)$"):
            await files.create_directory(CreateDirectoryParams(uri(tmp_path, name)))


@pytest.mark.requirement("fs.list", "fs.list.lossy")
async def test_entries_tell_what_they_lead_to(files: FileSystem, tmp_path: Path) -> None:
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "link").symlink_to(".hidden")
    (tmp_path / "loop").symlink_to("loop")
    make_fifo(tmp_path / "fifo")
    touch(tmp_path, b"\xff")
    entries = await files.read_directory(ReadDirectoryParams(uri(tmp_path)))
    assert {(e.file_name, e.is_directory, e.is_file) for e in entries} == {
        (".hidden", True, False),
        ("link", True, False),
        ("fifo", False, False),
        ("\ufffd", False, True),
    }


@pytest.mark.requirement("fs.walk.limits", "fs.walk.order")
async def test_a_walk_is_breadth_first_and_sorted(files: FileSystem, tmp_path: Path) -> None:
    for path in ("b/c/deep", "a/x", "z", ".h/y"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "link").symlink_to("b")
    found = await files.walk(WalkParams(uri(tmp_path), options=walk_options()))
    names = [below(entry.path, tmp_path) for entry in found.entries]
    assert names == [".h", "a", "b", "z", ".h/y", "a/x", "b/c", "b/c/deep"]
    assert [entry.kind for entry in found.entries][:4] == ["directory"] * 3 + ["file"]
    assert (found.errors, found.truncated) == ([], False)
    shallow = await files.walk(WalkParams(uri(tmp_path), options=walk_options(max_depth=0)))
    assert len(shallow.entries) == 4
    cut = await files.walk(WalkParams(uri(tmp_path), options=walk_options(max_entries=2)))
    assert (len(cut.entries), cut.truncated) == (2, True)
    with pytest.raises(InvalidRequest, match=r"^filesystem walk limits must be greater than zero$"):
        await files.walk(WalkParams(uri(tmp_path), options=walk_options(max_entries=0)))
    with pytest.raises(InvalidRequest, match=r"^filesystem walk limits exceed maximums"):
        await files.walk(WalkParams(uri(tmp_path), options=walk_options(max_depth=65)))


@pytest.mark.requirement("fs.remove", "fs.remove.not-empty")
async def test_things_are_removed(files: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "link").symlink_to("d")
    await files.remove(RemoveParams(uri(tmp_path, "link")))
    assert (tmp_path / "d/e").is_dir()
    with pytest.raises(OperationFailed, match=r"\(os error 39\)$"):
        await files.remove(RemoveParams(uri(tmp_path, "d"), recursive=False))
    await files.remove(RemoveParams(uri(tmp_path, "d")))
    await files.remove(RemoveParams(uri(tmp_path, "d")))
    assert names_in(tmp_path) == []


@pytest.mark.requirement("fs.remove.force")
async def test_what_is_gone_need_not_be_removed(files: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "f").touch()
    (tmp_path / "link").symlink_to("d")
    make_fifo(tmp_path / "fifo")
    await files.remove(RemoveParams(uri(tmp_path, "none/x"), recursive=False))
    with pytest.raises(NotFound):
        await files.remove(RemoveParams(uri(tmp_path, "none/x"), force=False))
    with pytest.raises(OperationFailed, match=r"\(os error 20\)$"):
        await files.remove(RemoveParams(uri(tmp_path, "f/x")))
    await files.remove(RemoveParams(PathUri.parse(f"{uri(tmp_path, 'link')}/")))
    await files.remove(RemoveParams(uri(tmp_path, "fifo")))
    assert sorted(names_in(tmp_path)) == ["d", "f"]


@pytest.mark.requirement("fs.copy.file", "fs.copy.link", "fs.copy.folder")
async def test_things_are_copied(files: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/f").write_bytes(b"x")
    (tmp_path / "d/e/f").chmod(0o711)
    (tmp_path / "d/link").symlink_to("e/f")
    with pytest.raises(InvalidRequest, match=r"^fs/copy requires recursive: true"):
        await files.copy(
            CopyParams(
                source_path=uri(tmp_path, "d"), destination_path=uri(tmp_path, "c"), recursive=False
            )
        )
    with pytest.raises(InvalidRequest, match=r"^fs/copy cannot copy a directory to itself"):
        await files.copy(
            CopyParams(
                source_path=uri(tmp_path, "d"),
                destination_path=uri(tmp_path, "d/e/d"),
                recursive=True,
            )
        )
    await files.copy(
        CopyParams(
            source_path=uri(tmp_path, "d"), destination_path=uri(tmp_path, "c"), recursive=True
        )
    )
    assert (tmp_path / "c/e/f").read_bytes() == b"x"
    assert (tmp_path / "c/e/f").stat().st_mode & 0o777 == 0o711
    assert link_at(tmp_path / "c/link") == "e/f"


@pytest.mark.requirement("fs.copy.file", "fs.copy.link", "fs.copy.kinds")
async def test_a_copy_is_written_over_what_is_there(files: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "broken").symlink_to("made")
    (tmp_path / "d").mkdir()
    await files.copy(
        CopyParams(
            source_path=uri(tmp_path, "f"),
            destination_path=uri(tmp_path, "broken"),
            recursive=False,
        )
    )
    assert (tmp_path / "made").read_bytes() == b"x"
    with pytest.raises(OperationFailed, match=r"\(os error 21\)$"):
        await files.copy(
            CopyParams(
                source_path=uri(tmp_path, "f"), destination_path=uri(tmp_path, "d"), recursive=False
            )
        )
    with pytest.raises(NotFound):
        await files.copy(
            CopyParams(
                source_path=uri(tmp_path, "f"),
                destination_path=uri(tmp_path, "none/f"),
                recursive=False,
            )
        )
    await files.copy(
        CopyParams(
            source_path=uri(tmp_path, "broken"),
            destination_path=uri(tmp_path, "again"),
            recursive=True,
        )
    )
    assert link_at(tmp_path / "again") == "made"
    with pytest.raises(OperationFailed, match=r"\(os error 17\)$"):
        await files.copy(
            CopyParams(
                source_path=uri(tmp_path, "broken"),
                destination_path=uri(tmp_path, "f"),
                recursive=False,
            )
        )
    make_fifo(tmp_path / "fifo")
    for device in ("/dev/null", tmp_path / "fifo"):
        with pytest.raises(InvalidRequest, match=r"^fs/copy only supports regular files, direct"):
            await files.copy(
                CopyParams(
                    source_path=uri(device), destination_path=uri(tmp_path, "x"), recursive=True
                )
            )


@pytest.mark.requirement("fs.copy.folder", "fs.copy.merge")
async def test_a_folder_is_merged_into_another(files: FileSystem, tmp_path: Path) -> None:
    for name in ("from/same", "from/new", "there/to/same", "there/to/own"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    make_fifo(tmp_path / "from/fifo")
    (tmp_path / "from").chmod(0o700)
    await files.copy(
        CopyParams(
            source_path=uri(tmp_path, "from"),
            destination_path=uri(tmp_path, "there/to"),
            recursive=True,
        )
    )
    found = {path.name: path.read_text() for path in (tmp_path / "there/to").iterdir()}
    assert found == {"same": "from/same", "new": "from/new", "own": "there/to/own"}
    await files.copy(
        CopyParams(
            source_path=uri(tmp_path, "from"),
            destination_path=uri(tmp_path, "a/b/c"),
            recursive=True,
        )
    )
    assert sorted(names_in(tmp_path / "a/b/c")) == ["new", "same"]
    assert (tmp_path / "a/b/c").stat().st_mode == (tmp_path / "a/b").stat().st_mode
    with pytest.raises(OperationFailed, match=r"\(os error 17\)$"):
        await files.copy(
            CopyParams(
                source_path=uri(tmp_path, "from"),
                destination_path=uri(tmp_path, "there/to/own"),
                recursive=True,
            )
        )
    (tmp_path / "link").symlink_to("from")
    with pytest.raises(InvalidRequest, match=r"^fs/copy cannot copy a directory to itself"):
        await files.copy(
            CopyParams(
                source_path=uri(tmp_path, "from"),
                destination_path=uri(tmp_path, "link/x"),
                recursive=True,
            )
        )


@pytest.mark.requirement("fs.watch")
async def test_a_watch_fires_when_something_appears(files: FileSystem, tmp_path: Path) -> None:
    tmp_path = resolved(tmp_path)
    watch = await files.watch_missing(
        WatchMissingParams(watch_id=0, missing=[uri(tmp_path, "a"), uri(tmp_path, "d/b")])
    )
    assert watch is not None
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(watch.changed())
        (tmp_path / "other").touch()
        (tmp_path / "d").mkdir()
        await asyncio.wait_for(waiting, LIMIT)
    watch.cancel()
    assert (
        await files.watch_missing(WatchMissingParams(watch_id=0, missing=[uri(tmp_path, "d")]))
        is None
    )
    assert await files.watch_missing(WatchMissingParams(watch_id=0, missing=[])) is None
    assert (
        await files.watch_missing(
            WatchMissingParams(
                watch_id=0, missing=[uri(tmp_path, "a")], present=uri(tmp_path, "nothing")
            )
        )
        is None
    )


# -- sandboxes


@pytest.mark.requirement("fs.sandbox.none")
async def test_a_disabled_sandbox_is_none(files: FileSystem, tmp_path: Path) -> None:
    await files.write_file(
        WriteFileParams(uri(tmp_path, "f"), data_base64=FileContent(b"x"), sandbox=DISABLED)
    )
    assert await files.read_file(ReadFileParams(uri(tmp_path, "f"), sandbox=DISABLED)) == b"x"


def confined(*entries: tuple[Path | Literal["root"], Access]) -> SandboxContext:
    """A sandbox of these paths."""
    root = SpecialPath(value=SpecialValue(kind="root"))
    made = [
        FileEntry(path=root if path == "root" else PlainPath(path=uri(path)), access=access)
        for path, access in entries
    ]
    profile = ManagedProfile(file_system=RestrictedFiles(entries=tuple(made)), network="restricted")
    return SandboxContext(permissions=profile, windows_sandbox_level="disabled")


@pytest.mark.requirement("fs.sandbox.restricted", "fs.sandbox.hidden")
async def test_a_sandbox_hides_what_it_does_not_name(
    files: FileSystem, subject: Subject, tmp_path: Path
) -> None:
    need_sandboxes(subject)
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    (tmp_path / "in/link").symlink_to(tmp_path / "out/f")
    sandbox = confined((tmp_path / "in", "read"))
    assert await files.read_file(ReadFileParams(uri(tmp_path, "in/f"), sandbox=sandbox)) == b"in"
    handle = await files.open(OpenParams(handle_id="", path=uri(tmp_path, "in/f"), sandbox=sandbox))
    assert await handle.read_block(0, 9) == (b"in", True)
    await handle.aclose()
    for path in ("out/f", "in/link"):
        for work in (
            files.read_file(ReadFileParams(uri(tmp_path, path), sandbox=sandbox)),
            files.get_metadata(GetMetadataParams(uri(tmp_path, path), sandbox=sandbox)),
            files.open(OpenParams(handle_id="", path=uri(tmp_path, path), sandbox=sandbox)),
        ):
            with pytest.raises(NotFound, match=r"^No such file or directory \(os error 2\)$"):
                await work
    listed = await files.read_directory(ReadDirectoryParams(uri(tmp_path, "in"), sandbox=sandbox))
    assert [entry.file_name for entry in listed] == ["f"]
    walked = await files.walk(
        WalkParams(uri(tmp_path, "in"), options=walk_options(), sandbox=sandbox)
    )
    assert [below(entry.path, tmp_path) for entry in walked.entries] == ["in/f"]


@pytest.mark.requirement("fs.sandbox.denied")
async def test_a_sandbox_denies_what_it_says(
    files: FileSystem, subject: Subject, tmp_path: Path
) -> None:
    need_sandboxes(subject)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("x")
    sandbox = confined(("root", "read"), (tmp_path / "secret", "deny"))
    for work in (
        files.read_file(ReadFileParams(uri(tmp_path, "secret/key"), sandbox=sandbox)),
        files.get_metadata(GetMetadataParams(uri(tmp_path, "secret/key"), sandbox=sandbox)),
        files.read_directory(ReadDirectoryParams(uri(tmp_path, "secret"), sandbox=sandbox)),
        files.open(OpenParams(handle_id="", path=uri(tmp_path, "secret/key"), sandbox=sandbox)),
        files.write_file(
            WriteFileParams(
                uri(tmp_path, "secret/new"), data_base64=FileContent(b"x"), sandbox=sandbox
            )
        ),
        files.remove(RemoveParams(uri(tmp_path, "secret"), sandbox=sandbox)),
    ):
        with pytest.raises(InvalidRequest, match=r"^Permission denied \(os error 13\)$"):
            await work
    metadata = await files.get_metadata(GetMetadataParams(uri(tmp_path, "secret"), sandbox=sandbox))
    assert metadata.is_directory


@pytest.mark.requirement("fs.sandbox.read-only", "fs.sandbox.protected")
async def test_a_sandbox_writes_only_where_it_says(
    files: FileSystem, subject: Subject, tmp_path: Path
) -> None:
    need_sandboxes(subject)
    for folder in ("ws/.git", "out"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ws/link").symlink_to(tmp_path / "out/f")
    sandbox = confined(("root", "read"), (tmp_path / "ws", "write"))
    await files.write_file(
        WriteFileParams(uri(tmp_path, "ws/f"), data_base64=FileContent(b"x"), sandbox=sandbox)
    )
    await files.create_directory(CreateDirectoryParams(uri(tmp_path, "ws/a/b"), sandbox=sandbox))
    await files.copy(
        CopyParams(
            source_path=uri(tmp_path, "ws/f"),
            destination_path=uri(tmp_path, "ws/g"),
            recursive=False,
            sandbox=sandbox,
        )
    )
    await files.remove(RemoveParams(uri(tmp_path, "ws/f"), sandbox=sandbox))
    handle = await files.open(
        OpenParams(handle_id="", path=uri(tmp_path, "ws/h"), mode="replace", sandbox=sandbox)
    )
    await handle.write_block(0, b"x")
    await handle.aclose()
    assert sorted(names_in(tmp_path / "ws")) == [".git", "a", "g", "h", "link"]
    for work in (
        files.write_file(
            WriteFileParams(uri(tmp_path, "out/f"), data_base64=FileContent(b"x"), sandbox=sandbox)
        ),
        files.write_file(
            WriteFileParams(
                uri(tmp_path, "ws/link"), data_base64=FileContent(b"x"), sandbox=sandbox
            )
        ),
        files.write_file(
            WriteFileParams(
                uri(tmp_path, "ws/.git/config"), data_base64=FileContent(b"x"), sandbox=sandbox
            )
        ),
        files.open(
            OpenParams(handle_id="", path=uri(tmp_path, "out/f"), mode="replace", sandbox=sandbox)
        ),
        files.create_directory(CreateDirectoryParams(uri(tmp_path, "out/a"), sandbox=sandbox)),
        files.remove(RemoveParams(uri(tmp_path, "out"), sandbox=sandbox)),
        files.copy(
            CopyParams(
                source_path=uri(tmp_path, "ws/g"),
                destination_path=uri(tmp_path, "out/g"),
                recursive=False,
                sandbox=sandbox,
            )
        ),
    ):
        with pytest.raises(OperationFailed, match=r"^Read-only file system \(os error 30\)$"):
            await work
    assert names_in(tmp_path / "out") == names_in(tmp_path / "ws/.git") == []


# -- many at once


@pytest.mark.every_transport
async def test_many_files_go_at_once(files: FileSystem, tmp_path: Path) -> None:
    async def there_and_back(number: int) -> None:
        data = bytes([number]) * (number * 997)
        await files.write_file(
            WriteFileParams(uri(tmp_path, number), data_base64=FileContent(data))
        )
        assert await files.read_file(ReadFileParams(uri(tmp_path, number))) == data

    async with asyncio.TaskGroup() as tasks:
        for number in range(100):
            tasks.create_task(there_and_back(number))


async def test_a_file_is_renamed_in_one_step_where_the_server_can(
    files: FileSystem, subject: Subject, tmp_path: Path
) -> None:
    (tmp_path / "old").write_text("new content")
    (tmp_path / "new").write_text("old content")
    if subject.real:
        with pytest.raises(Unsupported):
            await files.rename(
                RenameParams(
                    source_path=uri(tmp_path, "old"), destination_path=uri(tmp_path, "new")
                )
            )
    else:
        await files.rename(
            RenameParams(source_path=uri(tmp_path, "old"), destination_path=uri(tmp_path, "new"))
        )
        assert (tmp_path / "new").read_text() == "new content"
        with pytest.raises(FileNotFoundError) as source:
            await files.rename(
                RenameParams(
                    source_path=uri(tmp_path, "old"), destination_path=uri(tmp_path, "new")
                )
            )
        assert source.value.filename == f"{tmp_path}/old"
        with pytest.raises(FileNotFoundError) as target:
            await files.rename(
                RenameParams(
                    source_path=uri(tmp_path, "new"), destination_path=uri(tmp_path, "no/such")
                )
            )
        assert target.value.filename == f"{tmp_path}/no/such"
        (tmp_path / "old").write_text("again")
    await move(files, uri(tmp_path, "old"), uri(tmp_path, "moved"))  # also by a copy
    assert (tmp_path / "moved").exists()
    assert not (tmp_path / "old").exists()


async def test_a_file_that_is_replaced_gets_permissions_where_the_server_can(
    files: FileSystem, subject: Subject, tmp_path: Path
) -> None:
    path = tmp_path / "script"
    path.write_text("old")
    path.chmod(0o640)
    handle = await files.open(
        OpenParams(handle_id="", path=uri(path), mode="replace", permissions=0o751)
    )
    await handle.write_block(0, b"new")
    await handle.aclose()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == (0o640 if subject.real else 0o751)
    told = (await files.get_metadata(GetMetadataParams(uri(path)))).permissions
    assert told is UNSET if subject.real else told == 0o751
