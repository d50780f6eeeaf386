"""Base classes of the wire types."""

from typing import Annotated, Generic, TypeVar

import msgspec

__all__ = [
    "I64_MAX",
    "I64_MIN",
    "U64",
    "U64_MAX",
    "Base64",
    "Empty",
    "Method",
    "NotificationMethod",
    "Wire",
]

P = TypeVar("P")
R = TypeVar("R")

I64_MIN = -(1 << 63)
I64_MAX = (1 << 63) - 1
U64_MAX = (1 << 64) - 1

U64 = Annotated[int, msgspec.Meta(ge=0)]
"""
An unsigned 64-bit number.

msgspec takes bounds of 63 bits at most, so types that need the upper bound check it in
`__post_init__`.
"""


class Base64:
    """
    Bytes in the params of a request, base64 on the wire.

    It is a separate type so that a faster library decodes it, and faults are reported in the
    protocol's words.
    """

    # Holds the bytes instead of being `bytes`: a subclass would have to copy them, which costs
    # more than decoding.
    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return self.data == other.data if isinstance(other, Base64) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"Base64({self.data!r})"


class Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """
    A JSON object of the protocol.

    Unknown members are ignored and None is sent as `null`. A class with `omit_defaults=True`
    leaves empty members out.
    """


class Empty(Wire, frozen=True, kw_only=True):
    """`{}`; as params also `null` or omitted."""


class Method(Generic[P, R]):
    """One request of the protocol: its name on the wire and its two types."""

    # Methods are compared by identity and never change.
    __slots__ = ("family", "name", "params", "result")

    def __init__(
        self, name: str, params: type[P], result: type[R], family: str | None = None
    ) -> None:
        self.name = name
        self.params = params
        self.result = result
        self.family = family
        """The group of the method in errors about the handshake; None if it is always allowed."""

    def __repr__(self) -> str:
        return f"Method({self.name!r})"


class NotificationMethod(Generic[P]):
    """One notification of the protocol: its name on the wire and its type."""

    __slots__ = ("name", "params")

    def __init__(self, name: str, params: type[P]) -> None:
        self.name = name
        self.params = params

    def __repr__(self) -> str:
        return f"NotificationMethod({self.name!r})"
