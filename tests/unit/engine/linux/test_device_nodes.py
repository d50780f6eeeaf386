"""Devices of our own, in place of the machine's."""

import os
import stat
from pathlib import Path

import pytest

from holdfast.engine.linux.device_nodes import (
    DEVICES,
    OwnDevices,
    hidden_by_own_devices,
    may_make_devices,
    need_devices,
    remove_unused_devices,
)
from holdfast.engine.sandbox.bubblewrap.bwrap_arguments import plan
from holdfast.engine.sandbox.profile.builtin import special_entry
from tests.unit.engine.sandbox.trees import policy_for

needs_privilege = pytest.mark.skipif(
    not may_make_devices(), reason="only root makes devices, and not everywhere"
)


@pytest.mark.requirement("security.sandbox.nodes")
def test_whoever_owns_the_devices_needs_others() -> None:
    assert need_devices() is (os.stat("/dev/null").st_uid == os.geteuid())
    assert not need_devices("/nonexistent")


def test_where_none_can_be_made_nothing_is_left(tmp_path: Path) -> None:
    """As for root in a user namespace: it has the privilege, and no device to copy from here."""
    assert not may_make_devices(str(tmp_path))
    assert not list(tmp_path.iterdir())
    remove_unused_devices(str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("path", "hidden"),
    [
        ("/dev", True),
        ("/dev/mqueue", True),
        ("/dev/shm.old", True),
        ("/dev/shm", False),
        ("/dev/shm/a/b", False),
        ("/device", False),
        ("/", False),
        ("/home/dev", False),
    ],
)
def test_only_shared_memory_is_seen_beside_them(path: str, *, hidden: bool) -> None:
    assert hidden_by_own_devices([path]) is hidden
    assert hidden_by_own_devices(["/", path]) is hidden


@pytest.mark.requirement("security.sandbox.nodes")
@needs_privilege
def test_they_are_the_same_devices_and_belong_to_nobody() -> None:
    devices = OwnDevices()
    try:
        folder = devices.folder
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        assert sorted(os.listdir(folder)) == sorted((*DEVICES, *devices.kept))
        for name in DEVICES:
            ours, theirs = os.stat(f"{folder}/{name}"), os.stat(f"/dev/{name}")
            assert ours.st_rdev == theirs.st_rdev
            assert (oct(ours.st_mode), ours.st_uid) == (oct(stat.S_IFCHR | 0o666), 65534)
        remove_unused_devices()
        assert os.path.exists(f"{folder}/null")
    finally:
        devices.close()
    assert not os.path.exists(folder)


@needs_privilege
def test_what_a_killed_process_left_is_removed_by_the_next() -> None:
    left = "/dev/.holdfast-0123456789abcdef"
    os.mkdir(left)
    os.mkdir(f"{left}/pts")
    os.mknod(f"{left}/null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    OwnDevices().close()
    assert not os.path.exists(left)


@pytest.mark.requirement("security.sandbox.nodes")
def test_they_lie_on_top_of_the_machines() -> None:
    policy = policy_for({"/w": None}, special_entry("root", "read"))
    made = list(plan(policy, devices="/dev/ours").argv(()))
    for name in DEVICES:
        at = made.index(f"/dev/ours/{name}")
        assert made[at - 1 : at + 2] == ["--dev-bind", f"/dev/ours/{name}", f"/dev/{name}"]
        assert at > made.index("--dev")
