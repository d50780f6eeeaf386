"""Turns the errors of a served backend into errors that have a code on the wire."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import HoldfastError, MethodNotFound, OperationFailed, Refused, Unsupported
from holdfast.tasks import was_cancelled

__all__ = ["backend_errors"]


@contextmanager
def backend_errors() -> Iterator[None]:
    """
    Raise each error of a backend as a refusal; call the backend inside.

    A backend may be another server. A lost connection to it is no loss of the client's own
    connection, so the client gets it as the failure of one request.
    """
    try:
        yield
    except Refused:
        raise
    except Unsupported as error:
        raise MethodNotFound(error.message) from error
    except HoldfastError as error:
        raise OperationFailed(str(error), errno=error.errno) from error
    except asyncio.CancelledError as error:
        # A backend that awaits a cancelled task of its own raises this, too. The request then
        # still has to be answered, or its client would wait for ever.
        if was_cancelled():
            raise
        raise OperationFailed("the backend cancelled the call") from error
