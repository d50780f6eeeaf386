"""The JSON-RPC envelope: four kinds of message, no `jsonrpc` member [envelope.kinds]."""

from typing import Any

import msgspec

from holdfast.wire.protocol.wire_types import Wire

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
"""The peer's choice, sent back unchanged; an integer is a signed 64-bit number."""


class Trace(Wire, frozen=True, kw_only=True, rename=None):
    """W3C trace context that a request may carry."""

    traceparent: str | None = None
    tracestate: str | None = None


class Request(msgspec.Struct, frozen=True):
    """A call that expects exactly one response."""

    id: RequestId
    method: str
    params: object = None
    trace: Trace | None = None


class Notification(msgspec.Struct, frozen=True):
    """A message that expects no response."""

    method: str
    params: object = None


class Reply(msgspec.Struct, frozen=True):
    """The result of a request."""

    id: RequestId
    result: object = None


ErrorData = dict[str, str | int]
"""
An error as data: `kind`, and `errno`, `path` and `program` if known.

An extension, sent to Holdfast clients. `kind` is the name of a class in `errors.py` in camel case,
`path` a path URI, `program` a string.
"""


class ErrorObject(Wire, frozen=True, kw_only=True):
    """The code and text of a failed request."""

    code: int
    message: str
    # An extension: Holdfast sends `ErrorData`, others nothing.
    data: Any = None


class ErrorReply(msgspec.Struct, frozen=True):
    """The error response to a request."""

    id: RequestId
    error: ErrorObject


Message = Request | Notification | Reply | ErrorReply
