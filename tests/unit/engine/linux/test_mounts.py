"""Mounts, and the paths at which they show the same files."""

import os
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast.engine.linux import mounts
from holdfast.engine.linux.mounts import (
    NO_MOUNTS,
    Aliases,
    MountTable,
    Place,
    mount_table,
    parse_mounts,
)

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a mount namespace")

DISK = "20 1 8:1 / / rw - ext4 /dev/a rw\n21 20 0:5 / /dev rw - devtmpfs udev rw\n"


def table(*lines: str) -> MountTable:
    """Return the table of a machine with a disk and these mounts: `parent device root point`."""
    rest = (
        f"{number} {parent} {device} {root} {point} rw - ext4 x rw"
        for number, line in enumerate(lines, 30)
        for parent, device, root, point in [line.split()]
    )
    return MountTable(parse_mounts(DISK + "\n".join(rest) + "\n"))


def whole(*paths: str) -> Aliases:
    return Aliases(whole=paths)


def parts(*paths: str) -> Aliases:
    return Aliases(parts=paths)


NONE = Aliases()


@pytest.mark.requirement("security.aliases")
@pytest.mark.parametrize(
    ("lines", "path", "found"),
    [
        pytest.param(["20 8:2 / /srv"], "/home/me", NONE, id="another file system"),
        pytest.param(["20 8:1 /home/me /work"], "/home/me", whole("/work"), id="itself"),
        pytest.param(["20 8:1 /home /work"], "/home/me", whole("/work/me"), id="parent"),
        pytest.param(["20 8:1 / /work"], "/home/me", whole("/work/home/me"), id="file system"),
        pytest.param(["20 8:1 /home/me/x/y /work"], "/home/me", parts("/work"), id="child"),
        pytest.param(["20 8:1 /home/men /work"], "/home/me", NONE, id="similar name"),
        pytest.param(["20 8:1 /home /work"], "/work/me", whole("/home/me"), id="the other way"),
        pytest.param(
            ["20 8:1 /home /a", "20 8:1 /home/me /b"],
            *("/home/me", whole("/b", "/a/me")),
            id="several",
        ),
        pytest.param(
            ["20 0:9 / /home/me", "20 0:9 / /work"], "/home/me", whole("/work"), id="tmpfs"
        ),
        pytest.param(
            ["20 0:9 /@home /home", "20 0:9 / /pool"],
            *("/home/me", whole("/pool/@home/me")),
            id="subvolume",
        ),
        pytest.param(
            ["20 0:9 /@a /home", "20 0:9 /@b /work"], "/home/me", NONE, id="other subvolume"
        ),
        pytest.param(
            ["20 8:2 /data /home/me/lib", "20 8:2 / /srv"],
            *("/home/me", parts("/srv/data")),
            id="mount below it",
        ),
        pytest.param(
            ["20 8:2 /data /home/me/lib", "20 8:2 /data/x /srv"],
            *("/home/me", parts("/srv")),
            id="child of a mount below it",
        ),
        pytest.param(["20 8:1 /home/me /home/me"], "/home/me", NONE, id="on itself"),
        pytest.param(["20 8:1 /home /home/me/x"], "/home/me", NONE, id="below itself"),
        # `/work` was mounted on after `/work/a` had been.
        pytest.param(["20 8:1 /home /work/a", "20 8:2 / /work"], "/home/me", NONE, id="hidden"),
        pytest.param(
            ["20 8:1 /home /work", "30 8:2 / /work/me"], "/home/me", NONE, id="hidden in part"
        ),
        pytest.param(
            ["20 8:1 /home /work", "30 8:2 / /work"], "/home/me", NONE, id="on the same point"
        ),
        pytest.param(
            ["20 8:2 / /work", "30 8:1 /home /work"], "/home/me", whole("/work/me"), id="on top"
        ),
        pytest.param(["21 8:1 /home /dev/x"], "/home/me", NONE, id="in a private directory"),
        pytest.param(
            ["21 8:1 /home /dev/shm/x"], "/home/me", whole("/dev/shm/x/me"), id="shared memory"
        ),
        pytest.param(["20 8:1 /home /work"], "/", NONE, id="root"),
        pytest.param(
            ["20 8:2 / /home", "20 8:1 / /work"],
            *("/home/me", Aliases(ways=("/work/home",))),
            id="mount point",
        ),
        pytest.param(
            ["20 8:2 / /home", "30 8:3 / /home/me", "20 8:2 / /b", "20 8:1 / /a"],
            *("/home/me", Aliases(ways=("/a/home", "/b/me"))),
            id="mount points",
        ),
        pytest.param(
            ["20 8:1 /ho\\040me /my\\011\\134work"],
            *("/ho me/x", whole("/my\t\\work/x")),
            id="escapes",
        ),
    ],
)
def test_other_paths_of_the_same_files(lines: list[str], path: str, found: Aliases) -> None:
    assert table(*lines).aliases(path) == found
    assert table(*lines).names(path) == found.whole


