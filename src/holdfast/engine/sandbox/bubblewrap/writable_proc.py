"""Finds writable files of the kernel in `/proc`, beside those of `/proc/sys`."""

import os
import stat
from collections.abc import Iterator

__all__ = ["owns_settings", "writable_settings"]

# Entries of `/proc` that bubblewrap makes read-only in every sandbox, and `pressure`, which is
# writable for everybody: a write only asks for notifications.
_COVERED = frozenset({"sys", "sysrq-trigger", "irq", "bus", "pressure"})


def writable_settings(proc: str = "/proc") -> tuple[str, ...]:
    """
    Return the entries of `/proc` with files that this user may write, without capabilities.

    Which entries exist depends on the build of the kernel; as a rule all belong to root.
    """
    try:
        names = sorted(os.listdir(proc))
    except OSError:
        # No `/proc` is mounted.
        return ()
    found: list[str] = []
    for name in names:
        path = f"{proc}/{name}"
        # Processes have their own rules, and links such as `self` lead to them.
        if name.isdigit() or name in _COVERED or os.path.islink(path):
            continue
        if any(map(_is_writable, _files_below(path))):
            found.append(path)
    return tuple(found)


def owns_settings(proc: str = "/proc") -> bool:
    """
    Return True if the kernel's files in `/proc` belong to this user, as they do to root.

    Their owner may change their modes, and a change in one `/proc` shows in all of them.
    """
    try:
        return os.stat(f"{proc}/version").st_uid == os.geteuid()
    except OSError:
        return False


def _is_writable(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        # It belonged to a process that has ended.
        return False
    # By the mode, not by `access`: root's capabilities are gone inside of a sandbox.
    mine = status.st_uid == os.geteuid() and status.st_mode & stat.S_IWUSR
    return bool(mine or status.st_mode & stat.S_IWOTH)


def _files_below(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
    for folder, _, names in os.walk(path):
        yield from (f"{folder}/{name}" for name in names)
