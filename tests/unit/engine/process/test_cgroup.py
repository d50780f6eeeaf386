"""Cgroups are made, prepared for and removed again, wholly or not at all."""

import os
from os import getpid
from pathlib import Path

import pytest

from holdfast.engine.linux.cgroupfs import remove_cgroups
from holdfast.engine.process.limits.cgroup import Cgroups, CommandCgroup, prepare
from holdfast.engine.process.limits.cgroup_discovery import CgroupLocation
from holdfast.events import LimitKind
from tests.unit.engine.process.fake_cgroups import FakeTree


def rest() -> str:
    """Return the cgroup of the server itself."""
    return f"holdfast-{getpid()}-self"


BOTH = ("memory", "pids")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTree:
    """This process and a child of it are alone in `mine`."""
    tree = FakeTree(tmp_path, monkeypatch)
    tree.add("mine")
    tree.be_in("mine")
    tree.enter("mine", 901, parent=getpid())
    return tree


@pytest.fixture
def location(tree: FakeTree) -> CgroupLocation:
    return CgroupLocation(folder=str(tree.top / "mine"), moves=True, controllers=BOTH)


@pytest.fixture
def command(tree: FakeTree) -> CommandCgroup:
    return CommandCgroup(str(tree.top / "mine" / "command"))


def is_as_before(tree: FakeTree) -> bool:
    return (tree.below("mine"), sorted(tree.processes("mine")), tree.enabled("mine")) == (
        set(),
        sorted([getpid(), 901]),
        [],
    )


# -- preparing


def test_our_processes_make_room(tree: FakeTree, location: CgroupLocation) -> None:
    assert prepare(location, proc=str(tree.proc)) == location

    assert tree.below("mine") == {rest()}
    assert sorted(tree.processes(f"mine/{rest()}")) == sorted([getpid(), 901])
    assert tree.enabled("mine") == ["memory", "pids"]


def test_nobody_moves_where_that_is_not_needed(tree: FakeTree) -> None:
    location = CgroupLocation(folder=str(tree.add("free")), controllers=BOTH)

    assert prepare(location, proc=str(tree.proc)) == location

    assert tree.below("free") == set()
    assert tree.enabled("free") == ["memory", "pids"]
    assert is_as_before(tree)


def test_what_cannot_be_prepared_wholly_is_left_as_it_was(
    tree: FakeTree, location: CgroupLocation
) -> None:
    tree.refused = {"cgroup.subtree_control"}

    found = prepare(location, proc=str(tree.proc))

    assert found.folder is None
    assert found.problem == f"the cgroup {location.folder} cannot be divided: Permission denied"
    assert is_as_before(tree)


def test_a_process_of_somebody_else_is_never_moved(
    tree: FakeTree, location: CgroupLocation
) -> None:
    tree.enter("mine", 900)

    found = prepare(location, proc=str(tree.proc))

    assert "cannot be divided: others start processes in it" in found.problem
    assert sorted(tree.processes("mine")) == sorted([getpid(), 900, 901])
    assert tree.below("mine") == set()


def test_where_there_is_no_place_nothing_is_done() -> None:
    nowhere = CgroupLocation(problem="no cgroups", advice="get some")

    assert Cgroups(nowhere).location() is nowhere


def test_what_the_killed_have_left_is_removed(tree: FakeTree, location: CgroupLocation) -> None:
    of_the_dead = ("holdfast-55-3", "holdfast-55-self", f"holdfast-{getpid()}-1", rest())
    for name in (*of_the_dead, "holdfast-901-1", "another-55-1"):
        tree.add(f"mine/{name}")

    prepare(location, proc=str(tree.proc))

    assert tree.below("mine") == {rest(), "holdfast-901-1", "another-55-1"}


# -- commands


def test_each_command_has_one_of_its_own(tree: FakeTree, location: CgroupLocation) -> None:
    cgroups = Cgroups(location, proc=str(tree.proc))

    made = [cgroups.make().folder for _ in range(2)]

    assert [Path(folder).name for folder in made] == [
        f"holdfast-{getpid()}-1",
        f"holdfast-{getpid()}-2",
    ]


def test_the_kernel_is_told_the_limits(tree: FakeTree, command: CommandCgroup) -> None:
    folder = Path(command.folder)
    (folder / "memory.swap.max").write_text("max")

    command.limit_memory(1 << 30)
    command.limit_processes(7, 1)
    command.admit(901)

    told = {name: (folder / name).read_text() for name in ("memory.max", "memory.swap.max")}
    assert told == {"memory.max": str(1 << 30), "memory.swap.max": "0"}
    assert (folder / "memory.oom.group").read_text() == "1"
    assert (folder / "pids.max").read_text() == "8"
    assert tree.processes("mine/command") == [901]


