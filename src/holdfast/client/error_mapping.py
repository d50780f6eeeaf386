"""
Conversion of a server's JSON-RPC errors into the exceptions that a local backend raises.

This is the reverse of `wire/rpc/router.py`. A Holdfast server sends the exception as data. Another
server sends a code and a text only; this module is the only one that interprets those.
"""

import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final, TypeGuard

from holdfast.base.dialect import texts
from holdfast.base.errors import (
    CannotEnforce,
    DuplicateProcess,
    InvalidParams,
    InvalidPermissionPath,
    InvalidRequest,
    NotFound,
    OperationFailed,
    Refused,
    RemoteError,
    SpawnFailed,
    StdinClosed,
    UnknownProcess,
)
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.paths import ForeignPathUri, InvalidPathUri, PathUri
from holdfast.wire.rpc.router import kind_of

__all__ = ["refusal_of", "refusals", "start_refusals"]

_BY_CODE: Final[dict[int, type[Refused]]] = {
    codes.NOT_FOUND: NotFound,
    codes.INVALID_REQUEST: InvalidRequest,
    codes.INVALID_PARAMS: InvalidParams,
    codes.INTERNAL_ERROR: OperationFailed,
}

_BY_KIND: Final[dict[str, type[Refused]]] = {
    kind_of(kind): kind
    for kind in (
        CannotEnforce,
        DuplicateProcess,
        InvalidParams,
        InvalidPermissionPath,
        InvalidRequest,
        NotFound,
        OperationFailed,
        SpawnFailed,
        StdinClosed,
        UnknownProcess,
    )
}

# The end of an operating system error in the text of a server without our extensions, which has
# no other way to send the number. The form is that of Rust's standard library, and stable for years
# [start.program.errors].
_OS_ERROR: Final = re.compile(r"\(os error ([0-9]{1,9})\)\Z")

# Endings of the lines that such a server writes about a program on a terminal, and the errno
# each stands for. These texts carry no number but are as stable
# [start.program.errors-on-terminal]. Without them a command that does not exist looks like a
# server that is out of memory.
_TERMINAL_ENDINGS: Final = (
    (texts.FOUND_NOT_EXECUTABLE, errno.EACCES),
    (texts.FOUND_DIRECTORY, errno.EACCES),
    (f"because {texts.MISSING_FILE}", errno.ENOENT),
    (texts.NAMED_ENOENT, errno.ENOENT),
    (f"because {texts.IS_DIRECTORY}", errno.EISDIR),
    (f"because {texts.NOT_EXECUTABLE}", errno.EACCES),
    (texts.NAMED_EACCES, errno.EACCES),
)


@contextmanager
def refusals(
    *,
    internal: type[Refused] = OperationFailed,
    invalid: type[Refused] = InvalidRequest,
    process_id: str | None = None,
    path: PathUri | None = None,
    program: str | None = None,
) -> Iterator[None]:
    """
        Raise the errors of a server as kinds of `Refused`, with the server's texts.

        The server's `RemoteError` stays in `__cause__`. It is raised unchanged if its code is not a
        refusal, such as that of a method that the server does not know (`Unsupported`).

        Args:
            internal: The class for an internal error in this method, if the server does not say.
            invalid: The class for an invalid request. Only for methods where there is one
                possibility.
    process_id: The process of the call. Without it, no error becomes
                `UnknownProcess` or `DuplicateProcess`.
            path: The path of the call, if the server does not say.
            program: The program that should have been executed, likewise.
    """
    try:
        yield
    except RemoteError as error:
        refused = refusal_of(
            error,
            internal=internal,
            invalid=invalid,
            process_id=process_id,
            path=path,
            program=program,
        )
        if refused is None:
            raise
        raise refused from error


def start_refusals(process_id: str, program: str) -> AbstractContextManager[None]:
    """
    Return `refusals` for `process/start`.

    Args:
        process_id: The id of the start.
        program: The first element of `argv`.
    """
    # An invalid request means a duplicate id here. Its only other cause is a start cancelled by
    # `process/terminate` [terminate.starting], which needs an answered start first.
    return refusals(
        internal=SpawnFailed, invalid=DuplicateProcess, process_id=process_id, program=program
    )


def refusal_of(
    error: RemoteError,
    *,
    internal: type[Refused] = OperationFailed,
    invalid: type[Refused] = InvalidRequest,
    process_id: str | None = None,
    path: PathUri | None = None,
    program: str | None = None,
) -> Refused | None:
    """Return the error that `refusals` raises, or None if there is none."""
    kind = _BY_CODE.get(error.code)
    if kind is None:
        return None
    if kind is OperationFailed:
        kind = internal
    elif kind is InvalidRequest:
        kind = invalid
    if _has_error_data(error.data):
        name = error.data["kind"]
        known = _BY_KIND.get(name) if isinstance(name, str) else None
        if known is not None:
            # The class that the server names is more precise than the code.
            kind = known
        elif kind is invalid:
            # A newer server sent a kind that this version does not know: use the most general one.
            kind = InvalidRequest
        number = error.data.get("errno")
        where = error.data.get("path")
        what = error.data.get("program")
        return _make(
            kind,
            error.message,
            process_id,
            # Not `isinstance`: a bool is an int, but not an errno.
            errno=number if type(number) is int else None,
            path=_native(where) if isinstance(where, str) else None,
            program=what if isinstance(what, str) else None,
        )
    return _make(
        kind,
        error.message,
        process_id,
        errno=_number_in(error.message, kind),
        path=None if path is None else _native(str(path)),
        program=program if issubclass(kind, SpawnFailed) else None,
    )


def _make(
    kind: type[Refused],
    message: str,
    process_id: str | None,
    *,
    errno: int | None,
    path: str | None,
    program: str | None,
) -> Refused:
    if issubclass(kind, UnknownProcess | DuplicateProcess):
        if process_id is not None:
            return kind(process_id, message)
        # Both classes are invalid requests, and need an id to be raised as themselves.
        kind = InvalidRequest
    return kind(message, errno=errno, path=path, program=program)


def _has_error_data(data: object) -> TypeGuard[Mapping[str, object]]:
    """Return True if `data` has the form that a Holdfast server sends with an error."""
    return isinstance(data, Mapping) and "kind" in data


def _native(path: str) -> str:
    """Return a path of the wire in native spelling; unchanged if it belongs to another system."""
    try:
        return PathUri.parse(path).native
    except (InvalidPathUri, ForeignPathUri):
        return path


def _number_in(text: str, kind: type[Refused]) -> int | None:
    """Return the errno that a server put into its text, or None."""
    found = _OS_ERROR.search(text)
    if found is not None:
        return int(found[1])
    if not issubclass(kind, SpawnFailed) or not text.startswith(texts.NOT_SPAWNED):
        return None
    lines = text.split("\n")
    for line in lines:
        for ending, number in _TERMINAL_ENDINGS:
            if line.endswith(ending):
                return number
    # Every directory of PATH is listed before this line.
    if lines[-1].startswith((texts.NOT_IN_PATH, texts.NO_PATH)):
        return errno.ENOENT
    return None
