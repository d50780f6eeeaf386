"""Searches for a program in the directories of `PATH`, as `execvp` does."""

import os
from collections.abc import Iterator

__all__ = ["candidates"]

# Search path of `execvp` without a `PATH` (`confstr(_CS_PATH)` of glibc).
_DEFAULT_PATH = "/bin:/usr/bin"


def candidates(program: str, path: str | None) -> Iterator[str]:
    """
    Yield the files that the name of a program may mean, in order; they need not exist.

    The caller decides whether to search for a name with a slash.

    Args:
        program: Its name.
        path: The value of `PATH`, or None if it is not set. Candidates in its relative
            directories stay relative: a script sees its path as `$0`.
    """
    for folder in (_DEFAULT_PATH if path is None else path).split(":"):
        yield os.path.join(folder, program)
