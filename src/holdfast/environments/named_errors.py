"""
Errors of file operations that name their object: `cannot read notes.txt: …`.

The texts below are the protocol's own, which name no path. Class, `errno` and `path` stay
unchanged.
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
    Put the operation and its path in front of the text of each refusal.

    Args:
        verb: The operation, such as `read`.
        path: Its object, as the caller wrote it.
        target: Its destination, if any. The error then names the one at fault, if it is known.
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
