"""Becoming somebody else, or more than one is."""

import os
import struct

import pytest

from tests.breakout.inside import Blocked, Ground, numbered, run, status_of
from tests.breakout.table import attempt


@attempt("read-only", "workspace", "networked", "offline", blocked_by="none left")
@pytest.mark.requirement("security.sandbox.privileges")
def keep_a_capability(at: Ground) -> None:
    del at
    kept = [status_of("self", name) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
    if not any(int(mask, 16) for mask in kept):
        raise Blocked("none left")


@attempt("workspace", blocked_by="none left", needs="root")
@pytest.mark.requirement("security.sandbox.privileges")
def regain_capabilities_with_a_new_program(at: Ground) -> None:
    """A program that root starts has all of them, unless they are out of bounds."""
    script = "grep CapEff: /proc/self/status | grep -qv 0000000000000000"
    if run("/bin/sh", "-c", script) != 0:
        raise Blocked("none left")
    del at


@attempt("read-only", "workspace", "networked", "offline", "root-but", blocked_by="set")
def be_able_to_gain_privileges(at: Ground) -> None:
    """Without `no_new_privs`, a program may be more than whoever starts it."""
    del at
    if status_of("self", "NoNewPrivs") == "1":
        raise Blocked("set")


@attempt("read-only", "workspace", "networked", "offline", "root-but", blocked_by="on")
def lose_the_filter_with_a_new_program(at: Ground) -> None:
    del at
    if run("/bin/sh", "-c", "grep -q '^Seccomp:.*2' /proc/self/status") == 0:
        raise Blocked("on")


@attempt("workspace", blocked_by="nothing gained|nobody made one", needs="root")
@pytest.mark.requirement("security.sandbox.privileges")
def run_an_older_program_that_changes_who_runs_it(at: Ground) -> None:
    """It belongs to nobody, and has the bit of being run as its owner."""
    if not at.special:
        raise Blocked("nobody made one")
    if run("/bin/sh", "-c", f"test $('{at.special['setuid']}' -u) = 65534") != 0:
        raise Blocked("nothing gained")


@attempt("workspace", "networked", blocked_by="nothing gained", needs="user", kernel="su")
@pytest.mark.requirement("security.sandbox.privileges")
def run_a_program_of_root(at: Ground) -> None:
    """`su` waits for a password, and is looked at meanwhile."""
    del at
    waiting, hold = os.pipe()
    null = os.open("/dev/null", os.O_WRONLY)
    actions = [
        (os.POSIX_SPAWN_DUP2, waiting, 0),
        (os.POSIX_SPAWN_CLOSE, hold),
        (os.POSIX_SPAWN_DUP2, null, 1),
        (os.POSIX_SPAWN_DUP2, null, 2),
    ]
    program = next(p for p in ("/usr/bin/su", "/bin/su") if os.path.exists(p))
    pid = os.posix_spawn(program, ["su"], dict(os.environ), file_actions=actions)
    try:
        # It becomes its owner in its first moments, or never: until it waits, or has ended.
        while True:
            state = status_of(pid, "State")
            if status_of(pid, "Uid").split()[1] != str(os.getuid()):
                return
            if state[0] in "SZ":
                raise Blocked("nothing gained")
    finally:
        os.close(hold)
        os.close(waiting)
        os.waitpid(pid, 0)


@attempt("workspace", "offline", blocked_by="EINVAL EPERM", needs="root")
def become_another_user(at: Ground) -> None:
    del at
    os.setresuid(65534, 65534, 65534)


@attempt("workspace", blocked_by="EINVAL EPERM", needs="root")
def join_another_group(at: Ground) -> None:
    del at
    os.setgroups([65534])


@attempt("workspace", blocked_by="EINVAL EPERM", needs="root")
def give_a_file_of_mine_to_another_user(at: Ground) -> None:
    os.chown(f"{at.work}/notes", 65534, 65534)


@attempt("read-only", "workspace", "root-but", blocked_by="the script failed")
def run_a_program_that_is_only_in_memory(at: Ground) -> None:
    """What was allowed does not depend on which program is running."""
    fd = os.memfd_create("program", 0)
    os.write(fd, f"#!/bin/sh\necho x >> '{at.file}'\n".encode())
    if run(f"/proc/{os.getpid()}/fd/{fd}") != 0:
        raise Blocked("the script failed")


@attempt("workspace", "networked", "offline", "root-but", blocked_by="EPERM")
@pytest.mark.requirement("security.sandbox.set-user-id")
def leave_a_program_that_others_run_as_this_user(at: Ground) -> None:
    """Whoever can get to the workspace could start it, and be root by it."""
    try:
        os.chmod(f"{at.work}/notes", 0o4755)
        if not os.stat(f"{at.work}/notes").st_mode & 0o4000:
            raise Blocked("the bit is gone")
    finally:
        os.chmod(f"{at.work}/notes", 0o644)


@attempt(
    "workspace", "networked", "offline", "root-but", blocked_by="the bit is gone", needs="root"
)
@pytest.mark.requirement("security.sandbox.set-user-id")
def create_such_a_program(at: Ground) -> None:
    """Without a sandbox, root may write to the new file, which keeps the bit."""
    fd = os.open(f"{at.work}/program", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o4755)
    try:
        os.write(fd, b"x")
        if not os.fstat(fd).st_mode & 0o4000:
            raise Blocked("the bit is gone")
    finally:
        os.unlink(f"{at.work}/program")


@attempt("workspace", "networked", "offline", "root-but", blocked_by="EPERM")
@pytest.mark.requirement("security.sandbox.set-group-id")
def leave_a_program_that_others_run_with_this_group(at: Ground) -> None:
    """What is in a private group of this user, they could then change."""
    try:
        os.chmod(f"{at.work}/notes", 0o2755)
        if not os.stat(f"{at.work}/notes").st_mode & 0o2000:
            raise Blocked("the bit is gone")
    finally:
        os.chmod(f"{at.work}/notes", 0o644)


@attempt("workspace", "networked", "offline", "root-but", blocked_by="EPERM")
@pytest.mark.requirement("security.sandbox.set-group-id")
def create_a_file_that_keeps_the_bit_of_its_group(at: Ground) -> None:
    """It does while its group cannot execute it, and that is changed without `chmod`."""
    fd = os.open(f"{at.work}/program", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o2644)
    try:
        os.write(fd, b"x")
        if not os.fstat(fd).st_mode & 0o2000:
            raise Blocked("the bit is gone")
    finally:
        os.unlink(f"{at.work}/program")


@attempt("workspace", "networked", "offline", "root-but", blocked_by="ENOSYS")
@pytest.mark.requirement("security.sandbox.set-group-id")
def create_such_a_file_with_a_mode_in_memory(at: Ground) -> None:
    """A filter of system calls sees only where the mode is."""
    # `struct open_how`: O_CREAT, O_EXCL and O_RDWR, then the mode.
    how = struct.pack("=3Q", 0o302, 0o2644, 0)
    os.close(numbered(437, -100, f"{at.work}/program".encode(), how, len(how)))
    os.unlink(f"{at.work}/program")
