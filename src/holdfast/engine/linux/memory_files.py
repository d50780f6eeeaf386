"""
Makes memory files (memfds) with data or a program for a child.

The sysctl `vm.memfd_noexec` restricts them. At 1, only memfds made with MFD_EXEC can be executed.
At 2 none can, and one made without MFD_NOEXEC_SEAL is refused. So each memfd states its purpose.
"""

import errno
import os

__all__ = ["data_file", "program_file"]

# MFD_NOEXEC_SEAL and MFD_EXEC, since Linux 6.3.
_NEVER_EXECUTED = 0x08
_EXECUTED = 0x10


def data_file(data: bytes) -> int:
    """
    Return a close-on-exec descriptor of a memfd with this content, at its beginning.

    Unlike a pipe, a memfd takes any amount of data without a reader.

    Raises:
        OSError: The kernel refused.
    """
    return _filled(_memory_file(_NEVER_EXECUTED), data)


def program_file(image: bytes) -> int:
    """
    Return a close-on-exec descriptor of a program, to be executed by `/proc/self/fd/N`.

    Raises:
        OSError: The kernel refused, and temporary files cannot be executed either.
    """
    # PermissionError: `vm.memfd_noexec` is 2, so no memory file may be executed.
    try:
        return _filled(_memory_file(_EXECUTED), image)
    except PermissionError:
        return _on_disk(image)


def _memory_file(purpose: int) -> int:
    try:
        return os.memfd_create("holdfast", os.MFD_CLOEXEC | purpose)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # A kernel before 6.3 knows neither flag.
        return os.memfd_create("holdfast", os.MFD_CLOEXEC)


def _filled(fd: int, data: bytes) -> int:
    try:
        _write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write(fd: int, data: bytes) -> None:
    # One write takes at most 2 GiB, and may take less.
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _on_disk(image: bytes) -> int:
    """Return a descriptor of a temporary file with the program; the file is already removed."""
    # Few kernels need this, and the import would add 4 ms to the first start of every server.
    import tempfile

    fd, path = tempfile.mkstemp(prefix="holdfast-")
    try:
        try:
            os.fchmod(fd, 0o500)
            _write(fd, image)
        finally:
            # Before the exec: ETXTBSY while a descriptor for writing is open.
            os.close(fd)
        if os.statvfs(path).f_flag & os.ST_NOEXEC:
            raise PermissionError(errno.EACCES, "no programs can be run from this directory", path)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.unlink(path)
