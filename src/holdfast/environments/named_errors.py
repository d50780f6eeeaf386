"""
Errors of file operations with the object in their text: `cannot read notes.txt: …`.

The texts of the seam below are the protocol's own, which name no path. Class, `errno` and
`path` stay as they are.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import Refused, RemoteError
from holdfast.protocol.paths import PathUri
from holdfast.system_text import without_number

__all__ = ["naming"]


@contextmanager
def naming(
    verb: str,
    path: str | os.PathLike[str] | PathUri,
    target: str | os.PathLike[str] | PathUri | None = None,
) -> Iterator[None]:
    """
    Put what was done, and to what, in front of the text of each refusal.

    Args:
        verb: What was done, such as `read`.
        path: What it was done to, as the caller wrote it.
        target: Where it was to go, if there is such a thing. The error then says which of the
            two is at fault, as far as it knows.
    """
    try:
        yield
    except (Refused, RemoteError) as error:
        reason = error.message if isinstance(error, RemoteError) else str(error)
        reason = without_number(reason, error.errno)
        what = _shown(path)
        if target is not None:
            if error.path is not None:
                reason = f"{error.path}: {reason}"
            what += f" to {_shown(target)}"
        error.args = (f"cannot {verb} {what}: {reason}", *error.args[1:])
        raise


def _shown(path: str | os.PathLike[str] | PathUri) -> str:
    return str(path) if isinstance(path, PathUri) else os.fspath(path)
