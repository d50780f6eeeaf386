"""Changing what lies outside the workspace, by every call that changes files."""

import errno
import fcntl
import os
import struct

import pytest

from tests.breakout.inside import Ground, append, make, may_write, open_for_writing, reaches
from tests.breakout.table import attempt, unless_landlock


@attempt("read-only", "workspace", "root-but", blocked_by="EROFS")
@pytest.mark.requirement("security.sandbox.errors")
def write_to_a_file_outside(at: Ground) -> None:
    append(at.file)


@attempt("narrow", blocked_by="ENOENT")
def write_to_a_file_that_the_profile_does_not_show(at: Ground) -> None:
    append(at.file)


@attempt("read-only", blocked_by="EROFS")
def write_to_the_workspace_of_a_read_only_profile(at: Ground) -> None:
    append(f"{at.work}/notes")


@attempt("read-only", "workspace", "root-but", blocked_by="EROFS")
@pytest.mark.requirement("security.sandbox.errors")
def create_a_file_outside(at: Ground) -> None:
    make(f"{at.outside}/new")


@attempt("workspace", blocked_by="EROFS")
def create_a_file_beside_the_workspace(at: Ground) -> None:
    make(f"{at.base}/new")


@attempt("workspace", blocked_by="EROFS")
def create_a_file_without_a_name_outside(at: Ground) -> None:
    """With `O_TMPFILE`, to be linked later."""
    os.close(os.open(at.outside, os.O_TMPFILE | os.O_WRONLY, 0o600))


@attempt("workspace", "root-but", blocked_by="EROFS")
def remove_a_file_outside(at: Ground) -> None:
    os.unlink(at.file)


@attempt("workspace", "root-but", blocked_by="EROFS EXDEV EBUSY")
def move_a_directory_outside_away(at: Ground) -> None:
    os.rename(f"{at.outside}/locked", f"{at.outside}/unlocked")


@attempt("workspace", blocked_by="EXDEV EROFS")
def move_a_file_from_outside_into_the_workspace(at: Ground) -> None:
    os.rename(at.file, f"{at.work}/mine")


@attempt("workspace", blocked_by="EXDEV EROFS")
def move_a_file_of_the_workspace_over_one_outside(at: Ground) -> None:
    os.rename(f"{at.work}/notes", at.file)


@attempt("workspace", "root-but", blocked_by="EROFS")
def truncate_a_file_outside(at: Ground) -> None:
    os.truncate(at.file, 0)


@attempt("workspace", "root-but", blocked_by="EROFS")
def change_the_mode_of_a_file_outside(at: Ground) -> None:
    os.chmod(at.file, 0o777)


@attempt("workspace", blocked_by="EROFS")
def change_the_owner_of_a_file_outside(at: Ground) -> None:
    os.chown(at.file, os.getuid(), os.getgid())


@attempt("workspace", blocked_by="EROFS")
def change_the_times_of_a_file_outside(at: Ground) -> None:
    os.utime(at.file, (0, 0))


@attempt("workspace", blocked_by="EROFS", kernel="attributes of files of this kind")
def set_an_attribute_of_a_file_outside(at: Ground) -> None:
    os.setxattr(at.file, "user.holdfast", b"x")


@attempt("workspace", blocked_by="EROFS", kernel="flags of files of this kind")
def set_a_flag_of_a_file_outside_through_a_descriptor_for_reading(at: Ground) -> None:
    """`FS_IOC_SETFLAGS` asks for no descriptor that may write."""
    fd = os.open(at.file, os.O_RDONLY)
    flags = struct.unpack("l", fcntl.ioctl(fd, 0x80086601, bytes(8)))[0]
    fcntl.ioctl(fd, 0x40086602, struct.pack("l", flags | 0x40))


@attempt("workspace", blocked_by="EROFS")
def change_the_mode_through_a_descriptor_for_reading(at: Ground) -> None:
    os.fchmod(os.open(at.file, os.O_RDONLY), 0o777)


@attempt("workspace", blocked_by="EROFS")
def reopen_a_descriptor_for_reading_to_write(at: Ground) -> None:
    fd = os.open(at.file, os.O_RDONLY)
    append(f"/proc/self/fd/{fd}")


@attempt("workspace", blocked_by="EROFS")
def truncate_through_a_path_only_descriptor(at: Ground) -> None:
    fd = os.open(at.file, os.O_PATH)
    os.truncate(f"/proc/self/fd/{fd}", 0)


@attempt("workspace", blocked_by="EROFS")
def make_a_fifo_outside(at: Ground) -> None:
    os.mkfifo(f"{at.outside}/mine")


@attempt(
    "workspace",
    "networked",
    "read-only",
    "narrow",
    blocked_by="EACCES ENOENT",
    gap=unless_landlock(2, "a read-only mount does not stop a write into a FIFO that exists"),
)
@pytest.mark.requirement("security.sandbox.fifos")
def write_into_a_fifo_outside(at: Ground) -> None:
    # Open for reading, too, so that nobody has to wait at the other end.
    os.close(os.open(f"{at.outside}/fifo", os.O_RDWR | os.O_NONBLOCK))


@attempt(
    "workspace",
    blocked_by="EACCES",
    gap=unless_landlock(2, "a read-only mount does not stop a write into a FIFO that exists"),
)
@pytest.mark.requirement("security.sandbox.fifos")
def write_into_a_fifo_outside_by_a_descriptor(at: Ground) -> None:
    fd = os.open(f"{at.outside}/fifo", os.O_PATH)
    os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_NONBLOCK))


@attempt(
    "workspace",
    blocked_by="EACCES",
    gap="Landlock knows no exceptions below what may be written",
)
def write_into_a_fifo_of_git(at: Ground) -> None:
    os.close(os.open(f"{at.work}/.git/fifo", os.O_RDWR | os.O_NONBLOCK))


@attempt("guarded", "root-but", blocked_by="EACCES")
def write_into_a_fifo_that_is_denied(at: Ground) -> None:
    os.close(os.open(f"{os.path.dirname(at.secret)}/fifo", os.O_RDWR | os.O_NONBLOCK))


@attempt("read-only", "workspace", "narrow", blocked_by="EROFS EACCES", needs="root")
def change_a_program_of_the_system(at: Ground) -> None:
    """It is asked for, and not done."""
    del at
    may_write("/bin/sh")


@attempt("read-only", "workspace", "guarded", "narrow", blocked_by="ENOENT")
def write_to_the_shared_memory_of_the_host(at: Ground) -> None:
    open_for_writing(at.outsider["shared"])


@attempt("read-only", "workspace", "networked", "offline", blocked_by="EPERM")
@pytest.mark.requirement("security.sandbox.leases")
def hold_up_all_who_open_a_file_outside(at: Ground) -> None:
    """A lease takes no right to write; the kernel gives it 45 seconds against each open."""
    fd = os.open(at.file, os.O_RDONLY)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)


@attempt("read-only", "workspace", "networked", "offline", blocked_by="EPERM")
@pytest.mark.requirement("security.sandbox.snapshots")
def make_a_snapshot_of_what_is_denied(at: Ground) -> None:
    """On btrfs it would have the denied files; other file systems do not know the call."""
    fd = os.open(at.work, os.O_RDONLY | os.O_DIRECTORY)
    # `struct btrfs_ioctl_vol_args_v2` with a source that is no descriptor.
    arguments = bytearray(struct.pack("=q4088x", -1))
    reaches(lambda: fcntl.ioctl(fd, 0x50009417, arguments), errno.ENOTTY, errno.EBADF, errno.EINVAL)
