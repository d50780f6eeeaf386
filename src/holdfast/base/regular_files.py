"""Reading of files that options and settings name, without waiting for another program."""

import os
import select
import stat
import time

__all__ = ["read_regular"]

_NULL_DEVICE = os.makedev(1, 3)


def read_regular(
    path: str | os.PathLike[str], *, largest: int, pipe_within: float | None = None
) -> bytes:
    """
    Return the content of a regular file. The null device counts as an empty one.

    Opening a FIFO waits for a writer, and reading it waits for data. A thread that tried would be
    lost each time.

    Args:
        path: The file. Links are followed.
        largest: Bytes that it may have.
        pipe_within: Seconds in which a pipe without a name, such as `<(command)` of a shell, has to
            end; None to refuse one.

    Raises:
        OSError: It cannot be read, is not a regular file, or has more bytes.
    """
    # `open` refuses a directory.
    with open(path, "rb", buffering=0, opener=_open_at_once) as file:
        descriptor = file.fileno()
        about = os.fstat(descriptor)
        if stat.S_ISFIFO(about.st_mode) and _is_nameless(descriptor):
            if pipe_within is None:
                raise OSError(None, "it is a pipe, which can be read only once")
            deadline = time.monotonic() + pipe_within
        elif stat.S_ISREG(about.st_mode) or _is_null_device(about):
            # Reading does not wait for a writer.
            deadline = 0.0
        else:
            raise OSError(None, "it is not a regular file")
        content = _read(descriptor, largest + 1, deadline)
    if len(content) > largest:
        raise OSError(None, f"it has more than {largest:,} bytes")
    return content


def _open_at_once(path: str, flags: int) -> int:
    # O_NOCTTY: a terminal is refused, and must not become that of the process.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def _is_nameless(pipe: int) -> bool:
    return os.readlink(f"/proc/self/fd/{pipe}").startswith("pipe:[")


def _is_null_device(about: os.stat_result) -> bool:
    return stat.S_ISCHR(about.st_mode) and about.st_rdev == _NULL_DEVICE


def _read(descriptor: int, most: int, deadline: float) -> bytes:
    readable = select.poll()
    readable.register(descriptor, select.POLLIN)
    found = b""
    while len(found) < most:
        try:
            more = os.read(descriptor, most - len(found))
        except BlockingIOError:
            if not readable.poll(1000 * max(0.0, deadline - time.monotonic())):
                raise OSError(None, "it is a pipe that does not end") from None
            continue
        if not more:
            break
        found += more
    return found
