"""The JSON-RPC envelope: four kinds of message, no `jsonrpc` member [envelope.kinds]."""

from typing import Any

import msgspec

from holdfast.protocol.base import Wire

__all__ = [
    "ErrorData",
    "ErrorObject",
    "ErrorReply",
    "Message",
    "Notification",
    "Reply",
    "Request",
    "RequestId",
    "Trace",
]

RequestId = str | int
"""The peer's choice; goes back unchanged. An integer fits into 64 bits with sign."""


class Trace(Wire, frozen=True, kw_only=True, rename=None):
    """W3C trace context that a request may carry."""

    traceparent: str | None = None
    tracestate: str | None = None


class Request(msgspec.Struct, frozen=True):
    """A call that wants exactly one answer."""

    id: RequestId
    method: str
    params: object = None
    trace: Trace | None = None


class Notification(msgspec.Struct, frozen=True):
    """A message that wants none."""

    method: str
    params: object = None


class Reply(msgspec.Struct, frozen=True):
    """The result of a request."""

    id: RequestId
    result: object = None


ErrorData = dict[str, str | int]
"""
An error as data: `kind`, and those of `errno`, `path` and `program` that it has.

An extension of Holdfast, for clients that announced themselves as Holdfast. `kind` is the
name of a class of `errors.py` in camel case, `path` a path URI, `program` a text.
"""


class ErrorObject(Wire, frozen=True, kw_only=True):
    """Why a request failed."""

    code: int
    message: str
    data: Any = None


class ErrorReply(msgspec.Struct, frozen=True):
    """The failure of a request."""

    id: RequestId
    error: ErrorObject


Message = Request | Notification | Reply | ErrorReply
