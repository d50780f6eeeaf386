"""
Routing of methods to handlers, and of exceptions to error codes.

A handler returns its result, or an awaitable if it has to wait. Exceptions are converted to a code,
a text and data here. An unexpected one becomes an internal error; its traceback is only logged.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

from holdfast.base import errors
from holdfast.base.errors import (
    HoldfastError,
    InvalidParams,
    InvalidRequest,
    LocalProtocolError,
    MethodNotFound,
    NotFound,
    OperationFailed,
    Overloaded,
    Refused,
    SessionAttached,
    Unsupported,
)
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.envelope import ErrorData, Request
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.wire_types import Method
from holdfast.wire.rpc.encode import Encoded
from holdfast.wire.rpc.large_params import DecodedParams
from holdfast.wire.rpc.server_kind import EXEC_SERVER, ServerKind

__all__ = ["ErrorAnswer", "Handler", "Route", "Router", "error_of", "kind_of"]

logger = logging.getLogger(__name__)

C = TypeVar("C")
P = TypeVar("P")
R = TypeVar("R")

Handler = Callable[[C, P], R | Encoded | Awaitable[R | Encoded]]
"""Takes the context of the caller and the params of the method."""


class Route(Generic[C]):
    """One method of a server: its parameter type and its handler."""

    __slots__ = ("_decode_params", "family", "handler", "name", "params")

    def __init__(
        self, method: Method[Any, Any], handler: Handler[C, Any, Any], server_kind: ServerKind
    ) -> None:
        self.name = method.name
        self.params = method.params
        self.family = method.family
        self.handler = handler
        self._decode_params = server_kind.decode_params

    def decode(self, params: object) -> Any:
        """Return the params in the type the handler takes, or raise `Refused`."""
        if type(params) is DecodedParams:
            return params.get()
        return self._decode_params(params, self.params)


class Router(Generic[C]):
    """The methods of a server."""

    def __init__(self, server_kind: ServerKind = EXEC_SERVER) -> None:
        self._server_kind = server_kind
        self._routes: dict[str, Route[C]] = {}

    def add(self, method: Method[P, R], handler: Handler[C, P, R]) -> None:
        """Serve a method; each only once."""
        assert method.name not in self._routes, method.name
        self._routes[method.name] = Route(method, handler, self._server_kind)

    def __contains__(self, method: object) -> bool:
        return method in self._routes

    def find(self, method: str) -> Route[C]:
        """
        Return the route of a method.

        Raises:
            Refused: The method is unknown.
        """
        route = self._routes.get(method)
        if route is None:
            raise self._server_kind.unknown_method(method, self._routes)
        return route

    def prepare(self, request: Request, size: int) -> Request:
        """
        Return a request with its params decoded, or with the error that refuses them.

        Args:
            request: Any request.
            size: Bytes of its message.
        """
        route = self._routes.get(request.method)
        if route is None:
            return request  # unknown: `find` raises when its turn comes
        try:
            params = DecodedParams(route.decode(request.params), None, size)
        except Refused as error:
            # The frames of a traceback hold the values of the message. Raising the error again
            # where the request is handled makes a cycle, which would keep them for minutes.
            error.__cause__ = error.__context__ = None
            params = DecodedParams(None, error.with_traceback(None), size)
        return Request(request.id, request.method, params, request.trace)


# Subclasses of `Refused` by their code; the first match wins, so order matters only among parents.
_CODES: tuple[tuple[type[HoldfastError], int], ...] = (
    (InvalidRequest, codes.INVALID_REQUEST),
    (InvalidParams, codes.INVALID_PARAMS),
    (MethodNotFound, codes.METHOD_NOT_FOUND),
    (NotFound, codes.NOT_FOUND),
    (SessionAttached, codes.SESSION_ATTACHED),
    (Overloaded, codes.OVERLOADED),
    (OperationFailed, codes.INTERNAL_ERROR),
)


class ErrorAnswer(NamedTuple):
    """The error response to a request whose handler raised."""

    code: int
    text: str
    data: ErrorData | None = None
    """The error as data; sent only to a Holdfast client."""


def error_of(error: Exception, method: str) -> ErrorAnswer:
    """
    Return the error response for an exception of a handler.

    A handler may call another server. That connection is not the client's, so an error of it is the
    failure of one request.
    """
    if isinstance(error, Unsupported):
        error = MethodNotFound(error.message)
    elif isinstance(error, HoldfastError) and not isinstance(error, Refused | LocalProtocolError):
        error = OperationFailed(str(error), errno=error.errno)
    for kind, code in _CODES:
        if isinstance(error, kind):
            return ErrorAnswer(code, str(error), _data_of(error))
    logger.error("%s failed", method, exc_info=error)
    return ErrorAnswer(codes.INTERNAL_ERROR, "internal error")


def _data_of(error: HoldfastError) -> ErrorData:
    data: ErrorData = {"kind": kind_of(type(error))}
    if error.errno is not None:
        data["errno"] = error.errno
    if error.path is not None:
        data["path"] = _path_text(error.path)
    if error.program is not None:
        data["program"] = error.program
    return data


def kind_of(error: type[HoldfastError]) -> str:
    """
    Return the name of an error's class on the wire, such as `spawnFailed`.

    A class outside `errors.py` has the name of its nearest base class there, so a client need not
    know any others.
    """
    name = next(kind.__name__ for kind in error.__mro__ if kind.__module__ == errors.__name__)
    return name[0].lower() + name[1:]


def _path_text(path: str) -> str:
    """Return a path as a URI, which can hold bytes that JSON text cannot."""
    try:
        return str(PathUri.from_path(path))
    except ValueError:
        # A relative path stays as it was given.
        return path
