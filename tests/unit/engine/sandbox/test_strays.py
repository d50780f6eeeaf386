"""What a launcher made in the wrong directory is removed, and nothing else."""

import fcntl
import os
import time
from pathlib import Path

import pytest

from holdfast.engine.sandbox.bubblewrap.mount_check import Planned, led_elsewhere, read_table
from holdfast.engine.sandbox.bubblewrap.strays import remove_strays


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace with another one inside, and a directory outside of it."""
    base = tmp_path.resolve()
    (base / "work/sub/.git").mkdir(parents=True)
    (base / "outside/.git").mkdir(parents=True)
    return base / "work"


def plan(work: Path) -> list[Planned]:
    return [Planned(f"{work}/sub", "write"), Planned(f"{work}/sub/.git", "mask")]


def just_now() -> float:
    return time.time() - 5


@pytest.mark.requirement("security.sandbox.strays")
@pytest.mark.parametrize(
    "says", ["../outside", "/oldroot{}", "../../../../../../../../../../oldroot{}", "chain"]
)
def test_it_is_found_by_the_link_that_led_there(work: Path, says: str) -> None:
    outside = work.parent / "outside"
    (work.parent / "chain").symlink_to("outside")
    (work / "swap").symlink_to(says.format(outside) if says != "chain" else "../chain")
    remove_strays(plan(work), just_now())
    assert os.listdir(outside) == []
    assert (work / "sub/.git").exists()


def test_a_file_and_the_way_to_it_are_removed_too(work: Path) -> None:
    outside = work.parent / "outside"
    (outside / "a/b").mkdir(parents=True)
    (outside / "a/b/key").touch(0o444)
    (work / "swap").symlink_to(outside)
    remove_strays([Planned(f"{work}/sub/a/b/key", "mask")], just_now())
    assert os.listdir(outside) == [".git"]


def test_a_directory_in_which_nothing_was_renamed_is_not_listed(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "swap").symlink_to("../outside")
    listed: list[str] = []
    scandir = os.scandir

    def scan(path: str) -> "os._ScandirIterator[str]":
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    remove_strays(plan(work), time.time() + 60)
    assert listed == []

    # Even if its owner sets its times back.
    (work / "sub").rename(work / "aside")
    (work / "aside").rename(work / "sub")
    os.utime(work, (1, 1))
    remove_strays(plan(work), just_now())
    assert str(work) in listed
    assert os.listdir(work.parent / "outside") == []


def test_it_is_found_by_a_link_that_is_older_than_the_start(work: Path) -> None:
    """The policy was made before somebody put the link there, and bubblewrap began after it."""
    outside = work.parent / "outside"
    (outside / ".git").rmdir()
    (work / "sub").rename(work / "aside")
    (work / "sub").symlink_to("../outside")
    while time.time() < work.stat().st_ctime + 0.05:
        pass
    since = time.time()
    (outside / ".git").mkdir()
    remove_strays(plan(work), since)
    assert os.listdir(outside) == []


@pytest.mark.requirement("security.sandbox.strays")
def test_it_is_found_by_what_was_mounted(work: Path) -> None:
    led = [(f"{work}/sub", str(work.parent / "outside"))]
    remove_strays(plan(work), just_now(), led)
    assert os.listdir(work.parent / "outside") == []


def test_what_was_mounted_tells_where_it_is() -> None:
    host = read_table("1 0 8:1 / / rw - ext4 d rw\n2 1 8:2 / /home rw - ext4 d rw\n")
    inside = read_table(
        "1 0 8:1 / / ro - ext4 d rw\n2 1 8:2 /me/out /home/me/w/sub rw - ext4 d rw\n"
    )
    planned = [Planned("/home/me/w/sub", "write"), Planned("/home/me/w/sub/.git", "mask")]
    assert led_elsewhere(planned, inside, host) == [("/home/me/w/sub", "/home/me/out")]


@pytest.mark.requirement("security.sandbox.strays")
def test_nothing_else_is_removed(work: Path) -> None:
    outside = work.parent / "outside"
    (work / "swap").symlink_to(outside)

    remove_strays(plan(work), time.time() + 60)  # it was there before
    assert (outside / ".git").exists()

    fd = os.open(outside / ".git", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)  # as for a sandbox there
    remove_strays(plan(work), just_now())
    os.close(fd)
    assert (outside / ".git").exists()

    (outside / ".git/config").touch()
    remove_strays(plan(work), just_now())
    assert (outside / ".git/config").exists()


def test_a_file_that_somebody_is_about_to_write_stays(work: Path) -> None:
    file = work.parent / "outside/new.env"
    file.touch(0o600)
    (work / "swap").symlink_to("../outside")
    remove_strays([Planned(f"{work}/sub/new.env", "mask")], just_now())
    assert file.exists()


def test_what_is_planned_is_never_removed_by_another_name(work: Path) -> None:
    (work / "alias").symlink_to("sub")
    remove_strays(plan(work), just_now())
    assert (work / "sub/.git").exists()
