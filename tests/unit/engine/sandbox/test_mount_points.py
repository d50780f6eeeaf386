"""Directories to mount on: made, shared, and gone afterwards, on a real disk."""

import fcntl
import os
import stat
from pathlib import Path

import pytest

from holdfast.engine.sandbox.bubblewrap.mount_points import MountPoints


@pytest.fixture
def targets() -> MountPoints:
    return MountPoints()


def make(targets: MountPoints, *paths: Path) -> list[str]:
    """As for a sandbox that needs them."""
    targets.reserve([(str(path), "directory") for path in paths])
    assert all(path.is_dir() for path in paths)
    return [str(path) for path in paths]


def test_what_was_made_is_removed(targets: MountPoints, tmp_path: Path) -> None:
    held = make(targets, tmp_path / ".git", tmp_path / ".codex")

    targets.release(held)

    assert os.listdir(tmp_path) == []
    assert len(targets) == 0


def test_a_file_is_removed_too(targets: MountPoints, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    targets.reserve([(str(path), "file")])
    assert path.read_bytes() == b""

    targets.release([str(path)])

    assert not path.exists()


def test_what_was_there_before_stays(targets: MountPoints, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    held = make(targets, tmp_path / ".git")

    targets.release(held)

    assert (tmp_path / ".git").is_dir()


def test_what_has_come_to_hold_something_stays(targets: MountPoints, tmp_path: Path) -> None:
    held = make(targets, tmp_path / ".git")
    (tmp_path / ".git" / "config").write_text("of somebody else")

    targets.release(held)

    assert (tmp_path / ".git" / "config").exists()


def test_another_one_in_its_place_stays(targets: MountPoints, tmp_path: Path) -> None:
    held = make(targets, tmp_path / ".git")
    (tmp_path / ".git").rename(tmp_path / "moved")
    (tmp_path / ".git").mkdir()

    targets.release(held)

    assert (tmp_path / ".git").is_dir()


def test_the_last_user_removes_it(targets: MountPoints, tmp_path: Path) -> None:
    first = make(targets, tmp_path / ".git")
    second = make(targets, tmp_path / ".git")

    targets.release(first)
    assert (tmp_path / ".git").is_dir()
    targets.release(second)

    assert not (tmp_path / ".git").exists()


def test_a_place_stays_while_a_sandbox_that_saw_it_is_planned(
    targets: MountPoints, tmp_path: Path
) -> None:
    first = make(targets, tmp_path / ".git")
    with targets.planning():
        targets.release(first)
        assert (tmp_path / ".git").is_dir()
        make(targets, tmp_path / ".git")
    assert (tmp_path / ".git").is_dir()

    targets.release(first)

    assert not (tmp_path / ".git").exists()


def test_a_place_that_only_a_plan_kept_goes_with_the_plan(
    targets: MountPoints, tmp_path: Path
) -> None:
    first = make(targets, tmp_path / ".git")
    with targets.planning():
        targets.release(first)

    assert not (tmp_path / ".git").exists()
    assert len(targets) == 0


def test_with_a_place_that_cannot_be_made_nothing_is_reserved(
    targets: MountPoints, tmp_path: Path
) -> None:
    good, bad = str(tmp_path / ".codex"), str(tmp_path / "missing" / ".git")

    with pytest.raises(FileNotFoundError):
        targets.reserve([(good, "directory"), (bad, "directory")])

    assert os.listdir(tmp_path) == []
    assert len(targets) == 0


def test_nothing_is_made_behind_a_link(targets: MountPoints, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "sub").symlink_to("outside")

    with pytest.raises(NotADirectoryError):
        targets.reserve([(str(tmp_path / "sub" / "missing"), "file")])

    assert os.listdir(tmp_path / "outside") == []


def test_a_place_is_removed_from_a_folder_that_was_renamed(
    targets: MountPoints, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    held = make(targets, tmp_path / "sub" / ".git")
    (tmp_path / "sub").rename(tmp_path / "other")
    (tmp_path / "sub" / ".git").mkdir(parents=True)

    targets.release(held)

    assert os.listdir(tmp_path / "other") == []
    assert os.listdir(tmp_path / "sub") == [".git"]


def test_a_place_in_a_folder_that_its_owner_has_closed_is_made_and_removed(
    targets: MountPoints, tmp_path: Path
) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(0o555)

    held = make(targets, folder / ".git")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o555
    targets.release(held)

    assert os.listdir(folder) == []
    assert stat.S_IMODE(folder.stat().st_mode) == 0o555


def test_a_place_that_others_are_about_to_remove_is_not_relied_on(
    targets: MountPoints, tmp_path: Path
) -> None:
    path = tmp_path / ".git"
    path.mkdir()
    other = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            targets.reserve([(str(path), "directory")])
    finally:
        os.close(other)

    assert len(targets) == 0


def test_a_place_that_another_server_uses_stays(targets: MountPoints, tmp_path: Path) -> None:
    held = make(targets, tmp_path / ".git")
    other = os.open(tmp_path / ".git", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_SH)

    targets.release(held)
    os.close(other)

    assert (tmp_path / ".git").is_dir()


def test_a_link_in_its_place_is_not_followed(targets: MountPoints, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".git").symlink_to("elsewhere")

    with pytest.raises(OSError, match="symbolic links"):
        targets.reserve([(str(tmp_path / ".git"), "directory")])

    assert sorted(os.listdir(tmp_path)) == [".git", "elsewhere"]


def marks_are_kept(folder: Path) -> bool:
    try:
        os.setxattr(folder, "user.holdfast.trial", b"")
    except OSError:
        return False
    return True


@pytest.mark.requirement("security.sandbox.places")
def test_a_place_that_a_killed_server_left_is_removed_after_its_next_use(tmp_path: Path) -> None:
    killed, next_one = MountPoints(), MountPoints()
    make(killed, tmp_path / ".git")
    # Its locks go with it.
    for point in killed._points.values():
        point._close()

    next_one.release(make(next_one, tmp_path / ".git"))

    assert (tmp_path / ".git").exists() is not marks_are_kept(tmp_path)


def test_the_last_of_two_servers_removes_it(tmp_path: Path) -> None:
    one, two = MountPoints(), MountPoints()
    first = make(one, tmp_path / ".git")
    second = make(two, tmp_path / ".git")

    one.release(first)
    assert (tmp_path / ".git").is_dir()
    two.release(second)

    assert (tmp_path / ".git").exists() is not marks_are_kept(tmp_path)
