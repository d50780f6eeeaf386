"""
What the kernel said, in the words and the codes of the protocol [fs.errors.*].

This is the one place where an errno becomes a kind of refusal: what is not there is
`NotFound`, what was asked wrongly or is not permitted is `InvalidRequest`, all else
`OperationFailed`.
"""

import errno
from typing import Self

from holdfast.errors import InvalidRequest, NotFound, OperationFailed, Refused
from holdfast.protocol.paths import ForeignPathUri, PathUri
from holdfast.system_text import system_text

__all__ = ["about", "native_path", "refusal"]

_INVALID = frozenset({errno.EINVAL, errno.EACCES, errno.EPERM})


def native_path(uri: PathUri) -> str:
    """
    The path on this machine, fit for a system call.

    Raises:
        InvalidRequest: It is a path of another system, or has a NUL in it.
    """
    try:
        path = uri.native
    except ForeignPathUri as error:
        raise InvalidRequest(str(error)) from None
    if "\0" in path:
        raise InvalidRequest("file name contained an unexpected NUL byte", path=path)
    return path


def refusal(error: OSError, path: str | None = None) -> Refused:
    """
    Return the exception to raise for what a system call raised.

    Args:
        error: What it raised.
        path: What the caller asked for. Unless given, what the system call was given, if
            that is an absolute path; a name inside of an open folder tells nothing.
    """
    number = error.errno
    if path is None and isinstance(error.filename, str) and error.filename.startswith("/"):
        path = error.filename
    if number is None:
        return OperationFailed(str(error), path=path)
    if number == errno.ENOENT:
        return NotFound(system_text(number), errno=number, path=path)
    kind = InvalidRequest if number in _INVALID else OperationFailed
    return kind(system_text(number), errno=number, path=path)


class about:
    """
    Gives errors of an operation on a path that path, unless they have one already.

    A system call's own error becomes the refusal it means. The path is the one that was
    asked for, also if the operation met the fault behind a link or below the path.
    """

    __slots__ = ("_path",)

    def __init__(self, path: str | None) -> None:
        self._path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Refused):  # which may be an `OSError`, too
            if error.path is None:
                error.path = self._path
        elif isinstance(error, OSError):
            raise refusal(error, self._path) from error
