"""
Checks with few system calls whether many paths are still what they were.

A policy is built from dozens of answers of the disk, and is reused only if all of them still
hold. Asking one by one costs more than most file operations. One `openat2` without links proves
that all components of a path are directories. `access` tells that a path is still missing
without the cost of an exception.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from holdfast.engine.linux.openat2 import RESOLVE_NO_SYMLINKS, OpenHow, openat2

__all__ = ["PathFingerprint"]

_DIRECTORY_WITHOUT_LINKS = OpenHow(os.O_PATH | os.O_DIRECTORY, RESOLVE_NO_SYMLINKS)

# Return True if a path exists; a link at its end is not followed.
_exists = partial(os.access, mode=os.F_OK, effective_ids=True, follow_symlinks=False)


class PathFingerprint:
    """Earlier answers about paths, arranged so that they can be checked quickly."""

    __slots__ = ("_directories", "_missing", "_rest")

    def __init__(self, kinds: Mapping[str, str | None], links: Mapping[str, str]) -> None:
        """
        Args:
            kinds: Answers of `Disk.kind` by path.
            links: Answers of `Disk.target` by path.
        """
        # Only the innermost directories: opening one proves all directories above it.
        directories = {path for path, kind in kinds.items() if kind == "directory"}
        inner = {path[: path.rindex("/")] or "/" for path in directories}
        self._directories = [os.fsencode(path) for path in directories - inner]
        # A path that no file can have stays missing, and needs no check.
        missing = (_encoded(path) for path, kind in kinds.items() if kind is None)
        self._missing = [path for path in missing if path is not None]
        # The target of a link is compared elsewhere, which also proves that it is a link.
        self._rest = {
            path: kind
            for path, kind in kinds.items()
            if kind is not None and kind != "directory" and not links.get(path)
        }

    @property
    def rest(self) -> Mapping[str, str]:
        """Answers that `still_true` does not check: files that are not directories."""
        return self._rest

    def still_true(self) -> bool:
        """
        Return True if all directories still exist as such, and all missing paths are missing.

        False may also mean that the kernel or a container refuses `openat2`.
        """
        for path in self._directories:
            descriptor = openat2(path, _DIRECTORY_WITHOUT_LINKS)
            # ELOOP, ENOTDIR and ENOENT mean a change; the caller finds out which.
            if descriptor < 0:
                return False
            os.close(descriptor)
        return not any(map(_exists, self._missing))


def _encoded(path: str) -> bytes | None:
    """Return a path as bytes for system calls; None if no file can have this path."""
    try:
        encoded = os.fsencode(path)
    except ValueError:
        return None
    return None if b"\0" in encoded else encoded
