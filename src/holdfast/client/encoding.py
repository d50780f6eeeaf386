"""Decoding of a server's base64, with vector instructions of the processor."""

import pybase64

from holdfast.base.errors import RemoteProtocolError

__all__ = ["decoded"]


def decoded(text: str) -> bytes:
    """
    Return the bytes of a server's base64.

    Raises:
        RemoteProtocolError: It is not base64.
    """
    try:
        # `validate`, because the lenient decoder skips foreign characters and returns other
        # bytes.
        return pybase64.b64decode(text, validate=True)
    except ValueError as error:
        raise RemoteProtocolError(
            f"failed to serialize or deserialize exec-server JSON: {error}"
        ) from error
