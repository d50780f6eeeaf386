"""A file that is replaced is the old one or the new one, and looks like the old one did."""

import errno
import os
import stat
from pathlib import Path

import pytest

from holdfast.base.errors import InvalidRequest
from holdfast.engine.files.atomic_write import find_target, find_target_nofollow, start_writing


def replace(path: Path, data: bytes, *, mode: int | None = None) -> bool:
    """Write a file; whether it was done in place."""
    writer = start_writing(find_target(str(path)))
    writer.write(data, 0)
    writer.commit(mode)
    return writer.in_place


@pytest.fixture(params=["nameless", "named"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with and without files that have no name."""
    if request.param == "named":
        real_open = os.open

        def refuse_nameless(path: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "not here")
            return real_open(path, flags, *rest, dir_fd=dir_fd)

        monkeypatch.setattr(os, "open", refuse_nameless)


@pytest.mark.usefixtures("either_way")
def test_the_old_content_is_there_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    writer = start_writing(find_target(str(path)))
    writer.write(b"new", 0)
    assert path.read_bytes() == b"old"
    writer.commit()
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.usefixtures("either_way")
def test_what_is_discarded_leaves_no_trace(tmp_path: Path) -> None:
    writer = start_writing(find_target(str(tmp_path / "file")))
    writer.write(b"new", 0)
    writer.discard()
    assert os.listdir(tmp_path) == []


@pytest.mark.requirement("fs.write")
@pytest.mark.usefixtures("either_way")
def test_a_new_file_appears_with_its_content_and_the_usual_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    umask = os.umask(0o027)
    try:
        assert not replace(path, b"new")
    finally:
        os.umask(umask)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.usefixtures("either_way")
def test_a_file_that_appears_meanwhile_is_replaced_too(tmp_path: Path) -> None:
    path = tmp_path / "file"
    writer = start_writing(find_target(str(path)))
    writer.write(b"ours", 0)
    path.write_bytes(b"theirs")
    writer.commit()
    assert path.read_bytes() == b"ours"
    assert os.listdir(tmp_path) == ["file"]


def test_mode_and_owner_stay(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o751)
    before = path.stat()
    assert not replace(path, b"new")
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode,
        before.st_uid,
        before.st_gid,
    )
    assert after.st_ino != before.st_ino


def test_a_file_with_two_names_is_written_in_place(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(b"old content")
    os.link(path, other)
    assert replace(path, b"new")
    assert other.read_bytes() == b"new"


def test_a_file_with_attributes_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    try:
        os.setxattr(path, "user.note", b"kept")
    except OSError:
        pytest.skip("no attributes on this file system")
    assert replace(path, b"new")
    assert os.getxattr(path, "user.note") == b"kept"


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "file", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to("folder/file")
    assert not replace(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


@pytest.mark.requirement("fs.open.replace.target")
@pytest.mark.parametrize("text", ["missing", "folder/missing", "{root}/folder/missing", "second"])
def test_a_link_to_nowhere_is_followed(tmp_path: Path, text: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "second").symlink_to("folder/last")
    link = tmp_path / "link"
    link.symlink_to(text.format(root=tmp_path))
    replace(link, b"new")
    assert link.is_symlink()
    assert link.read_bytes() == b"new"


def test_a_link_to_a_folder_that_is_missing_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("missing/file")
    with pytest.raises(FileNotFoundError):
        find_target(str(tmp_path / "link"))


def test_a_link_to_a_missing_name_with_a_slash_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("missing/")
    with pytest.raises(IsADirectoryError):
        find_target(str(tmp_path / "link"))


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="links") as caught:
        find_target(str(tmp_path / "a"))
    assert caught.value.errno == errno.ELOOP


@pytest.mark.requirement("fs.open.replace.target")
def test_a_fifo_that_nobody_reads_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="No such device") as caught:
        find_target(str(tmp_path / "fifo"))
    assert caught.value.errno == errno.ENXIO


def test_a_fifo_with_a_reader_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert replace(tmp_path / "fifo", b"news")
        assert os.read(reader, 100) == b"news"
    finally:
        os.close(reader)


def test_a_device_is_written_to() -> None:
    assert replace(Path("/dev/null"), b"nothing")


def test_no_link_is_followed_if_none_may_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").symlink_to(".")
    with pytest.raises(OSError, match="links") as caught:
        find_target_nofollow(str(tmp_path / "link"))
    assert caught.value.errno == errno.ELOOP
    with pytest.raises(NotADirectoryError):
        find_target_nofollow(str(tmp_path / "folder" / "file"))
    with pytest.raises(InvalidRequest, match="path is not a regular file"):
        find_target_nofollow("/dev/null")
    with pytest.raises(InvalidRequest, match="path must name an entry"):
        find_target_nofollow("/")


def test_an_entry_that_cannot_be_renamed_over_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old and long")
    before = path.stat().st_ino
    writer = start_writing(find_target(str(path)))
    writer.write(b"new", 0)

    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(errno.EPERM, "sticky folder")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        writer.commit(0o600)
    assert path.read_bytes() == b"new"
    assert path.stat().st_ino == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    target = find_target(str(path))
    real_open = os.open

    def full(path: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.ENOSPC, "full")
        return real_open(path, flags, *rest, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with pytest.raises(OSError, match="full"):
            start_writing(target)
    assert path.read_bytes() == b"old"
