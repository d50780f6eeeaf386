"""Recorded calls of a fake process, and the capabilities that decide which are supported."""

from typing import Literal, NamedTuple

from holdfast.base.errors import InvalidParams, InvalidRequest, Refused, RemoteError
from holdfast.server.info import CAPABILITIES
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.handshake import Capabilities
from holdfast.wire.protocol.process import StreamsAtEnd

__all__ = ["CODEX", "HOLDFAST", "Asked", "Call", "Termination", "as_refused"]

HOLDFAST = CAPABILITIES
"""The extensions of a Holdfast server."""

CODEX = Capabilities()
"""A server without any of the extensions."""

Call = Literal["read", "write", "close_stdin", "resize", "waiting_for", "signal", "terminate"]
"""A method of a process that can be recorded and refused."""

_CODES: list[tuple[type[Refused], int]] = [
    (InvalidParams, codes.INVALID_PARAMS),
    (InvalidRequest, codes.INVALID_REQUEST),
    (Refused, codes.INTERNAL_ERROR),
]


class Asked(NamedTuple):
    """One recorded call, with its arguments in order."""

    call: Call
    arguments: tuple[object, ...] = ()


class Termination(NamedTuple):
    """One call of `terminate`."""

    tree: bool = False
    left: bool = False
    streams: StreamsAtEnd = "close"


def as_refused(error: Refused, *, remote: bool) -> Refused:
    """Return the error. If it comes from a server, the server's error is its cause."""
    if remote and error.__cause__ is None:
        code = next(code for kind, code in _CODES if isinstance(error, kind))
        error.__cause__ = RemoteError(code, str(error))
    return error
