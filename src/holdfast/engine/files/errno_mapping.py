"""
Maps an `OSError` to an exception of the protocol [fs.errors.*].

This is the only place that chooses the kind of exception by an errno. ENOENT is `NotFound`; EINVAL,
EACCES and EPERM are `InvalidRequest`; all others are `OperationFailed`.
"""

import errno
from typing import Self

from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidRequest, NotFound, OperationFailed, Refused
from holdfast.base.system_text import system_text
from holdfast.wire.protocol.paths import ForeignPathUri, PathUri

__all__ = ["about", "native_path", "refusal", "too_large"]

# Errors that the protocol blames on the request.
_INVALID = frozenset({errno.EINVAL, errno.EACCES, errno.EPERM})


def native_path(uri: PathUri) -> str:
    """
    Return the path of a URI for a system call.

    Raises:
        InvalidRequest: It is a path of another operating system, or contains a NUL.
    """
    try:
        path = uri.native
    except ForeignPathUri as error:
        raise InvalidRequest(str(error)) from None
    if "\0" in path:
        raise InvalidRequest(texts.NUL_IN_NAME, path=path)
    return path


def refusal(error: OSError, path: str | None = None) -> Refused:
    """
    Return the exception of the protocol for an error of a system call.

    Args:
        error: Error of the system call.
        path: Path that the client asked for. Unless given, the path of the error, if it is
            absolute; a name relative to an open directory would be useless.
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


def too_large(most: int) -> InvalidRequest:
    """Return the error for a file of more bytes than may be read at once."""
    return InvalidRequest(texts.too_large_to_read(most), errno=errno.EFBIG)


class about:
    """
    Context manager that adds a path to errors without one, and maps an `OSError`.

    The path is the requested one, even if the error occurred at the target of a link or below it.
    """

    __slots__ = ("_path",)

    def __init__(self, path: str | None) -> None:
        self._path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # Before `OSError`: some of these exceptions are also an `OSError`.
        if isinstance(error, Refused):
            if error.path is None:
                error.path = self._path
        elif isinstance(error, OSError):
            raise refusal(error, self._path) from error
