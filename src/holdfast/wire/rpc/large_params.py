"""
Messages with so many values that to decode them takes long.

The protocol allows 262,144 values in one message. To make objects of them takes a tenth of a
second and more, in which an event loop would serve nobody else. So a server decodes such a
message in a thread, and goes on with the connection when that is done.
"""

from typing import Any

from holdfast.base.errors import Refused
from holdfast.wire.rpc.decode import count_rare

__all__ = ["NEVER_HEAVY", "DecodedParams", "is_heavy"]

# A fast path: `scripts/bench --without light-messages` shows the gain.
NEVER_HEAVY = 64 << 10
"""Bytes of a message up to which it is never heavy."""

_MANY_VALUES = 4096
"""Values of a message that is: more of them take a millisecond and more."""


class DecodedParams:
    """The params of a request in the type of its method, or the error that they are refused by."""

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


def is_heavy(message: bytes) -> bool:
    """Return True if a message may have many values; one large text has few."""
    return len(message) > NEVER_HEAVY and any(
        count_rare(message, byte, _MANY_VALUES) > _MANY_VALUES for byte in (b",", b"[", b"{")
    )
