"""
What the kernel said, in the words and the codes of the protocol (filesystem spec 1.1).

This is the one place where an errno becomes a kind of refusal: what is not there is
`NotFound`, what was asked wrongly or is not permitted is `InvalidRequest`, all else
`OperationFailed`.
"""

import errno
import os

from holdfast.errors import InvalidRequest, NotFound, OperationFailed, Refused
from holdfast.protocol.paths import ForeignPathUri, PathUri

__all__ = ["native_path", "os_text", "refusal"]

_INVALID = frozenset({errno.EINVAL, errno.EACCES, errno.EPERM})

_WORDS = {
    errno.EIO: "I/O error",
    errno.EBUSY: "Resource busy",
    errno.ENAMETOOLONG: "Filename too long",
    errno.ELOOP: "Symbolic link loop",
}
"""Where the C library of the real server words an error differently from most others."""


def os_text(number: int) -> str:
    """The text of an error of the system; clients rely on its last part at most."""
    return f"{_WORDS.get(number) or os.strerror(number)} (os error {number})"


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
        raise InvalidRequest("file name contained an unexpected NUL byte")
    return path


def refusal(error: OSError) -> Refused:
    """The exception to raise for what a system call raised."""
    number = error.errno
    if number is None:
        return OperationFailed(str(error))
    if number == errno.ENOENT:
        return NotFound(os_text(number))
    kind = InvalidRequest if number in _INVALID else OperationFailed
    return kind(os_text(number))
