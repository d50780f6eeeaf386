"""The files by which the kernel lets itself be changed, beside those of `/proc/sys`."""

import os
import stat
from collections.abc import Iterator

__all__ = ["owns_settings", "writable_settings"]

_COVERED = frozenset({"sys", "sysrq-trigger", "irq", "bus", "pressure"})
"""Of `/proc`: read-only in every sandbox. By the last one everybody may ask to be told."""


def writable_settings(proc: str = "/proc") -> tuple[str, ...]:
    """
    What of the kernel's own files this user may write to: folders, or files at the top.

    That is, without privileges, which a command has none of. Which there are depends on how
    the kernel was built; as a rule they all belong to root.
    """
    try:
        names = sorted(os.listdir(proc))
    except OSError:
        return ()  # there is none
    found: list[str] = []
    for name in names:
        path = f"{proc}/{name}"
        if name.isdigit() or name in _COVERED or os.path.islink(path):
            continue
        if any(map(_is_writable, _files_below(path))):
            found.append(path)
    return tuple(found)


def owns_settings(proc: str = "/proc") -> bool:
    """
    Whether the kernel's own files belong to this user, as they do to root.

    Such a user may change their modes and owners, and a change in one `/proc` is one in all.
    """
    try:
        return os.stat(f"{proc}/version").st_uid == os.geteuid()
    except OSError:
        return False


def _is_writable(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False  # of a process that has ended
    mine = status.st_uid == os.geteuid() and status.st_mode & stat.S_IWUSR
    return bool(mine or status.st_mode & stat.S_IWOTH)


def _files_below(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
    for folder, _, names in os.walk(path):
        yield from (f"{folder}/{name}" for name in names)
