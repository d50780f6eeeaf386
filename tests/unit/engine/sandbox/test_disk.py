"""Questions to a real disk."""

import os
import subprocess
import sys
from pathlib import Path

from holdfast.engine.sandbox.policy.disk import HOST, RememberedDisk, trace


def test_a_disk_says_what_is_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    kinds = {"file": "file", "link": "link", "folder": "directory", "fifo": "other", "none": None}
    for name, kind in kinds.items():
        assert HOST.kind(str(tmp_path / name)) == kind
    del kinds["none"]
    assert dict(HOST.entries(str(tmp_path))) == kinds
    assert HOST.entries(str(tmp_path / "none")) == ()
    assert HOST.kind("/nul\0") is None
    assert HOST.target(str(tmp_path / "link")) == "file"
    assert HOST.target(str(tmp_path / "none")) == ""
    assert HOST.text(str(tmp_path / "file")) == "text"
    assert HOST.text(str(tmp_path / "folder")) == ""


def test_a_disk_knows_what_is_empty(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "full").write_text("x")
    (tmp_path / "twice").touch()
    os.link(tmp_path / "twice", tmp_path / "other")
    empty = [name for name in os.listdir(tmp_path) if HOST.is_empty(str(tmp_path / name))]
    assert sorted(empty) == ["empty", "folder"]
    assert not HOST.is_empty(str(tmp_path))
    assert not HOST.is_empty(str(tmp_path / "none"))


def test_a_link_leads_to_a_file_or_does_not(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, target in {"good": "file", "folder": ".", "lost": "none", "loop": "loop"}.items():
        (tmp_path / name).symlink_to(target)
    assert HOST.leads_to_file(str(tmp_path / "good"))
    assert not any(HOST.leads_to_file(str(tmp_path / n)) for n in ("folder", "lost", "loop"))


def test_a_directory_gives_new_files_its_group_or_does_not(tmp_path: Path) -> None:
    assert not HOST.sets_group(str(tmp_path))
    memory = RememberedDisk(HOST)
    assert not memory.sets_group(str(tmp_path))
    tmp_path.chmod(0o2755)
    assert HOST.sets_group(str(tmp_path))
    assert not memory.still_true()
    assert not HOST.sets_group(str(tmp_path / "none"))


def test_who_owns_a_directory_can_make_something_in_it(tmp_path: Path) -> None:
    assert HOST.can_create(str(tmp_path))
    tmp_path.chmod(0o500)
    assert HOST.can_create(str(tmp_path))
    assert not HOST.can_create(str(tmp_path / "none"))


def test_nobody_can_make_something_where_all_is_read_only(tmp_path: Path) -> None:
    """Not even the owner of a directory who may change its mode."""
    question = (
        "import sys; from holdfast.engine.sandbox.policy.disk import HOST;"
        "print(*[HOST.can_create(path) for path in sys.argv[1:]])"
    )
    (tmp_path / "closed").mkdir(mode=0o500)
    paths = [str(tmp_path), str(tmp_path / "closed")]
    outer = ["bwrap", "--ro-bind", "/", "/"]

    free, bound = (
        subprocess.check_output([*around, sys.executable, "-c", question, *paths], text=True)
        for around in ([], outer)
    )

    assert free.split() == ["True", "True"]
    assert bound.split() == ["False", "False"]


def test_a_path_is_followed_as_the_kernel_does(tmp_path: Path) -> None:
    top = Path(os.path.realpath(tmp_path))
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "file").touch()
    links = {
        "up": "a/b/../..",
        "rel": "a/b",
        "abs": str(top / "rel"),
        "to_file": "a/b/file",
        "root": "/",
        "dot": "./a/.",
    }
    for name, target in links.items():
        (top / name).symlink_to(target)
    for path in (
        "up/a",
        "rel/file",
        "abs/file",
        "abs",
        "to_file",
        "root",
        "dot",
        "a/b",
        "root/etc",
    ):
        found = trace(str(top / path), HOST)
        assert found.path == os.path.realpath(top / path)
        assert found.kind is not None
        assert found.missing is None
    assert trace("/", HOST).path == "/"


def test_a_path_that_ends_too_early_names_what_is_missing(tmp_path: Path) -> None:
    top = os.path.realpath(tmp_path)
    Path(top, "file").touch()
    Path(top, "lost").symlink_to("none/x")
    Path(top, "loop").symlink_to("loop")
    Path(top, "through").symlink_to("file/../x")
    Path(top, "back").symlink_to("file/..")
    assert trace(f"{top}/a/b", HOST)[:3] == (f"{top}/a/b", None, f"{top}/a")
    assert trace(f"{top}/file/b", HOST)[:3] == (f"{top}/file/b", None, f"{top}/file/b")
    assert trace(f"{top}/lost", HOST)[:3] == (f"{top}/none/x", None, f"{top}/none")
    assert trace(f"{top}/loop", HOST).kind is None
    assert trace(f"{top}/through", HOST).kind is None
    assert trace(f"{top}/back", HOST).kind is None
    assert trace(f"{top}/lost", HOST).itself == "none/x"
    assert trace(f"{top}/lost/y", HOST).itself is None


def test_answers_hold_until_the_disk_changes(tmp_path: Path) -> None:
    memory = RememberedDisk(HOST)
    file = tmp_path / "file"
    assert memory.kind(str(file)) is None
    assert memory.still_true()
    file.write_text("a")
    assert memory.kind(str(file)) is None  # as it was
    assert not memory.still_true()

    memory = RememberedDisk(HOST)
    assert memory.text(str(file)) == "a"
    file.write_text("b")
    assert memory.text(str(file)) == "a"
    assert not memory.still_true()