@pytest.mark.usefixtures("tree")
def test_a_kernel_that_does_not_swap_need_not_be_told(command: CommandCgroup) -> None:
    command.limit_memory(1 << 30)

    assert not (Path(command.folder) / "memory.swap.max").exists()


@pytest.mark.usefixtures("tree")
def test_the_limit_that_was_met_is_told_by_the_kernel(command: CommandCgroup) -> None:
    folder = Path(command.folder)
    command.limit_memory(1000)
    command.limit_processes(7)
    assert command.exceeded() is None
    (folder / "pids.events").write_text("max 3\n")
    assert command.exceeded() == (LimitKind.PROCESSES, "ran into its limit of 7 processes")
    (folder / "memory.events").write_text("max 9\noom 1\noom_kill 4\noom_group_kill 1\n")
    assert command.exceeded() == (LimitKind.MEMORY, "used more than 1000 bytes of memory")


@pytest.mark.usefixtures("tree")
def test_a_machine_without_memory_is_no_limit_of_the_command(command: CommandCgroup) -> None:
    command.limit_memory(1000)
    (Path(command.folder) / "memory.events").write_text("max 0\noom 0\noom_kill 1\n")

    assert command.exceeded() is None


def test_it_is_removed_with_the_command(tree: FakeTree, command: CommandCgroup) -> None:
    command.release()
    command.release()

    assert tree.below("mine") == set()


def test_without_a_loop_one_that_holds_something_waits_for_the_end(
    tree: FakeTree, command: CommandCgroup
) -> None:
    tree.enter("mine/command", 901)

    command.release()

    assert tree.below("mine") == {"command"}


# -- the end


def test_at_the_end_all_is_as_before(tree: FakeTree, location: CgroupLocation) -> None:
    cgroups = Cgroups(location, proc=str(tree.proc))
    cgroups.make()
    cgroups.make()
    tree.be_in(f"mine/{rest()}")  # the kernel says so by now
    tree._put(tree.top, 901)  # it has ended

    remove_cgroups(getpid(), str(tree.proc))

    assert tree.below("mine") == set()
    assert tree.processes("mine") == [getpid()]
    assert tree.enabled("mine") == []


def test_where_somebody_else_divides_the_same_cgroup_that_goes_on(
    tree: FakeTree, location: CgroupLocation
) -> None:
    Cgroups(location, proc=str(tree.proc)).make()
    tree.add("mine/holdfast-902-1")
    tree.be_in(f"mine/{rest()}")
    tree._put(tree.top, 901)

    remove_cgroups(getpid(), str(tree.proc))

    assert tree.below("mine") == {rest(), "holdfast-902-1"}
    assert tree.enabled("mine") == ["memory", "pids"]


def test_a_cgroup_that_others_still_use_is_not_left(
    tree: FakeTree, location: CgroupLocation
) -> None:
    prepare(location, proc=str(tree.proc))
    tree.be_in(f"mine/{rest()}")

    remove_cgroups(getpid(), str(tree.proc))

    assert sorted(tree.processes(f"mine/{rest()}")) == sorted([getpid(), 901])


def test_one_that_the_kernel_keeps_is_left_to_who_made_the_rest(
    tree: FakeTree, location: CgroupLocation
) -> None:
    prepare(location, proc=str(tree.proc))
    tree.be_in(f"mine/{rest()}")
    tree._put(tree.top, 901)
    tree.refused = {"cgroup.procs"}

    remove_cgroups(getpid(), str(tree.proc))

    assert tree.below("mine") == {rest()}


def test_a_guardian_finds_what_is_beside_its_own_cgroup(tree: FakeTree) -> None:
    tree.add("unit")
    for name in ("main", "holdfast-77-1", "holdfast-77-2", "holdfast-78-1"):
        tree.add(f"unit/{name}")
    tree.enter("unit/holdfast-77-2", 903)
    tree.be_in("unit/main")

    remove_cgroups(77, str(tree.proc))

    assert tree.below("unit") == {"main", "holdfast-77-2", "holdfast-78-1"}


def test_a_guardian_in_the_first_cgroup_of_all_looks_there(tree: FakeTree) -> None:
    tree.add("holdfast-77-1")
    tree.be_in("")

    remove_cgroups(77, str(tree.proc))

    assert tree.below("") == {"mine"}


def test_without_cgroups_there_is_nothing_to_remove(tmp_path: Path) -> None:
    remove_cgroups(os.getpid(), str(tmp_path))
