"""What a server refused, as the error that a local implementation of a seam raises."""

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import (
    InvalidParams,
    InvalidRequest,
    NotFound,
    OperationFailed,
    Refused,
    RemoteError,
    Unsupported,
)
from holdfast.protocol import codes

__all__ = ["refusals"]

_KINDS: dict[int, type[Refused]] = {
    codes.NOT_FOUND: NotFound,
    codes.INVALID_REQUEST: InvalidRequest,
    codes.INVALID_PARAMS: InvalidParams,
    codes.INTERNAL_ERROR: OperationFailed,
}


@contextmanager
def refusals(
    *, process_id: str | None = None, internal: type[OperationFailed] = OperationFailed
) -> Iterator[None]:
    """
    Turn the codes of a server back into kinds of `Refused`, with its own words.

    The reverse of what `rpc/router.py` does (filesystem spec 7). Any other code, and a
    method that the server does not know, stays a `RemoteError`.
    """
    try:
        yield
    except RemoteError as error:
        kind = _KINDS.get(error.code)
        if isinstance(error, Unsupported) or kind is None:
            raise
        if kind is OperationFailed:
            kind = internal
        raise kind(error.message) from error
