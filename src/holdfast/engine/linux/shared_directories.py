"""
Rules of the kernel for directories that several users share, such as `/tmp`.

With the settings `fs.protected_…`, the default of most systems, the kernel neither follows a link
of another user there nor opens such a file to create it. Code that resolves paths by descriptors
has to ask here instead.
"""

import os
import stat

__all__ = ["creates_over", "follows"]

# Mode bits of a directory in which every user may create files, but not remove those of others.
_SHARED = stat.S_ISVTX | stat.S_IWOTH
# The same for a group, to which the stricter of two levels applies.
_SHARED_BY_GROUP = stat.S_ISVTX | stat.S_IWGRP


def follows(link: os.stat_result, folder: os.stat_result) -> bool:
    """Return True if the kernel follows a link for this user; `folder` is its directory."""
    if _is_trusted(link, folder) or folder.st_mode & _SHARED != _SHARED:
        return True
    return _level("protected_symlinks") < 1


def creates_over(file: os.stat_result, folder: os.stat_result) -> bool:
    """Return True if the kernel opens an existing file for this user with `O_CREAT`."""
    kinds = {stat.S_IFREG: "protected_regular", stat.S_IFIFO: "protected_fifos"}
    setting = kinds.get(stat.S_IFMT(file.st_mode))
    if setting is None or _is_trusted(file, folder):
        return True
    if folder.st_mode & _SHARED == _SHARED:
        return _level(setting) < 1
    return folder.st_mode & _SHARED_BY_GROUP != _SHARED_BY_GROUP or _level(setting) < 2


def _is_trusted(file: os.stat_result, folder: os.stat_result) -> bool:
    return file.st_uid in (os.geteuid(), folder.st_uid)


def _level(setting: str) -> int:
    try:
        with open(f"/proc/sys/fs/{setting}", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        # Without a `/proc`, assume the strictest, which does no harm.
        return 2
