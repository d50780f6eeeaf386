"""Devices of our own, in place of the machine's."""

import os
import stat
from pathlib import Path

import pytest

from holdfast.sandbox.bwrap import plan
from holdfast.sandbox.devices import (
    DEVICES,
    make_devices,
    may_make_devices,
    need_devices,
    remove_devices,
)
from holdfast.sandbox.names import special_entry
from tests.unit.sandbox.trees import policy_for

needs_privilege = pytest.mark.skipif(
    not may_make_devices(), reason="only root makes devices, and not everywhere"
)


def test_whoever_owns_the_devices_needs_others() -> None:
    assert need_devices() is (os.stat("/dev/null").st_uid == os.geteuid())
    assert not need_devices("/nonexistent")


def test_somebody_who_is_not_privileged_makes_none(tmp_path: Path) -> None:
    status = tmp_path / "status"
    for text in ("", "CapEff:\t0000000000000000\n", "CapEff:\tx\n"):
        status.write_text(text)
        assert not may_make_devices(status=str(status))
    status.write_text("CapEff:\t0000000008000000\n")
    assert may_make_devices(status=str(status)) is may_make_devices("/dev", str(status))
    assert not may_make_devices("/proc", str(status))
    assert not may_make_devices(status=str(tmp_path / "none"))


@needs_privilege
def test_they_are_the_same_devices_and_belong_to_nobody() -> None:
    folder = make_devices()
    try:
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        assert sorted(os.listdir(folder)) == sorted(DEVICES)
        for name in DEVICES:
            ours, theirs = os.stat(f"{folder}/{name}"), os.stat(f"/dev/{name}")
            assert ours.st_rdev == theirs.st_rdev
            assert (oct(ours.st_mode), ours.st_uid) == (oct(stat.S_IFCHR | 0o666), 65534)
    finally:
        remove_devices(os.getpid())
    assert not os.path.exists(folder)
    remove_devices(os.getpid())  # and once more: nothing is there


@needs_privilege
def test_what_a_killed_process_left_is_removed_by_the_next() -> None:
    left = f"/dev/.holdfast-{2**22 + 1}"  # no process has so high a number
    os.mkdir(left)
    os.mknod(f"{left}/null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    make_devices()
    remove_devices(os.getpid())
    assert not os.path.exists(left)


def test_they_lie_on_top_of_the_machines() -> None:
    policy = policy_for({"/w": None}, special_entry("root", "read"))
    made = list(plan(policy, devices="/dev/ours").argv(()))
    for name in DEVICES:
        at = made.index(f"/dev/ours/{name}")
        assert made[at - 1 : at + 2] == ["--dev-bind", f"/dev/ours/{name}", f"/dev/{name}"]
        assert at > made.index("--dev")
