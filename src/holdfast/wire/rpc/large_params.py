"""
Messages with so many values that decoding them takes long.

The protocol allows 262,144 values in one message. Building objects from them takes a tenth of a
second or more, in which an event loop could serve no other client. So a server decodes such a
message in a thread, and continues with the connection afterwards.
"""

from typing import Any

from holdfast.base.errors import Refused
from holdfast.wire.rpc.decode import count_rare

__all__ = ["LARGEST_UNCOUNTED", "DecodedParams", "may_have_many_values"]

# A fast path: `scripts/bench --without light-messages` shows the gain.
LARGEST_UNCOUNTED = 64 << 10
"""Largest message, in bytes, that is decoded without counting its values."""

_MANY_VALUES = 4096
"""Values that count as many: decoding more takes a millisecond or more."""


class DecodedParams:
    """The params of a request in the type of its method, or the error that refuses them."""

    __slots__ = ("_error", "_value", "size")

    def __init__(self, value: Any, error: Refused | None, size: int) -> None:
        self._value = value
        self._error = error
        self.size = size
        """Bytes of the message."""

    def get(self) -> Any:
        """Return the params, or raise the error."""
        if self._error is not None:
            raise self._error
        return self._value


def may_have_many_values(message: bytes) -> bool:
    """Return True if a message may have many values; a single large string is one value."""
    return len(message) > LARGEST_UNCOUNTED and any(
        count_rare(message, byte, _MANY_VALUES) > _MANY_VALUES for byte in (b",", b"[", b"{")
    )
