"""
Asks the disk in few calls whether every path is still what it was.

A policy is made from dozens of answers, and is used again only if all of them still
hold. One by one they cost more than what the policy is asked for. But a directory that
can be opened without meeting any link has nothing but directories above it: so one
call stands for all of its components. And that a path is still missing takes no error
that is made only to be thrown away.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import partial

__all__ = ["Recheck"]

_OPENAT2 = 437
"""The number of the system call; the same on every architecture."""

_AT_FDCWD = -100
_NO_LINKS = 0x04
"""`RESOLVE_NO_SYMLINKS`."""


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_how = _OpenHow(os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, _NO_LINKS)
_how_ref, _how_bytes = ctypes.byref(_how), ctypes.sizeof(_how)
_syscall = ctypes.CDLL(None).syscall

_exists = partial(os.access, mode=os.F_OK, effective_ids=True, follow_symlinks=False)
"""Whether a path is there, a link at its end not followed."""


class Recheck:
    """Answers that were given about paths, put so that they are quickly asked again."""

    __slots__ = ("_directories", "_missing", "_rest")

    def __init__(self, kinds: Mapping[str, str | None], links: Mapping[str, str]) -> None:
        """
        Args:
            kinds: What each path was, as `Disk.kind` says it.
            links: What each link said, as `Disk.target` does.
        """
        directories = {path for path, kind in kinds.items() if kind == "directory"}
        inner = {path[: path.rindex("/")] or "/" for path in directories}
        self._directories = [os.fsencode(path) for path in directories - inner]
        missing = (_encoded(path) for path, kind in kinds.items() if kind is None)
        self._missing = [path for path in missing if path is not None]
        # What a link says also says that it is one.
        self._rest = {
            path: kind
            for path, kind in kinds.items()
            if kind is not None and kind != "directory" and not links.get(path)
        }

    @property
    def rest(self) -> Mapping[str, str]:
        """The answers that `holds` does not look at."""
        return self._rest

    def holds(self) -> bool:
        """
        Whether it is certain that directories are still that, and nothing else has appeared.

        `False` may also mean that this kernel, or a container, lacks the call for it.
        """
        for path in self._directories:
            descriptor = _syscall(_OPENAT2, _AT_FDCWD, path, _how_ref, _how_bytes)
            if descriptor < 0:
                return False
            os.close(descriptor)
        return not any(map(_exists, self._missing))


def _encoded(path: str) -> bytes | None:
    """As system calls take it; `None` for what can never be there."""
    try:
        encoded = os.fsencode(path)
    except ValueError:
        return None
    return None if b"\0" in encoded else encoded