@pytest.mark.parametrize(
    ("lines", "has_aliases"),
    [
        ([], False),
        (["20 8:1 /home /home"], False),
        (["20 8:2 /a /a", "20 8:2 /b /b"], False),
        (["21 0:7 / /dev/pts", "21 0:7 /0 /dev/console"], False),
        (["20 8:2 /a /a", "20 8:2 /a/b /b"], True),
    ],
)
def test_most_machines_show_no_file_twice(lines: list[str], has_aliases: bool) -> None:
    assert table(*lines).has_aliases is has_aliases


def test_mounts_of_a_plain_directory_as_root() -> None:
    """After `chroot`, there may be no line for `/`."""
    lines = "30 20 8:1 /a /a rw - ext4 x rw\n31 20 8:1 /a/b /b rw - ext4 x rw\n"
    found = MountTable(parse_mounts(lines))
    assert found.places("/home") == ()
    assert found.names("/a/b/c") == ("/b/c",)


def test_a_path_may_have_characters_that_end_lines() -> None:
    name = "/a\x0b\x0c\x1c\x85\u2028b"
    (mount,) = parse_mounts(f"30 20 8:1 / {name} ro,nosuid shared:1 - ext4 x rw\n")
    assert (mount.point, mount.writable) == (name, False)


@pytest.mark.parametrize(
    "options",
    [
        "lowerdir={0}/a:{0}/b\\134:c,upperdir={0}/up,workdir={0}/wk",
        "lowerdir+={0}/a,lowerdir+={0}/b:c,upperdir={0}/up",
        "lowerdir={0}/link:{0}/b\\134:c:relative:/missing/x,upperdir={0}/up",
    ],
)
def test_layers_of_an_overlay_are_its_files_too(tmp_path: Path, options: str) -> None:
    for name in ("a", "b:c", "up", "wk"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("a")
    line = f"30 20 0:9 /sub /merged rw - overlay overlay rw,{options.format(tmp_path)}\n"
    found = MountTable(parse_mounts(DISK + line))
    layers = [f"{tmp_path}/{name}/sub/x" for name in ("a", "b:c", "up")]
    assert sorted(found.names("/merged/x")) == layers
    for layer in layers:
        assert found.names(layer) == ("/merged/x",)


def test_thousands_of_mounts_take_milliseconds() -> None:
    lines = [f"20 8:1 /pods/{number}/x /run/{number}" for number in range(5_000)]
    found = table(*lines)
    steps = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        assert found.aliases("/pods/7") == parts("/run/7")
    finally:
        sys.settrace(before)
    assert steps < 1_000


# -- the mounts of this process

PRIVATELY = ("unshare", "--mount", "--propagation", "private")

IN_A_NAMESPACE = """
import os, subprocess, sys
from pathlib import Path
from holdfast.engine.linux.mounts import NO_MOUNTS, mount_table

def mount(*words):
    subprocess.run(["mount", *words], check=True)

base = Path(sys.argv[1])
for name in ("real/sub", "before/twice"):
    (base / name).mkdir(parents=True)
mount("--bind", str(base), str(base))
before = mount_table()
again = mount_table()
mount("--bind", str(base / "real"), str(base / "before/twice"))
child = os.fork()
if not child:
    # It must not take the signal that is meant for its parent.
    os._exit(mount_table() is NO_MOUNTS)
assert os.waitpid(child, 0)[1] == 0
mounted = mount_table()
names = [mounted.names(str(base / "real/sub"))]
same = mount_table() is mounted
os.rename(base / "before", base / "after")
names.append(mount_table().names(str(base / "real/sub")))
subprocess.run(["umount", str(base / "after/twice")], check=True)
print(before is NO_MOUNTS, again is NO_MOUNTS, same, mount_table() is NO_MOUNTS)
print(*(path for found in names for path in found), sep="\\n")
"""


@ROOT
@pytest.mark.requirement("security.aliases")
def test_the_table_follows_mounts_unmounts_and_renames(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PRIVATELY, sys.executable, "-c", IN_A_NAMESPACE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split("\n") == [
        "True True True True",
        f"{tmp_path}/before/twice/sub",
        f"{tmp_path}/after/twice/sub",
        "",
    ], done.stderr


def test_mountinfo_is_read_again_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    found = mount_table()
    if found is not NO_MOUNTS:
        pytest.skip("this machine shows files twice")
    monkeypatch.setattr(mounts, "_MOUNTINFO", "/missing")
    assert mount_table() is found


def test_places_are_unknown_without_mounts() -> None:
    assert NO_MOUNTS.places("/x") == ()
    assert table("20 8:2 /a /srv").places("/srv/x") == (Place("8:2", "/a/x"),)
