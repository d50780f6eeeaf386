"""
Errors of file operations that name the file: `cannot read notes.txt: …`.

The protocol's texts name no path. Class, `errno` and `path` of an error stay unchanged.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.base.errors import Refused, RemoteError
from holdfast.base.system_text import without_number
from holdfast.wire.protocol.paths import PathUri

__all__ = ["naming"]


@contextmanager
def naming(
    verb: str,
    path: str | os.PathLike[str] | PathUri,
    target: str | os.PathLike[str] | PathUri | None = None,
) -> Iterator[None]:
    """
    Prefix the message of each refusal with the operation and its path.

    Args:
        verb: The operation, such as `read`.
        path: Its file, as the caller wrote it.
        target: Its destination, if any. The error then names the path at fault, if known.
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
