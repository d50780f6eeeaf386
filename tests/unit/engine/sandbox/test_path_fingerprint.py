"""Answers of the disk, asked again in few calls: certain only while nothing has changed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.engine.sandbox.policy.disk import HOST, PathFingerprint, RememberedDisk, trace


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """Folders inside of each other, a file, a link to a folder; `none` is missing."""
    here = tmp_path.resolve() / "top"
    (here / "a/b").mkdir(parents=True)
    (here / "other/b").mkdir(parents=True)
    (here / "file").write_text("x")
    (here / "link").symlink_to("a")
    return here


def asked(top: Path) -> RememberedDisk:
    """A disk that was asked where some paths lead."""
    memory = RememberedDisk(HOST)
    for name in ("a/b", "file", "link/b", "none/x"):
        trace(str(top / name), memory)
    return memory


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)


def relink(top: Path) -> None:
    """Another folder of the same name is reached by a link now."""
    top.rename(top.with_name("moved"))
    top.symlink_to("moved")


def replace(name: str, make: Callable[[Path], None]) -> Callable[[Path], None]:
    """Put something else in the place of what is there, or of nothing."""

    def change(top: Path) -> None:
        path = top / name
        if path.is_dir() and not path.is_symlink():
            path.rename(top / "aside")
        else:
            path.unlink(missing_ok=True)
        make(path)

    return change


CHANGES: dict[str, Callable[[Path], None]] = {
    "a folder is a link now": replace("a", lambda path: path.symlink_to("aside")),
    "so is one above all of them": relink,
    "a folder is a file now": replace("a/b", Path.touch),
    "a folder is gone": lambda top: (top / "a/b").rmdir(),
    "what was missing is there": replace("none", Path.mkdir),
    "a link that leads nowhere is there": replace("none", lambda path: path.symlink_to("nowhere")),
    "a file is a folder now": replace("file", Path.mkdir),
    "a link leads elsewhere": replace("link", lambda path: path.symlink_to("other")),
    "a link is a folder now": replace("link", Path.mkdir),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("has_call", [True, False], ids=["openat2", "without"])
def test_answers_hold_until_a_path_is_something_else(
    top: Path, change: Callable[[Path], None], has_call: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_call:
        monkeypatch.setattr("holdfast.engine.linux.openat2.OPENAT2", -1)
    memory = asked(top)
    assert memory.still_true()
    assert memory.still_true()

    change(top)

    assert not memory.still_true()


def test_answers_hold_where_one_thing_takes_the_place_of_its_like(top: Path) -> None:
    memory = asked(top)
    assert memory.still_true()

    swap(top / "a", top / "other")

    assert memory.still_true()


def test_an_answer_that_comes_later_is_asked_again_too(top: Path) -> None:
    memory = asked(top)
    assert memory.still_true()
    assert memory.kind(str(top / "later")) is None
    assert memory.still_true()

    (top / "later").mkdir()

    assert not memory.still_true()


def test_names_that_no_file_can_have_stay_missing(top: Path) -> None:
    memory = asked(top)
    for name in ("nul\0byte", "half\ud800a pair"):
        assert memory.kind(f"{top}/{name}") is None

    assert memory.still_true()


def test_one_call_stands_for_a_folder_and_all_above_it(top: Path) -> None:
    kinds = {"/": "directory", str(top): "directory", str(top / "a"): "directory"}
    kinds[str(top / "file")] = "file"
    again = PathFingerprint(kinds, {})

    assert again.still_true()
    assert dict(again.rest) == {str(top / "file"): "file"}

    relink(top)

    assert not again.still_true()
