"""Mounts do what the rules say, for any rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import CannotEnforce
from holdfast.engine.sandbox.bubblewrap.bwrap_arguments import MAX_EMPTY_FDS, MountTarget, plan
from holdfast.engine.sandbox.policy.policy import PROTECTED_NAMES, Policy, parent_of
from holdfast.engine.sandbox.profile.builtin import path_entry, special_entry
from holdfast.wire.protocol.sandbox import Access, FileEntry
from tests.unit.engine.sandbox.mounted import read_plan, standing
from tests.unit.engine.sandbox.trees import WS, FakeDisk, glob_entry, policy_for

ROOT = special_entry("root", "read")
PROJECT = special_entry("project_roots", "write")

# -- any rules on any disk

_names = st.sampled_from(["a", "b", ".git", ".aws"])
_paths = st.lists(_names, max_size=4).map(lambda names: "/".join([WS, *names]))
_accesses: st.SearchStrategy[Access] = st.sampled_from(["read", "write", "deny", "none"])
_entries = st.builds(path_entry, _paths | st.just("/srv"), _accesses)
_roots = st.sampled_from(
    [(), (ROOT,), (special_entry("root", "write"),), (PROJECT,), (ROOT, PROJECT)]
)
_disks = st.dictionaries(_paths, st.sampled_from([None, "text", ""]), max_size=12).map(
    lambda files: {path: text for path, text in files.items() if _has_room(path, files)}
)


def _has_room(path: str, files: dict[str, str | None]) -> bool:
    """Nothing is inside of a file."""
    inside = path + "/"
    return files[path] is None or not any(other.startswith(inside) for other in files)


def _made(files: dict[str, str | None], entries: tuple[FileEntry, ...]) -> tuple[FakeDisk, Policy]:
    disk = FakeDisk({WS: None, **files})
    return disk, policy_for(disk, *entries)


@pytest.mark.slow
@given(_disks, _roots, st.lists(_entries, max_size=6).map(tuple))
def test_a_command_finds_what_the_policy_says(
    files: dict[str, str | None], roots: tuple[FileEntry, ...], entries: tuple[FileEntry, ...]
) -> None:
    disk, policy = _made(files, roots + entries)
    mounts = read_plan(plan(policy))
    for path in disk.files:
        assert standing(mounts, path) == policy.standing(path, patterns=False), path


@pytest.mark.slow
@given(_disks, _roots, st.lists(_entries, max_size=6).map(tuple))
def test_the_most_specific_entry_decides_and_the_stronger_of_two(
    files: dict[str, str | None], roots: tuple[FileEntry, ...], entries: tuple[FileEntry, ...]
) -> None:
    disk, policy = _made(files, roots + entries)
    wanted = dict[str, set[str]]()
    for entry in roots + entries:
        path = _path_of(entry)
        access = "deny" if entry.access == "none" else entry.access
        if access != "write" or path in disk.files:
            wanted.setdefault(path, set()).add(access)
    for path in disk.files:
        assert policy.access(path, patterns=False) == _by_hand(path, wanted, disk, policy), path


def _path_of(entry: FileEntry) -> str:
    path = entry.path
    if hasattr(path, "path"):
        return str(path.path.native)
    return "/" if entry.path == ROOT.path else WS


def _by_hand(path: str, wanted: dict[str, set[str]], disk: FakeDisk, policy: Policy) -> str:
    """The same decision, taken on the way down from `/`."""
    parts = [part for part in path.split("/") if part]
    steps = ["/", *("/" + "/".join(parts[:end]) for end in range(1, len(parts) + 1))]
    now = "hidden"
    writable_root = ""
    for step in steps:
        said = wanted.get(step, set())
        choice = next((access for access in ("deny", "write", "read") if access in said), None)
        if policy.full_write:
            choice = "write"
        if choice == "read" and now == "deny":
            choice = None  # what is denied is opened for writing only
        if choice is None:
            if now == "write" and (
                _is_protected(step, writable_root) or _must_stay(step, wanted, disk)
            ):
                now = "read"
            continue
        now = "hidden" if (choice == "deny" and step == "/") else choice
        opened = step.rpartition("/")[2] in PROTECTED_NAMES and choice == "write"
        if choice == "write":
            inside = any(parent_of(step) == root for root in _written(wanted))
            writable_root = "" if opened and inside else step
    return "deny" if now == "hidden" else now


def _is_protected(step: str, root: str) -> bool:
    return parent_of(step) == root and step.rpartition("/")[2] in PROTECTED_NAMES


def _written(wanted: dict[str, set[str]]) -> list[str]:
    return [path for path, said in wanted.items() if "write" in said and "deny" not in said]


def _must_stay(step: str, wanted: dict[str, set[str]], disk: FakeDisk) -> bool:
    """A file is in the way of something that has to stay missing."""
    if disk.kind(step) != "file":
        return False
    return any(path.startswith(step + "/") and said for path, said in wanted.items())


@pytest.mark.slow
@given(_disks, _roots, st.lists(_entries, max_size=6).map(tuple))
def test_parents_come_first_and_nothing_is_mounted_twice(
    files: dict[str, str | None], roots: tuple[FileEntry, ...], entries: tuple[FileEntry, ...]
) -> None:
    _, policy = _made(files, roots + entries)
    paths = [mount.path for mount in read_plan(plan(policy)) if mount.path.startswith(WS)]
    assert len(set(paths)) == len(paths)
    for index, path in enumerate(paths):
        assert not any(earlier.startswith(path + "/") for earlier in paths[:index])


@pytest.mark.requirement("security.sandbox.renames")
@pytest.mark.slow
@given(_disks, _roots, st.lists(_entries, max_size=6).map(tuple))
def test_what_is_protected_cannot_be_moved_out_of_the_way(
    files: dict[str, str | None], roots: tuple[FileEntry, ...], entries: tuple[FileEntry, ...]
) -> None:
    disk, policy = _made(files, roots + entries)
    mounted = {mount.path for mount in read_plan(plan(policy))}
    for path in disk.files:
        if path == "/" or policy.access(path, patterns=False) == "write":
            continue
        above = parent_of(path)
        if policy.access(above, patterns=False) == "write":
            assert path in mounted
            while above not in policy.writable:
                assert above in mounted, "a mount point cannot be renamed"
                above = parent_of(above)


@pytest.mark.slow
@given(
    _disks,
    st.dictionaries(
        st.sampled_from([f"{WS}/l", f"{WS}/a/l", "/out/l", f"{WS}/.git", "/out/.git"]),
        st.sampled_from(["->a", f"->{WS}/a", "->../out", "->/out", "->l", "->none", f"->{WS}"]),
        max_size=3,
    ),
    st.lists(
        st.builds(
            path_entry,
            st.sampled_from([f"{WS}/l", f"{WS}/a/l/x", "/out/l", "/out/l/a", "/out", WS]),
            _accesses,
        ),
        max_size=4,
    ).map(tuple),
)
def test_no_link_that_a_command_may_change_decides_what_is_mounted(
    files: dict[str, str | None], links: dict[str, str], entries: tuple[FileEntry, ...]
) -> None:
    ways = {parent_of(link): None for link in links}
    disk = FakeDisk({**files, WS: None, "/out": None, **ways, **links})
    try:
        policy = policy_for(disk, ROOT, PROJECT, *entries)
    except CannotEnforce:
        return
    for mount in read_plan(plan(policy)):
        assert disk.kind(mount.path) != "link"
    for link in links:
        if policy.access(parent_of(link), patterns=False) == "write":
            # Wherever it leads by now, nothing is protected by way of it.
            assert link not in policy.rules


# -- single masks


def arguments(files: dict[str, str | None], *entries: FileEntry) -> str:
    made = plan(policy_for({WS: None, **files}, ROOT, *entries))
    words = made.argv(range(9, 9 + made.empty_fds))
    return " ".join(words).partition("/proc/sys /proc/sys")[2].strip()


def test_reading_everything_needs_no_further_mount() -> None:
    assert arguments({}) == ""
    assert arguments({}, path_entry(WS, "read"), special_entry("minimal", "read")) == ""


def test_masks_are_spelled_as_the_reference_spells_them() -> None:
    deny = path_entry(f"{WS}/x", "deny")
    assert arguments({f"{WS}/x": "text"}, deny) == f"--perms 000 --ro-bind-data 9 {WS}/x"
    assert arguments({f"{WS}/x/y": "text"}, deny) == (
        f"--perms 000 --tmpfs {WS}/x --remount-ro {WS}/x"
    )
    assert arguments({}, deny) == ""
    opened = path_entry(f"{WS}/x/y/.git", "write")
    assert arguments({f"{WS}/x/y/.git/z": "text"}, deny, opened) == (
        f"--perms 111 --tmpfs {WS}/x --bind {WS}/x/y/.git {WS}/x/y/.git "
        + "".join(
            f"--perms 555 --tmpfs {WS}/x/y/.git/{name} --remount-ro {WS}/x/y/.git/{name} "
            for name in sorted(PROTECTED_NAMES)
        )
        + f"--remount-ro {WS}/x"
    )


def test_links_are_made_where_their_directory_is() -> None:
    files: dict[str, str | None] = {"/usr/bin/sh": "x", "/bin": "->usr/bin", "/srv/l": "->ws"}
    made = plan(
        policy_for(
            {WS: None, **files}, special_entry("minimal", "read"), path_entry("/srv/l", "read")
        )
    )
    text = " ".join(made.argv(()))
    assert text.endswith(
        f"--symlink ws /srv/l --symlink usr/bin /bin --ro-bind {WS} {WS} --ro-bind /usr /usr"
    )


def test_what_is_made_on_disk_is_told() -> None:
    files: dict[str, str | None] = {
        WS: None,
        f"{WS}/.git": None,
        f"{WS}/.aws/x": "x",
        f"{WS}/e": "",
    }
    missing = (path_entry(f"{WS}/none/x", "deny"), path_entry(f"{WS}/e", "deny"))
    made = plan(policy_for(files, ROOT, PROJECT, *missing))
    assert set(made.targets) == {
        MountTarget(f"{WS}/.git", "directory", existed=True),
        MountTarget(f"{WS}/.agents", "directory", existed=False),
        MountTarget(f"{WS}/.codex", "directory", existed=False),
        MountTarget(f"{WS}/none", "file", existed=False),
        MountTarget(f"{WS}/e", "file", existed=True),
    }


def test_a_missing_name_that_is_denied_is_not_even_listed() -> None:
    text = arguments({}, PROJECT, path_entry(f"{WS}/.git", "deny"))
    assert f"--perms 000 --tmpfs {WS}/.git --remount-ro {WS}/.git" in text


@pytest.mark.parametrize("name", PROTECTED_NAMES)
def test_an_empty_file_that_has_a_protected_name_is_covered_by_a_file(name: str) -> None:
    files: dict[str, str | None] = {WS: None, f"{WS}/{name}": ""}
    made = plan(policy_for(files, ROOT, PROJECT, path_entry(f"{WS}/{name}", "read")))
    assert f"--ro-bind-data 9 {WS}/{name}" in " ".join(made.argv([9]))
    assert MountTarget(f"{WS}/{name}", "file", existed=True) in made.targets


@pytest.mark.parametrize(
    "more",
    [path_entry(f"{WS}/x/y", "deny"), path_entry(f"{WS}/x/z", "deny"), glob_entry(f"{WS}/x/*")],
    ids=["directory", "file", "pattern"],
)
def test_what_is_hidden_with_its_directory_is_not_mounted_on(more: FileEntry) -> None:
    files: dict[str, str | None] = {f"{WS}/x/y": None, f"{WS}/x/z": "text"}
    deny = path_entry(f"{WS}/x", "deny")
    assert arguments(files, deny, more) == arguments(files, deny)


def test_many_denied_files_do_not_need_as_many_descriptors() -> None:
    files = {f"{WS}/{number}.env": "x" for number in range(MAX_EMPTY_FDS + 5)}
    made = plan(policy_for({**files}, ROOT, glob_entry(f"{WS}/*.env")))
    assert made.empty_fds == MAX_EMPTY_FDS
    mounts = read_plan(made)
    assert {standing(mounts, path) for path in files} == {"deny"}


def test_no_entry_brings_in_the_host_s_processes() -> None:
    files: dict[str, str | None] = {WS: None, "/proc/1": None}
    for access in ("read", "write"):
        made = plan(policy_for(files, path_entry("/proc", access), path_entry("/proc/1", "write")))
        assert [mount.path for mount in read_plan(made)] == ["/", "/proc/sys"]
    denied = plan(policy_for(files, ROOT, path_entry("/proc/1", "deny")))
    assert read_plan(denied)[-1].path == "/proc/1"
