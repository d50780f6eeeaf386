"""
What differs between two protocols that share the envelope, the framing and the dispatch.

The connection, the peer, the router and the dispatcher ask their dialect wherever the
exec-server and another server part: how a message is read, what is said about one that
cannot be, how a notification is written, and what a full server does.
"""

from collections.abc import Iterable
from typing import TypeVar

from holdfast.errors import HoldfastError, MalformedMessage, MethodNotFound, Refused
from holdfast.protocol import codes
from holdfast.rpc.decode import decode_message
from holdfast.rpc.encode import encode_notification
from holdfast.rpc.params import decode_params

__all__ = ["EXEC_SERVER", "Dialect"]

T = TypeVar("T")


class Dialect:
    """
    The dialect of the exec-server; another one overrides what it does differently.

    A dialect has no state: all connections of a server share one.
    """

    control: frozenset[str] = frozenset(
        {
            "environment/info",
            "environment/status",
            "process/hold",
            "process/signal",
            "process/terminate",
            "fs/close",
        }
    )
    """Methods that never wait for a place among the others: they end what holds the places."""

    # Plain functions, so that the path of every message has no call more than it needs.
    decode_message = staticmethod(decode_message)
    """Turn bytes into a message, or raise `MalformedMessage`."""

    encode_notification = staticmethod(encode_notification)
    """Turn the name and the params of a notification into bytes."""

    ignores_stray_replies: bool = False
    """Whether an answer to what was never asked is passed over instead of ending the line."""

    def decode_params(self, params: object, kind: type[T]) -> T:
        """
        Turn the params of a request into the type of its method.

        Raises:
            Refused: They do not fit; its class decides the code, its text is for the caller.
        """
        return decode_params(params, kind)

    def unknown_method(self, method: str, known: Iterable[str]) -> Refused:
        """Return the error for a method that is none of those that are known."""
        return MethodNotFound(codes.server_lacks_method(method))

    def parse_failure(self, error: MalformedMessage, kind: str, label: str) -> str | None:
        """
        Return what is answered to a message that cannot be read; None for no answer.

        Args:
            error: What is wrong with it.
            kind: Of the transport it came on.
            label: The other side, as the transport calls it.
        """
        family = "websocket JSON-RPC" if kind == "websocket" else "JSON-RPC"
        return f"failed to parse {family} message from {label}: {error}"

    def overload(self) -> HoldfastError | None:
        """
        Return the error for a request that finds all places taken.

        None lets it wait for its turn; then no more is read from the connection once
        many wait.
        """
        return None


EXEC_SERVER = Dialect()
"""The one of the exec-server, and of its clients."""
