"""Looks up shells by kind on this machine [unified.4.kind]."""

import os
import shutil
from functools import lru_cache
from pathlib import PurePosixPath

from holdfast.wire.protocol.handshake import ShellInfo

__all__ = ["find_shell", "shell_kind"]

# Fallbacks if neither the user database nor `PATH` has the shell.
_USUAL = {
    "bash": ("/bin/bash", "/usr/bin/bash"),
    "zsh": ("/bin/zsh", "/usr/bin/zsh"),
    "sh": ("/bin/sh",),
}


@lru_cache(maxsize=64)
def shell_kind(name: str) -> str:
    """Return the kind of a shell: the file name without extension."""
    return PurePosixPath(name).stem


def find_shell(kind: str, users: ShellInfo) -> ShellInfo:
    """
    Return a shell of this machine.

    Args:
        kind: A name or path; only the file name counts.
        users: The user's shell, returned if it is of that kind.

    Returns:
        `/bin/sh` for a kind that is unknown or not installed.
    """
    kind = shell_kind(kind)
    # The user's own shell may be in an unusual directory.
    if kind == shell_kind(users.name):
        return users
    if kind in _USUAL:
        for path in (shutil.which(kind), *_USUAL[kind]):
            # `which` may return a relative path, which depends on the current directory.
            if path is not None and os.path.isabs(path) and os.access(path, os.X_OK):
                return ShellInfo(name=kind, path=path)
    return ShellInfo(name="sh", path="/bin/sh")
