"""Location of the cgroups of commands, on machines of all kinds."""

import os
from os import getpid
from pathlib import Path

import pytest

from holdfast.engine.process.limits.cgroup_discovery import CgroupLocation, find_cgroup_location
from tests.unit.engine.process.fake_cgroups import FakeTree

ALONE = "start it alone in a cgroup that its user may write to"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTree:
    return FakeTree(tmp_path, monkeypatch)


def found(tree: FakeTree, *, systemd: bool = False, uid: int = 1000) -> CgroupLocation:
    return find_cgroup_location(getpid(), proc=str(tree.proc), systemd=systemd, uid=uid)


def problem(tree: FakeTree) -> str:
    location = found(tree)
    assert (location.folder, location.controllers) == (None, ())
    return location.problem


def test_a_cgroup_that_holds_only_us_is_left_to_be_divided(tree: FakeTree) -> None:
    tree.add("mine")
    own = tree.be_in("mine")
    tree.enter("mine", 901, parent=getpid())
    tree.enter("mine", 902, parent=901)

    location = found(tree)

    assert location == CgroupLocation(folder=str(own), moves=True, controllers=("memory", "pids"))
    assert location.why_not("memory") is None


def test_the_first_cgroup_of_all_need_not_be_left(tree: FakeTree) -> None:
    own = tree.be_in("")
    tree.enter("", 900, name="kthreadd")

    assert found(tree) == CgroupLocation(folder=str(own), controllers=("memory", "pids"))


def test_a_process_that_is_not_ours_is_named(tree: FakeTree) -> None:
    tree.add("mine")
    tree.be_in("mine")
    tree.enter("mine", 900, name="bash")

    reason = "the cgroup /mine also holds process 900 (bash), which is not its own"
    assert problem(tree) == reason
    assert found(tree).why_not("memory") == f"{reason}; {ALONE}"


def test_a_process_that_cannot_be_seen_is_not_ours(tree: FakeTree) -> None:
    tree.add("mine")
    own = tree.be_in("mine")
    (own / "cgroup.procs").write_text(f"0\n{getpid()}")

    assert "also holds a process from elsewhere" in problem(tree)


def test_a_process_that_has_just_ended_is_no_stranger(tree: FakeTree) -> None:
    tree.add("mine")
    own = tree.be_in("mine")
    (own / "cgroup.procs").write_text(f"{getpid()}\n902")

    assert found(tree).folder == str(own)


def test_a_part_of_what_was_delegated_leaves_the_rest_for_commands(tree: FakeTree) -> None:
    above = tree.add("unit")
    tree.add("unit/main", "")
    tree.be_in("unit/main")

    assert found(tree) == CgroupLocation(folder=str(above), controllers=("memory", "pids"))


def test_a_cgroup_above_that_holds_processes_is_not_divided(tree: FakeTree) -> None:
    tree.add("unit")
    tree.add("unit/main", "")
    tree.enter("unit", 900)
    tree.be_in("unit/main")

    assert problem(tree) == "the cgroup /unit/main lacks the controller memory and pids"


def test_one_controller_is_better_than_none(tree: FakeTree) -> None:
    tree.add("mine", "cpu pids")
    tree.be_in("mine")

    location = found(tree)

    assert location.controllers == ("pids",)
    assert location.why_not("pids") is None
    why = location.why_not("memory")
    assert why is not None
    assert why.startswith("the cgroup /mine lacks the controller memory; enable it in")


def test_what_cannot_be_written_is_not_delegated(tree: FakeTree) -> None:
    tree.add("mine")
    own = tree.be_in("mine")
    (own / "cgroup.subtree_control").unlink()  # root may write whatever is there

    assert problem(tree) == "the cgroup /mine is not delegated to this process"


@pytest.mark.parametrize(
    ("uid", "command"),
    [(0, "systemd-run --scope"), (1000, "systemd-run --user --scope")],
    ids=["root", "user"],
)
def test_systemd_marks_what_it_leaves_to_others(
    tree: FakeTree, monkeypatch: pytest.MonkeyPatch, uid: int, command: str
) -> None:
    tree.add("mine")
    own = tree.be_in("mine")
    marks: dict[tuple[str, str], bytes] = {}

    def mark(path: str, name: str) -> bytes:
        try:
            return marks[path, name]
        except KeyError:
            raise OSError from None

    monkeypatch.setattr(os, "getxattr", mark)
    monkeypatch.setenv("PATH", "")
    location = found(tree, systemd=True, uid=uid)
    assert location.folder is None
    assert location.advice == f"start it with `{command} -p Delegate=yes holdfast …`"
    marks[str(own), "user.delegate"] = b"0"
    assert found(tree, systemd=True).folder is None
    marks[str(own), "user.delegate"] = b"1"
    assert found(tree, systemd=True).folder == str(own)


@pytest.mark.parametrize(
    ("unit", "asked"),
    [
        ("user@1000.service/app.slice/run.scope", "--user show --value -p Delegate -- run.scope"),
        ("system.slice/some.service", "show --value -p Delegate -- some.service"),
    ],
    ids=["user", "system"],
)
def test_without_a_mark_systemd_is_asked(
    tree: FakeTree, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unit: str, asked: str
) -> None:
    tree.add(unit)
    own = tree.be_in(unit)
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\n[ "$*" = "{asked}" ] && echo yes\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert found(tree, systemd=True).folder == str(own)
    systemctl.write_text("#!/bin/sh\necho no\n")
    assert found(tree, systemd=True).folder is None


def test_version_1_is_of_no_use(tree: FakeTree) -> None:
    tree.be_in("")
    tree.mount(kind="cgroup")
    assert problem(tree) == "no cgroups of version 2 are mounted"
    tree.mount()
    (tree.top / "cgroup.controllers").write_text("hugetlb\n")
    (tree.proc / "self" / "cgroup").write_text("9:pids:/\n4:cpu,memory:/x\n0::/\n")
    assert problem(tree) == "the controllers are those of cgroups of version 1"


def test_only_a_part_of_the_tree_may_be_mounted(tree: FakeTree) -> None:
    own = tree.add("mine")
    tree.be_in("mine")
    (tree.proc / "self" / "cgroup").write_text("0::/box/mine\n")
    tree.mount(root="/box")
    assert found(tree).folder == str(own)
    tree.mount(root="/elsewhere")
    assert problem(tree) == "its cgroup is outside the mounted part of the tree"


def test_a_cgroup_outside_of_the_namespace_cannot_be_seen(tree: FakeTree) -> None:
    (tree.proc / "self" / "cgroup").write_text("0::/../other\n")
    assert problem(tree) == "its cgroup is outside the mounted part of the tree"


def test_a_place_may_have_a_space_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a b").mkdir()
    tree = FakeTree(tmp_path / "a b", monkeypatch)
    tree.add("mine")
    own = tree.be_in("mine")

    assert found(tree).folder == str(own)


def test_to_look_changes_nothing(tree: FakeTree) -> None:
    tree.add("mine")
    tree.be_in("mine")
    before = {path: path.read_text() for path in tree.top.rglob("*.*") if path.is_file()}

    found(tree)

    assert before == {path: path.read_text() for path in tree.top.rglob("*.*") if path.is_file()}


def test_this_machine_can_be_looked_at() -> None:
    location = find_cgroup_location(os.getpid())

    assert (location.folder is None) == (location.controllers == ())
    assert location.controllers == ("memory", "pids") or location.why_not("memory")
