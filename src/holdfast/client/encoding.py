"""Bytes as text on the wire, by a library that uses the processor's vector instructions."""

import pybase64

from holdfast.errors import RemoteProtocolError

__all__ = ["decoded", "encoded"]


def encoded(data: bytes) -> str:
    """Bytes as base64."""
    return pybase64.b64encode_as_string(data)


def decoded(text: str) -> bytes:
    """
    Base64 of a server as bytes.

    Raises:
        RemoteProtocolError: It is none.
    """
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError as error:
        raise RemoteProtocolError(
            f"failed to serialize or deserialize exec-server JSON: {error}"
        ) from error
