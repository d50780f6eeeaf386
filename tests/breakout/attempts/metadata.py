"""Metadata of devices and of the kernel's own files: who may use them, and since when."""

import os

import pytest

from tests.breakout.inside import Blocked, Ground
from tests.breakout.table import attempt

# Each sets what is set already. That is refused or not like any other value, and where it gets
# through nobody on the machine notices.


@attempt("read-only", "workspace", "narrow", "offline", blocked_by="EPERM", needs="root")
@pytest.mark.requirement("security.sandbox.device-metadata")
def change_the_mode_of_a_device(at: Ground) -> None:
    del at
    os.chmod("/dev/null", os.stat("/dev/null").st_mode & 0o7777)


@attempt("read-only", "networked", "root-but", blocked_by="EPERM", needs="root")
@pytest.mark.requirement("security.sandbox.device-metadata")
def change_the_times_of_a_device(at: Ground) -> None:
    del at
    known = os.stat("/dev/zero")
    os.utime("/dev/zero", ns=(known.st_atime_ns, known.st_mtime_ns))


@attempt("read-only", "workspace", blocked_by="EPERM EINVAL", needs="root")
@pytest.mark.requirement("security.sandbox.device-metadata")
def change_the_owner_of_a_device(at: Ground) -> None:
    del at
    known = os.stat("/dev/urandom")
    os.chown("/dev/urandom", known.st_uid, known.st_gid)


@attempt("read-only", "workspace", "offline", blocked_by="EPERM", needs="root")
@pytest.mark.requirement("security.sandbox.device-metadata")
def change_the_mode_of_its_own_input(at: Ground) -> None:
    """Its descriptor was opened before there was a sandbox."""
    del at
    os.fchmod(0, os.fstat(0).st_mode & 0o7777)


@attempt("read-only", "workspace", blocked_by="EPERM", needs="root")
def change_the_mode_of_any_device(at: Ground) -> None:
    del at
    for name in ("full", "random", "tty", "zero", "urandom"):
        try:
            os.chmod(f"/dev/{name}", os.stat(f"/dev/{name}").st_mode & 0o7777)
        except OSError:
            continue
        return
    raise PermissionError(1, "all of them")


@attempt("read-only", "workspace", "networked", "offline", blocked_by="EROFS EPERM", needs="root")
@pytest.mark.requirement("security.sandbox.proc")
def change_the_mode_of_a_file_of_the_kernel(at: Ground) -> None:
    """Every `/proc` of the machine shows the same."""
    del at
    os.chmod("/proc/version", os.stat("/proc/version").st_mode & 0o7777)


@attempt("read-only", "offline", blocked_by="EROFS|EPERM|nothing there", needs="root")
def change_the_mode_of_a_file_of_the_system(at: Ground) -> None:
    del at
    for path in ("/sys/kernel/profiling", "/sys/kernel/mm", "/sys/kernel"):
        if os.path.exists(path):
            return os.chmod(path, os.stat(path).st_mode & 0o7777)
    raise Blocked("nothing there")
