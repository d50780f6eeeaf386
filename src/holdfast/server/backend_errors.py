"""Turns the errors of a served backend into errors that have a code on the wire."""

import asyncio

from holdfast.base.errors import (
    HoldfastError,
    MethodNotFound,
    OperationFailed,
    Refused,
    Unsupported,
)
from holdfast.base.tasks import was_cancelled

__all__ = ["backend_errors"]


def backend_errors() -> "_BackendErrors":
    """
    Raise each error of a backend as a refusal; call the backend inside.

    A backend may be another server. A lost connection to it is no loss of the client's own
    connection, so the client gets it as the failure of one request.
    """
    return _BACKEND_ERRORS


class _BackendErrors:
    """A context manager without state: one made by `contextmanager` costs each request 2 µs."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        if error is None or isinstance(error, Refused):
            return
        if isinstance(error, Unsupported):
            raise MethodNotFound(error.message) from error
        if isinstance(error, HoldfastError):
            raise OperationFailed(str(error), errno=error.errno) from error
        # A backend that awaits a cancelled task of its own raises this, too. The request then
        # still has to be answered, or its client would wait for ever.
        if isinstance(error, asyncio.CancelledError) and not was_cancelled():
            raise OperationFailed("the backend cancelled the call") from error


_BACKEND_ERRORS = _BackendErrors()
