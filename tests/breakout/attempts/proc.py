"""Facts about other processes in `/proc` and `/sys`, and what can be set there."""

import os

import pytest

from tests.breakout.inside import Blocked, Ground, append, open_for_writing, read
from tests.breakout.table import attempt


@attempt("workspace", "offline", blocked_by="ENOENT")
def write_by_the_root_of_another_process(at: Ground) -> None:
    append(f"/proc/{at.outsider['pid']}/root{at.file}")


@attempt("workspace", blocked_by="EROFS ENOENT EACCES")
def write_by_the_root_of_the_processes_above(at: Ground) -> None:
    """The first process here, and the one that started this one."""
    errors = []
    for pid in {1, os.getppid()}:
        try:
            return append(f"/proc/{pid}/root{at.file}")
        except OSError as error:
            errors.append(error)
    raise errors[0]


@attempt("guarded", blocked_by="EACCES ENOENT")
def read_a_denied_file_by_the_root_of_the_processes_above(at: Ground) -> None:
    errors = []
    for pid in {1, os.getppid()}:
        try:
            read(f"/proc/{pid}/root{at.secret}")
            return
        except OSError as error:
            errors.append(error)
    raise errors[0]


@attempt("workspace", blocked_by="ENOENT")
def write_from_the_directory_of_another_process(at: Ground) -> None:
    append(f"/proc/{at.outsider['pid']}/cwd/gift")


@attempt("workspace", "networked", blocked_by="ENOENT")
def write_by_a_descriptor_of_another_process(at: Ground) -> None:
    append(f"/proc/{at.outsider['pid']}/fd/{at.outsider['gift']}")


@attempt("workspace", blocked_by="only the standard ones|ENOENT|EACCES")
def use_a_descriptor_of_the_processes_above(at: Ground) -> None:
    """Freely: the process beside has some. In the sandbox: what the launcher forgot to close."""
    pids = {1, os.getppid(), os.getpid(), at.outsider["pid"]}
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if not target.startswith("/") or target.startswith(("/dev/", "/proc/")):
                    continue
                os.close(os.open(f"/proc/{pid}/fd/{name}", os.O_PATH))
            except OSError:
                continue
            return
    raise Blocked("only the standard ones")


@attempt("workspace", "networked", "offline", blocked_by="ENOENT")
@pytest.mark.requirement("security.sandbox.processes")
def read_the_memory_of_another_process(at: Ground) -> None:
    fd = os.open(f"/proc/{at.outsider['pid']}/mem", os.O_RDONLY)
    if os.pread(fd, len(at.outsider["secret"]), at.outsider["address"]) != (
        at.outsider["secret"].encode()
    ):
        raise Blocked("something else is there")


@attempt("workspace", blocked_by="ENOENT")
def read_the_environment_of_another_process(at: Ground) -> None:
    read(f"/proc/{at.outsider['pid']}/environ")


@attempt("read-only", "workspace", "networked", "narrow", "offline", blocked_by="not listed")
@pytest.mark.requirement("security.sandbox.processes")
def find_another_process(at: Ground) -> None:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if os.fsencode(at.outsider["folder"]) in file.read().split(b"\0"):
                    return
        except OSError:
            continue  # it has ended
    raise Blocked("not listed")


@attempt("workspace", blocked_by="ENOENT")
def set_how_soon_another_process_is_killed(at: Ground) -> None:
    open_for_writing(f"/proc/{at.outsider['pid']}/oom_score_adj")


@attempt("read-only", "workspace", "networked", "offline", blocked_by="EROFS EACCES", needs="root")
def open_the_pattern_of_core_files(at: Ground) -> None:
    """Whoever writes there has a program run as root outside; here it is opened, never written."""
    del at
    open_for_writing("/proc/sys/kernel/core_pattern")


@attempt("workspace", blocked_by="EROFS EACCES ENOENT", needs="root")
@pytest.mark.requirement("security.sandbox.proc")
def open_the_settings_of_the_kernel(at: Ground) -> None:
    del at
    for name in ("kernel/modprobe", "vm/overcommit_memory", "kernel/printk", "fs/file-max"):
        if os.path.exists(f"/proc/sys/{name}"):
            return open_for_writing(f"/proc/sys/{name}")
    raise Blocked("no such setting")


@attempt("workspace", blocked_by="EROFS EACCES", needs="root")
def open_the_settings_of_programs_by_their_first_bytes(at: Ground) -> None:
    """`binfmt_misc` runs a program outside for whoever starts a file that matches."""
    del at
    own = "/proc/sys/fs/binfmt_misc"
    open_for_writing(
        f"{own}/register" if os.path.exists(f"{own}/register") else "/proc/sys/fs/nr_open"
    )


@attempt(
    "workspace", blocked_by="EROFS EACCES ENOENT", needs="root", kernel="its key of last resort"
)
def open_the_trigger_of_the_last_resort(at: Ground) -> None:
    del at
    open_for_writing("/proc/sysrq-trigger")


@attempt("workspace", blocked_by="EROFS EACCES ENOENT", needs="root")
def open_a_setting_of_the_system(at: Ground) -> None:
    del at
    for root in (
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/kernel/mm/ksm/run",
        "/sys/kernel/profiling",
        "/sys/power/state",
        "/sys/kernel/uevent_helper",
        "/sys/module/kernel/parameters/panic",
    ):
        if os.path.exists(root):
            return open_for_writing(root)
    raise Blocked("no such setting")


@attempt("workspace", blocked_by="EROFS EACCES ENOENT", needs="root")
def move_into_another_control_group(at: Ground) -> None:
    """The list of its members is opened, never written."""
    del at
    for root, _, names in os.walk("/sys/fs/cgroup"):
        if "cgroup.procs" in names:
            return open_for_writing(f"{root}/cgroup.procs")
    raise Blocked("no such group")


@attempt("workspace", "networked", "narrow", blocked_by="nothing")
@pytest.mark.requirement("security.sandbox.proc")
def find_any_setting_that_can_be_written(at: Ground) -> None:
    """
    All of `/proc` but the processes, and `/sys`; nothing is opened.

    What is left out needs more than the permission to open it: to set the types of
    memory, a capability; to be told of pressure, nothing, and everybody may.
    """
    del at
    for top in ("/proc", "/sys"):
        for folder, folders, names in os.walk(top):
            if folder == "/proc":
                folders[:] = [n for n in folders if not n.isdigit() and not n.endswith("self")]
            if folder == "/proc/pressure" or folder.count("/") > 5:
                folders.clear()
                continue
            for name in names:
                path = f"{folder}/{name}"
                if path != "/proc/mtrr" and os.access(path, os.W_OK) and not os.path.islink(path):
                    return
    raise Blocked("nothing")
