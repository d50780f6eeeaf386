"""Probe of this machine: a missing feature is reported with what to change."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.engine.sandbox.bubblewrap import binary as launcher_module
from holdfast.engine.sandbox.bubblewrap import support as module
from holdfast.engine.sandbox.bubblewrap.landlock import OLDEST_ABI, landlock_abi
from holdfast.engine.sandbox.bubblewrap.support import probe_support
from holdfast.engine.sandbox.enforcer import IsolationLevel
from tests.unit.engine.sandbox.test_binary import script

OPTIONS = " ".join(sorted(launcher_module.NEEDED | {"--disable-userns"}))


@pytest.fixture
def bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment in which only what `pretend` makes is found."""
    monkeypatch.setattr(launcher_module, "_FIXED_PATHS", ())
    return {"PATH": str(tmp_path / "bin")}


def pretend(environ: dict[str, str], trial: str) -> None:
    """A launcher that does this when it is tried."""
    script(
        Path(environ["PATH"]),
        f'case "$1" in --help) echo {OPTIONS};; --version) echo bubblewrap 1.0;; *) {trial};; esac',
    )


@pytest.mark.requirement("security.sandbox.levels")
def test_the_full_isolation_works_here() -> None:
    support = probe_support()

    assert support.isolation is IsolationLevel.FULL
    assert support.problem is None
    applied = landlock_abi() >= OLDEST_ABI
    assert any("Landlock is not applied" in gap for gap in support.gaps) is not applied
    assert any("root" in gap for gap in support.gaps) is (os.geteuid() == 0)


@pytest.mark.requirement("security.sandbox.devices-gap")
def test_devices_that_root_cannot_make_are_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engine.sandbox.bubblewrap.support.need_devices", lambda: True)
    monkeypatch.setattr(
        "holdfast.engine.sandbox.bubblewrap.support.may_make_devices", lambda: False
    )

    support = probe_support()

    assert not support.own_devices
    assert any("/dev/null and alike can be changed" in gap for gap in support.gaps)


@pytest.mark.requirement("security.sandbox.levels")
def test_without_a_launcher_there_is_no_isolation(bwrap: dict[str, str]) -> None:
    support = probe_support(bwrap)

    assert support.isolation is IsolationLevel.NONE
    assert support.problem is not None
    assert "install version 0.5 or newer" in support.problem


@pytest.mark.requirement("security.sandbox.levels")
def test_where_proc_cannot_be_mounted_it_stays_empty(bwrap: dict[str, str]) -> None:
    pretend(
        bwrap,
        'case "$*" in *"--proc"*)'
        ' echo "bwrap: Can\'t mount proc on /newroot/proc: Operation not permitted" >&2; exit 1;;'
        ' *) exec /usr/bin/bwrap "$@";; esac',
    )

    support = probe_support(bwrap)

    assert support.isolation is IsolationLevel.WITHOUT_PROC
    assert support.problem is not None
    assert "Can't mount proc" in support.problem
    assert any("/proc" in gap for gap in support.gaps)


def test_where_nothing_works_it_is_told_why(bwrap: dict[str, str]) -> None:
    pretend(bwrap, 'echo "bwrap: No permissions to create new namespace" >&2; exit 1')

    support = probe_support(bwrap)

    assert support.isolation is IsolationLevel.NONE
    assert support.problem is not None
    assert support.problem.startswith("bwrap: No permissions to create new namespace; ")


@pytest.mark.requirement("security.sandbox.levels")
def test_a_machine_without_known_calls_has_no_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "vax")

    support = probe_support()

    assert support.isolation is IsolationLevel.NONE
    assert support.problem == "no filter of system calls is known for vax"


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("user/max_user_namespaces", "0", "user.max_user_namespaces"),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone to 1"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns to 0",
        ),
    ],
)
def test_settings_of_the_kernel_are_named(
    tmp_path: Path, name: str, value: str, advice: str
) -> None:
    setting = tmp_path / "sys" / name
    setting.parent.mkdir(parents=True)
    setting.write_text(f"{value}\n")

    assert advice in module._advice("", tmp_path)


def test_namespaces_that_are_used_up_are_named(tmp_path: Path) -> None:
    advice = module._advice("bwrap: nesting depth exceeded (ENOSPC)", tmp_path)

    assert "raise the sysctl user.max_user_namespaces" in advice


def test_the_filter_of_a_container_is_named(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n")

    assert "--security-opt seccomp=unconfined" in module._advice("", tmp_path)


def test_where_nothing_is_known_nothing_is_promised(tmp_path: Path) -> None:
    assert module._advice("", tmp_path) == "user namespaces cannot be made here"


FILTERED = """
import ctypes, struct, sys
from holdfast.engine.sandbox.bubblewrap.support import probe_support
from holdfast.engine.linux.syscall_numbers import MACHINES
import platform
numbers = MACHINES[platform.machine()].numbers
refuse, allow = (0x06, 0, 0, 0x50000 | 1), (0x06, 0, 0, 0x7FFF0000)
code = {
    "landlock": [(0x20, 0, 0, 0), (0x15, 0, 1, numbers["landlock_restrict_self"]), refuse, allow],
    "listening": [
        (0x20, 0, 0, 0), (0x15, 0, 3, numbers["seccomp"]),
        (0x20, 0, 0, 24), (0x45, 0, 1, 8), refuse, allow,
    ],
}[sys.argv[1]]
program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in code))
whole = struct.pack("=HxxxxxxQ", len(code), ctypes.addressof(program))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, whole, 0, 0) == 0
support = probe_support()
print(support.isolation, support.landlock_abi > 0, support.listens, sep="|")
print(*support.gaps, sep="|")
"""
"""Climbs where something refuses a part of it, as the filter of a container may."""


@pytest.mark.requirement("security.sandbox.old-kernels")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("refused", "found", "gap"),
    [
        ("landlock", "full|False|True", True),
        ("listening", "full|True|False", False),
    ],
)
def test_what_does_not_work_here_is_left_out_for_itself(
    refused: str, found: str, gap: bool
) -> None:
    if landlock_abi() < OLDEST_ABI:
        pytest.skip("this kernel has no Landlock that could be refused")

    done = subprocess.run(
        [sys.executable, "-c", FILTERED, refused],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )

    first, gaps = done.stdout.splitlines()
    assert first == found
    assert ("existing FIFOs that can be seen can be written to" in gaps) is gap
