"""Walks: their order and their limits."""

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import InvalidRequest
from holdfast.engine.files import walk as module
from holdfast.engine.files.walk import check_limits, walk
from holdfast.wire.protocol.fs import WalkOptions
from holdfast.wire.protocol.paths import PathUri


def options(**given: Any) -> WalkOptions:
    plain: dict[str, Any] = {
        "max_depth": 64,
        "max_directories": 100,
        "max_entries": 100,
        "follow_directory_symlinks": False,
    }
    return WalkOptions(**{**plain, **given})


def names(folder: Path, **given: Any) -> tuple[list[str], bool]:
    """Return the paths of a walk, relative to its start, and True if more was left out."""
    uri = PathUri.from_path(folder)
    found = walk(uri, options(**given))
    assert found.errors == []
    return [entry.uri.removeprefix(f"{uri}/") for entry in found.entries], found.truncated


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b/x", "a/deep/er", ".hidden/x"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("f", "a/g", "é %"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "a" / "up").symlink_to("..")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.mark.requirement("fs.walk.order")
def test_a_walk_is_breadth_first_and_sorted(tree: Path) -> None:
    first = [".hidden", "a", "b", "f", "%C3%A9%20%25"]
    second = [".hidden/x", "a/deep", "a/g", "b/x"]
    assert names(tree) == ([*first, *second, "a/deep/er"], False)
    assert names(tree, max_depth=1) == (first + second, False)
    assert names(tree, max_depth=0) == (first, False)


@pytest.mark.requirement("fs.walk.links")
def test_links_to_folders_are_followed_on_request_and_each_folder_is_entered_once(
    tree: Path,
) -> None:
    found, truncated = names(tree, follow_directory_symlinks=True)
    assert not truncated
    assert "link" in found
    assert "a/up" in found
    assert not [name for name in found if name.startswith(("link/", "a/up/"))]


@pytest.mark.requirement("fs.walk.hidden")
def test_hidden_folders_are_listed_but_not_entered_on_request(tree: Path) -> None:
    found, _ = names(tree, prune_hidden_directories=True)
    assert ".hidden" in found
    assert ".hidden/x" not in found


@pytest.mark.requirement("fs.walk.max-directories")
def test_folders_beyond_the_limit_are_listed_but_not_entered(tree: Path) -> None:
    found, truncated = names(tree, max_directories=2)
    assert truncated
    assert found[-1] == ".hidden/x"
    assert "b" in found


@pytest.mark.requirement("fs.walk.max-entries")
def test_names_that_are_not_listed_count_too(tmp_path: Path) -> None:
    for name in ("1", "2", "3"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "4").touch()
    assert names(tmp_path, max_entries=4) == (["4"], False)
    assert names(tmp_path, max_entries=3) == ([], True)


@pytest.mark.requirement("fs.walk.budget")
def test_an_answer_that_is_full_ends_the_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("1", "2", "3"):
        (tmp_path / name).touch()
    cost = module.ITEM_COST + len(str(PathUri.from_path(tmp_path / "1")))
    monkeypatch.setattr(module, "BUDGET", 2 * cost)
    assert names(tmp_path) == (["1", "2"], True)


@pytest.mark.requirement("fs.walk.errors")
def test_a_name_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff")).touch()
    found = walk(PathUri.from_path(tmp_path), options())
    assert found.entries == []
    (error,) = found.errors
    assert str(error.path).endswith("/bad%EF%BF%BD")
    assert error.message == "No such file or directory (os error 2)"


@pytest.mark.requirement("fs.walk.root")
def test_what_is_no_folder_has_nothing_below_it(tree: Path) -> None:
    for name in ("f", "link", "pipe"):
        assert names(tree / name) == ([], False)
    with pytest.raises(FileNotFoundError):
        names(tree / "missing")


@pytest.mark.requirement("fs.walk.limits")
@pytest.mark.parametrize("limit", ["max_directories", "max_entries"])
def test_no_limit_may_be_zero(limit: str) -> None:
    with pytest.raises(InvalidRequest, match="must be greater than zero"):
        check_limits(options(**{limit: 0}))


@pytest.mark.requirement("fs.walk.limits")
@pytest.mark.parametrize(
    "given", [{"max_depth": 65}, {"max_directories": 10_001}, {"max_entries": 50_001}]
)
def test_no_limit_may_be_above_its_maximum(given: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest, match="exceed maximums: depth=64, directories=10000"):
        check_limits(options(**given))
