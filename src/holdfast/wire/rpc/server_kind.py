"""
Differences between two protocols that share envelope, framing and dispatch.

Connection, peer, router and dispatcher ask their `ServerKind` wherever the exec-server and the
app-server differ. It decides how a message is read, how an unreadable one is answered, how a
notification is written, and what a full server does.
"""

from collections.abc import Iterable

from holdfast.base.dialect import texts
from holdfast.base.errors import HoldfastError, MalformedMessage, MethodNotFound, Refused
from holdfast.wire.protocol.methods import (
    ENVIRONMENT_INFO,
    ENVIRONMENT_STATUS,
    FS_CLOSE,
    PROCESS_HOLD,
    PROCESS_SIGNAL,
    PROCESS_TERMINATE,
)
from holdfast.wire.rpc.decode import decode_message, decode_patiently
from holdfast.wire.rpc.encode import encode_notification
from holdfast.wire.rpc.params import decode_params

__all__ = ["EXEC_SERVER", "ServerKind"]


class ServerKind:
    """
    The exec-server; subclasses override what another server does differently.

    It has no state: all connections of a server share one.
    """

    control: frozenset[str] = frozenset(
        method.name
        for method in (
            ENVIRONMENT_INFO,
            ENVIRONMENT_STATUS,
            PROCESS_HOLD,
            PROCESS_SIGNAL,
            PROCESS_TERMINATE,
            FS_CLOSE,
        )
    )
    """Methods that never wait for a free slot, because they end what occupies the slots."""

    # Plain functions, so that no message pays for an unneeded call.
    decode_message = staticmethod(decode_message)
    """Turn bytes into a message, or raise `MalformedMessage`."""

    decode_patiently = staticmethod(decode_patiently)
    """Do the same in a thread, letting other threads run."""

    decode_params = staticmethod(decode_params)
    """
    Turn the params of a request into the type of its method, or raise `Refused`.

    The class of the error decides the code; its text is for the caller.
    """

    encode_notification = staticmethod(encode_notification)
    """Turn the name and the params of a notification into bytes."""

    ignores_stray_replies: bool = False
    """True if a reply to no request is ignored instead of closing the connection."""

    def unknown_method(self, method: str, known: Iterable[str]) -> Refused:
        """Return the error for a method that is not one of the known ones."""
        return MethodNotFound(texts.server_lacks_method(method))

    def parse_failure(self, error: MalformedMessage, kind: str, label: str) -> str | None:
        """
        Return the error text for an unreadable message, or None for no answer.

        Args:
            error: The fault.
            kind: The kind of the transport.
            label: The transport's name for the peer.
        """
        family = "websocket JSON-RPC" if kind == "websocket" else "JSON-RPC"
        return f"failed to parse {family} message from {label}: {error}"

    def overload(self) -> HoldfastError | None:
        """
        Return the error for a request that finds no free slot, or None to let it wait.

        Once many requests wait, the connection is no longer read.
        """
        return None


EXEC_SERVER = ServerKind()
"""The exec-server, and its clients."""
