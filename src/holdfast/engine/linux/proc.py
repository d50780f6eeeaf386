"""
Files of `/proc` about a process: its children, its umask, and the fields of `stat`.

The guardian reads them too, and must stay small: this module imports nothing but `os`.
"""

import os

__all__ = ["children_of", "children_of_thread", "read_proc", "stat_fields", "umask"]


def read_proc(path: str) -> bytes:
    """
    Return the content of a small file in `/proc`.

    Raises:
        OSError: The file cannot be read, or its process has ended.
    """
    # Without a Python file object, which would cost more than the read itself.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 65536)
    finally:
        os.close(file)


def children_of(pid: int | str) -> list[int]:
    """
    Return the pids of all children of a process, zombies included.

    Args:
        pid: The process; `self` for this one.

    Raises:
        OSError: The process has ended, or no descriptor is left to read the list.
    """
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            found += children_of_thread(f"/proc/{pid}/task/{thread}")
        except (FileNotFoundError, ProcessLookupError):
            # The thread has ended; or the kernel has no such file (CONFIG_PROC_CHILDREN).
            continue
    return found


def children_of_thread(folder: str) -> list[int]:
    """
    Return the pids of the children that one thread has started, the oldest first.

    Args:
        folder: `/proc/PID/task/TID`.

    Raises:
        OSError: The thread has ended, or no descriptor is left.
    """
    file = os.open(f"{folder}/children", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # In a loop: the kernel returns a page at a time, which holds some hundred pids.
        return [int(pid) for pid in b"".join(iter(lambda: os.read(file, 65536), b"")).split()]
    finally:
        os.close(file)


def stat_fields(folder: str) -> list[bytes]:
    """
    Return the fields of `stat` from the state on: state, parent, group, session and so on.

    Args:
        folder: `/proc/PID`, or that of a thread.

    Raises:
        OSError: The process has ended.
    """
    # The name before them may contain spaces and parentheses, but ends at the last `)`.
    return read_proc(f"{folder}/stat").rpartition(b")")[2].split()


def umask() -> int | None:
    """
    Return the umask of this process, or None if the kernel does not report it.

    `os.umask` would change it for a moment, in which other threads may create files.

    Raises:
        OSError: No descriptor is left to read it.
    """
    _, found, rest = read_proc("/proc/self/status").partition(b"\nUmask:")
    return int(rest.split(None, 1)[0], 8) if found else None
