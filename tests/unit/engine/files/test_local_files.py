"""The files of this machine: what the seam promises beyond what every implementation does."""

import asyncio
import errno
import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.base.errors import InvalidParams, InvalidRequest, NotFound, OperationFailed
from holdfast.engine.files import directories, nofollow
from holdfast.engine.files import handle as handle_module
from holdfast.engine.files.local_files import LocalFileSystem
from holdfast.engine.sandbox.policy.disk import HostDisk, Seen
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
    WalkOptions,
    WalkParams,
    WatchMissingParams,
    WriteFileParams,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext


def uri(path: Path | str) -> PathUri:
    return PathUri.from_path(path)


# -- blocks


async def test_a_replaced_file_is_the_old_one_until_it_is_closed(
    files: LocalFileSystem, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    handle = await files.open(OpenParams(handle_id="", path=uri(path), mode="replace"))
    await handle.write_block(4, b"tail")
    await handle.write_block(0, b"ab")
    assert path.read_bytes() == b"old"
    await handle.aclose()
    assert path.read_bytes() == b"ab\0\0tail"
    await handle.aclose()  # harmless


async def test_what_is_discarded_never_was(files: LocalFileSystem, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    handle = await files.open(OpenParams(handle_id="", path=uri(path), mode="replace"))
    await handle.write_block(0, b"new")
    handle.discard()
    await files.aclose()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


async def test_a_close_that_is_cancelled_before_its_turn_discards(
    files: LocalFileSystem, tmp_path: Path
) -> None:
    handle = await files.open(OpenParams(handle_id="", path=uri(tmp_path / "file"), mode="replace"))
    assert isinstance(handle, handle_module.LocalFileHandle)
    gate = threading.Event()
    busy = handle._queue.run(lambda: gate.wait(10))
    closing = asyncio.create_task(handle.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    gate.set()
    await busy
    await files.aclose()
    assert handle._file is None, "it is still open"
    assert not os.listdir(tmp_path)


@pytest.mark.requirement("fs.read-block.error-closes")
async def test_reading_what_is_being_written_closes_it(
    files: LocalFileSystem, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    handle = await files.open(OpenParams(handle_id="", path=uri(path), mode="replace"))
    with pytest.raises(OperationFailed, match=r"Bad file descriptor \(os error 9\)"):
        await handle.read_block(0, 1)
    with pytest.raises(NotFound):
        await handle.write_block(0, b"x")
    await handle.aclose()
    assert not path.exists()


@pytest.mark.requirement("fs.write-block.error-keeps")
async def test_writing_what_is_being_read_fails_and_reading_goes_on(
    files: LocalFileSystem, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    handle = await files.open(OpenParams(handle_id="", path=uri(path)))
    with pytest.raises(OperationFailed, match=r"\(os error 9\)"):
        await handle.write_block(0, b"x")
    assert await handle.read_block(0, 100) == (b"content", True)
    await handle.aclose()


async def test_the_end_is_told_with_the_last_block(files: LocalFileSystem, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    handle = await files.open(OpenParams(handle_id="", path=uri(path)))
    assert await handle.read_block(0, 9) == (b"012345678", False)
    assert await handle.read_block(0, 10) == (b"0123456789", True)
    assert await handle.read_block(10, 5) == (b"", True)
    await handle.aclose()


@pytest.mark.requirement("fs.read.size-untrusted")
async def test_a_file_that_does_not_tell_its_size_is_read_to_its_end(
    files: LocalFileSystem,
) -> None:
    handle = await files.open(OpenParams(handle_id="", path=uri("/proc/self/mountinfo")))
    first, eof = await handle.read_block(0, 10)
    assert (len(first), eof) == (10, False)
    await handle.aclose()
    assert (await files.read_file(ReadFileParams(uri("/proc/self/mountinfo")))).startswith(first)


@pytest.mark.requirement("fs.read-block.error-closes")
async def test_an_offset_that_no_file_has_closes_the_handle(
    files: LocalFileSystem, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    handle = await files.open(OpenParams(handle_id="", path=uri(tmp_path / "file")))
    with pytest.raises(InvalidRequest, match=r"Invalid argument \(os error 22\)"):
        await handle.read_block(1 << 63, 1)
    with pytest.raises(NotFound):
        await handle.read_block(0, 1)


@pytest.mark.requirement("fs.write-block.range")
async def test_blocks_out_of_range_are_refused(files: LocalFileSystem, tmp_path: Path) -> None:
    handle = await files.open(OpenParams(handle_id="", path=uri(tmp_path / "file"), mode="replace"))
    with pytest.raises(InvalidRequest, match="read block length must be between 1 and 1048576"):
        await handle.read_block(0, 0)
    with pytest.raises(InvalidRequest, match="write block length must be between 1 and 1048576"):
        await handle.write_block(0, bytes((1 << 20) + 1))
    with pytest.raises(InvalidRequest, match="signed 64-bit file offset limit"):
        await handle.write_block((1 << 63) - 1, b"x")
    await handle.aclose()


async def test_a_file_of_which_a_block_is_missing_does_not_replace_another(
    files: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    handle = await files.open(OpenParams(handle_id="", path=uri(path), mode="replace"))
    await handle.write_block(0, b"first")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OperationFailed, match=r"No space left on device \(os error 28\)"):
            await handle.write_block(5, b"second")
    with pytest.raises(OperationFailed, match=r"\(os error 28\)"):
        await handle.aclose()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.requirement("fs.write-block.error-keeps")
async def test_a_block_that_is_written_again_is_not_missing(
    files: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    handle = await files.open(OpenParams(handle_id="", path=uri(tmp_path / "file"), mode="replace"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OperationFailed):
            await handle.write_block(0, b"all")
    await handle.write_block(0, b"all")
    await handle.aclose()
    assert (tmp_path / "file").read_bytes() == b"all"


@pytest.mark.requirement("fs.read.regular-only")
@pytest.mark.parametrize("path", ["/", "/dev/null"])
async def test_only_regular_files_are_opened(files: LocalFileSystem, path: str) -> None:
    with pytest.raises(InvalidRequest, match=f"path `{path}` is not a file"):
        await files.open(OpenParams(handle_id="", path=uri(path)))
    with pytest.raises(InvalidRequest, match=f"path `{path}` is not a file"):
        await files.read_file(ReadFileParams(uri(path)))
    with pytest.raises((InvalidRequest, OperationFailed), match=r"is not a file|os error 21"):
        await files.open(OpenParams(handle_id="", path=uri(path), mode="replace"))


# -- whole files


@pytest.mark.requirement("fs.read.limit")
async def test_a_large_file_is_refused(
    files: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle_module, "MAX_FILE", 100_000)
    (tmp_path / "file").write_bytes(bytes(100_000))
    assert len(await files.read_file(ReadFileParams(uri(tmp_path / "file")))) == 100_000
    (tmp_path / "file").write_bytes(bytes(100_001))
    with pytest.raises(InvalidRequest, match="file is too large to read: limit is 100000 bytes"):
        await files.read_file(ReadFileParams(uri(tmp_path / "file")))


async def test_an_error_in_a_piece_keeps_the_old_file(
    files: LocalFileSystem, tmp_path: Path
) -> None:
    # Decoded in pieces of a mebibyte, of which the second is wrong.
    content = FileContent("A" * (1 << 20) + "====")
    for name in ("plain", "linked"):
        (tmp_path / name).write_bytes(b"old")
    os.link(tmp_path / "linked", tmp_path / "second name")
    for name in ("plain", "linked"):
        with pytest.raises(InvalidRequest, match="requires valid base64 dataBase64: Invalid"):
            await files.write_file(WriteFileParams(uri(tmp_path / name), data_base64=content))
        assert (tmp_path / name).read_bytes() == b"old"
    assert len(os.listdir(tmp_path)) == 3


@pytest.mark.requirement("fs.read.regular-only")
async def test_a_fifo_that_nobody_reads_holds_up_nothing(
    files: LocalFileSystem, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    async with asyncio.timeout(5):
        with pytest.raises(OperationFailed, match=r"\(os error 6\)"):
            await files.write_file(
                WriteFileParams(uri(tmp_path / "fifo"), data_base64=FileContent(b"x"))
            )
        with pytest.raises(InvalidRequest, match="is not a file"):
            await files.read_file(ReadFileParams(uri(tmp_path / "fifo")))


# -- names


async def test_a_file_copied_onto_itself_stays(files: LocalFileSystem, tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"content")
    link.symlink_to("file")
    for destination in (path, link):
        await files.copy(
            CopyParams(source_path=uri(path), destination_path=uri(destination), recursive=False)
        )
        assert path.read_bytes() == b"content"


@pytest.mark.requirement("fs.copy.file")
async def test_a_copy_has_the_content_and_the_mode(files: LocalFileSystem, tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    content = os.urandom(3 << 20)
    source.write_bytes(content)
    source.chmod(0o4751)
    destination.write_bytes(b"old")
    await files.copy(
        CopyParams(source_path=uri(source), destination_path=uri(destination), recursive=False)
    )
    assert destination.read_bytes() == content
    assert stat.S_IMODE(destination.stat().st_mode) == 0o4751


async def test_a_file_of_proc_can_be_copied(files: LocalFileSystem, tmp_path: Path) -> None:
    await files.copy(
        CopyParams(
            source_path=uri("/proc/self/cmdline"),
            destination_path=uri(tmp_path / "copy"),
            recursive=False,
        )
    )
    assert (tmp_path / "copy").read_bytes().endswith(b"\0")


@pytest.mark.requirement("fs.remove")
async def test_a_deep_tree_is_removed_without_following_links(
    files: LocalFileSystem, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    deep = tmp_path / "tree"
    for _ in range(300):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    (deep / "link").symlink_to(outside)
    await files.remove(RemoveParams(uri(tmp_path / "tree")))
    assert os.listdir(tmp_path) == ["outside"]
    assert (outside / "kept").exists()


@pytest.mark.requirement("path.opaque.nul")
async def test_a_path_with_a_nul_is_refused(files: LocalFileSystem) -> None:
    path = PathUri.from_path("/tmp/a\0b")
    for work in (
        files.read_file(ReadFileParams(path)),
        files.get_metadata(GetMetadataParams(path)),
        files.canonicalize(CanonicalizeParams(path)),
        files.read_directory(ReadDirectoryParams(path)),
    ):
        with pytest.raises(InvalidRequest, match="file name contained an unexpected NUL byte"):
            await work


async def test_a_path_of_another_system_is_refused(files: LocalFileSystem) -> None:
    with pytest.raises(InvalidRequest, match="'file:///C:/x' is invalid on 'linux'"):
        await files.read_file(ReadFileParams(PathUri.parse("file:///C:/x")))
    assert (
        await files.watch_missing(
            WatchMissingParams(watch_id=0, missing=[PathUri.parse("file:///C:/x")])
        )
        is None
    )


@pytest.mark.requirement("fs.list.limit")
async def test_a_folder_with_too_many_entries_is_refused(
    files: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).touch()
    monkeypatch.setattr(directories, "MAX_ENTRIES", 3)
    assert len(await files.read_directory(ReadDirectoryParams(uri(tmp_path)))) == 3
    monkeypatch.setattr(directories, "MAX_ENTRIES", 2)
    with pytest.raises(OperationFailed, match="returned 3 entries; limit is 2"):
        await files.read_directory(ReadDirectoryParams(uri(tmp_path)))


# -- no links


@pytest.mark.requirement("fs.no-follow.race")
async def test_a_link_that_is_put_in_the_way_is_not_followed(
    files: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"ours")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(b"secret")
    real = nofollow._enter

    def swap(folder: int, name: str, create: bool) -> int:
        inner = real(folder, name, create)
        if name == "folder":
            (tmp_path / "folder").rename(tmp_path / "moved")
            (tmp_path / "folder").symlink_to("elsewhere")
        return inner

    monkeypatch.setattr(nofollow, "_enter", swap)
    found = await files.read_file(
        ReadFileParams(uri(tmp_path / "folder" / "file"), follow_symlinks=False)
    )
    assert found == b"ours"


async def test_folders_are_made_without_following_links(
    files: LocalFileSystem, tmp_path: Path
) -> None:
    await files.create_directory(
        CreateDirectoryParams(uri(tmp_path / "a" / "b"), follow_symlinks=False)
    )
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(OperationFailed, match=r"\(os error 20\)"):
        await files.create_directory(
            CreateDirectoryParams(uri(tmp_path / "link" / "c"), follow_symlinks=False)
        )
    with pytest.raises(OperationFailed, match="directory already exists"):
        await files.create_directory(
            CreateDirectoryParams(uri("/"), recursive=False, follow_symlinks=False)
        )
    await files.create_directory(CreateDirectoryParams(uri("/"), follow_symlinks=False))


# -- sandboxes


def sandbox(permissions: dict[str, Any]) -> SandboxContext:
    return msgspec.convert(
        {"permissions": permissions, "windowsSandboxLevel": "disabled"}, SandboxContext
    )


UNRESTRICTED: list[dict[str, Any]] = [
    {"type": "disabled"},
    {"type": "external", "network": "enabled"},
    {"type": "managed", "file_system": {"type": "unrestricted"}, "network": "restricted"},
]


@pytest.mark.requirement("fs.sandbox.none")
@pytest.mark.parametrize("permissions", UNRESTRICTED, ids=lambda given: str(given["type"]))
async def test_a_profile_that_asks_for_nothing_is_served(
    files: LocalFileSystem, permissions: dict[str, Any]
) -> None:
    assert (
        await files.get_metadata(GetMetadataParams(uri("/"), sandbox=sandbox(permissions)))
    ).is_directory


def restricted(*entries: dict[str, Any], **context: Any) -> SandboxContext:
    files = {"type": "restricted", "entries": entries}
    profile = {"type": "managed", "file_system": files, "network": "restricted"}
    given = {"permissions": profile, "windowsSandboxLevel": "disabled", **context}
    return msgspec.convert(given, SandboxContext, dec_hook=lambda _, text: PathUri.parse(text))


def entry(path: Path | str, access: str) -> dict[str, Any]:
    return {"path": {"type": "path", "path": f"file://{path}"}, "access": access}


def special(kind: str, access: str) -> dict[str, Any]:
    return {"path": {"type": "special", "value": {"kind": kind}}, "access": access}


@pytest.mark.requirement("fs.sandbox.restricted")
async def test_a_profile_that_restricts_is_kept_by_every_operation(
    files: LocalFileSystem, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("x")
    nothing = restricted()
    here = uri(tmp_path / "f")
    options = WalkOptions(
        max_depth=1, max_directories=1, max_entries=1, follow_directory_symlinks=False
    )
    for work in (
        files.read_file(ReadFileParams(here, sandbox=nothing)),
        files.open(OpenParams(handle_id="", path=here, sandbox=nothing)),
        files.open(OpenParams(handle_id="", path=here, mode="replace", sandbox=nothing)),
        files.write_file(WriteFileParams(here, data_base64=FileContent(b"new"), sandbox=nothing)),
        files.create_directory(CreateDirectoryParams(here, recursive=False, sandbox=nothing)),
        files.get_metadata(GetMetadataParams(here, sandbox=nothing)),
        files.get_metadata(GetMetadataParams(here, follow_symlinks=False, sandbox=nothing)),
        files.canonicalize(CanonicalizeParams(here, sandbox=nothing)),
        files.read_directory(ReadDirectoryParams(uri(tmp_path), sandbox=nothing)),
        files.walk(WalkParams(uri(tmp_path), options=options, sandbox=nothing)),
        files.remove(RemoveParams(here, force=False, sandbox=nothing)),
        files.copy(
            CopyParams(
                source_path=here,
                destination_path=uri(tmp_path / "g"),
                recursive=False,
                sandbox=nothing,
            )
        ),
    ):
        with pytest.raises(NotFound):
            await work
    assert files.cached_metadata(GetMetadataParams(here, sandbox=nothing)) is None
    assert os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").read_text() == "x"


@pytest.mark.requirement("fs.sandbox.none")
async def test_a_root_that_may_be_written_restricts_nothing(
    files: LocalFileSystem, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    everything = restricted(special("root", "write"))
    await files.write_file(
        WriteFileParams(
            uri(tmp_path / ".git/config"), data_base64=FileContent(b"x"), sandbox=everything
        )
    )
    assert (tmp_path / ".git/config").read_text() == "x"


@pytest.mark.requirement("fs.sandbox.errors")
async def test_a_profile_that_cannot_be_kept_is_refused(
    files: LocalFileSystem, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    root, relative = special("root", "read"), {"type": "glob_pattern", "pattern": "**/*.env"}
    for kind, words, profile in (
        (
            InvalidParams,
            "^file system sandbox context with dynamic permissions requires cwd$",
            restricted(special("project_roots", "read")),
        ),
        (
            InvalidParams,
            "^file system sandbox context with dynamic permissions requires cwd$",
            restricted(root, {"path": relative, "access": "deny"}),
        ),
        (
            InvalidRequest,
            "^invalid sandbox permission path URI: 'file:///C:/x' is invalid on 'linux'$",
            restricted(entry("/C:/x", "read")),
        ),
        (OperationFailed, "link", restricted(root, entry(tmp_path / "link", "deny"))),
    ):
        with pytest.raises(kind, match=words):
            await files.read_file(ReadFileParams(uri(tmp_path / "secret"), sandbox=profile))


async def test_a_sandbox_can_be_without_the_newest_system_call(
    files: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_text("x")
    monkeypatch.setattr("holdfast.engine.linux.openat2.OPENAT2", 1 << 20)  # there is no such call
    narrow = restricted(entry(tmp_path, "write"))
    assert await files.read_file(ReadFileParams(uri(tmp_path / "f"), sandbox=narrow)) == b"x"
    await files.write_file(
        WriteFileParams(uri(tmp_path / "d"), data_base64=FileContent(b"y"), sandbox=narrow)
    )
    assert (tmp_path / "d").read_text() == "y"


async def test_a_tree_is_searched_for_matching_links_once_in_a_while(
    files: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every operation would take as long as the tree is large."""
    searched: list[str] = []
    now = 1000.0

    entries = HostDisk.entries

    def search(disk: HostDisk, path: str) -> Sequence[tuple[str, Seen]]:
        searched.append(path)
        return entries(disk, path)

    monkeypatch.setattr(HostDisk, "entries", search)
    for module in ("policy.build", "profile.globs"):
        monkeypatch.setattr(f"holdfast.engine.sandbox.{module}.monotonic", lambda: now)
    (tmp_path / "d").mkdir()
    for name in ("a", "b.env", "d/c"):
        (tmp_path / name).write_text(name)
    (tmp_path / "d/x.env").symlink_to("c")
    pattern = {"type": "glob_pattern", "pattern": f"{tmp_path}/**/*.env"}
    profile = restricted(entry(tmp_path, "read"), {"path": pattern, "access": "deny"})

    async def read(name: str) -> bytes:
        return await files.read_file(ReadFileParams(uri(tmp_path / name), sandbox=profile))

    async def check(*denied: str) -> None:
        for name in ("a", "b.env", "d/c", "d/x.env"):
            if name in denied:
                with pytest.raises(InvalidRequest, match="Permission denied"):
                    await read(name)
            else:
                await read(name)

    await check("b.env", "d/c", "d/x.env")
    assert searched == [str(tmp_path), str(tmp_path / "d")]
    # A new link is not followed at once, and counts for its target with the next search.
    (tmp_path / "y.env").symlink_to("a")
    with pytest.raises(InvalidRequest, match="Permission denied"):
        await read("y.env")
    await check("b.env", "d/c", "d/x.env")
    now += 0.05
    await check("a", "b.env", "d/c", "d/x.env")
    # A link that is changed or gone is noticed at once.
    (tmp_path / "y.env").unlink()
    await check("b.env", "d/c", "d/x.env")
    assert len(searched) == 6


async def test_what_a_profile_names_through_a_link_is_found_through_it(
    files: LocalFileSystem, tmp_path: Path
) -> None:
    (tmp_path / "real/ws").mkdir(parents=True)
    (tmp_path / "real/ws/f").write_text("x")
    (tmp_path / "real/other").write_text("x")
    (tmp_path / "link").symlink_to("real")
    narrow = restricted(entry(tmp_path / "link/ws", "read"))
    for path in ("real/ws/f", "link/ws/f"):
        assert await files.read_file(ReadFileParams(uri(tmp_path / path), sandbox=narrow)) == b"x"
    for path in ("real/other", "link/other"):
        with pytest.raises(NotFound):
            await files.read_file(ReadFileParams(uri(tmp_path / path), sandbox=narrow))
    system = restricted(special("minimal", "read"))
    assert (await files.get_metadata(GetMetadataParams(uri("/bin/sh"), sandbox=system))).is_file


@pytest.mark.parametrize("follow", [True, False])
async def test_a_folder_that_nobody_can_make_is_an_error(
    files: LocalFileSystem, follow: bool
) -> None:
    """In `/proc` the kernel says that something is missing, although all is there."""
    for path in ("/proc/x", "/proc/x/y"):
        async with asyncio.timeout(5):
            with pytest.raises(NotFound):
                await files.create_directory(
                    CreateDirectoryParams(uri(path), follow_symlinks=follow)
                )
