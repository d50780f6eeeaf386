"""Interface of all transports: messages are sent by a call and received by a callback."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from holdfast.base.dialect import limits

__all__ = [
    "HIGH_WATER",
    "LOCAL",
    "LOW_WATER",
    "MAX_MESSAGE",
    "SIGN_INTERVAL",
    "Credential",
    "Receiver",
    "Transport",
]

MAX_MESSAGE = limits.MESSAGE_BYTES
"""Bytes of one message; one more ends the connection [ws.message-limit]."""

HIGH_WATER = 1 << 20
"""Bytes queued for sending at which the sender is asked to pause."""

LOW_WATER = 256 << 10
"""Bytes left in the queue at which it may continue."""

SIGN_INTERVAL = 10.0
"""Seconds between two heartbeats of a client, and of both sides if both are Holdfast."""


class Credential(NamedTuple):
    """The principal of a client, and the secret that it has shown."""

    principal: str
    """The name of its token, or `local`, or `anonymous`."""
    secret: bytes | None = None
    """Digest of the token, or of the key that signed it; None if the client needed none."""


LOCAL: Final = Credential("local")
"""Credential of a connection that only the server's own user can make."""


class Receiver(Protocol):
    """Receiver of a transport's messages. No method may raise."""

    def received(self, message: bytes) -> None:
        """Handle a complete message."""

    def lost(self, reason: str) -> None:
        """Handle the end of the transport; called once, after all else."""

    def pause_sending(self) -> None:
        """Reduce output: the peer does not read, and messages pile up."""

    def resume_sending(self) -> None:
        """Resume output: the peer reads again."""


class Transport(Protocol):
    """
    One connection that carries messages, in order, until it ends.

    Messages sent while one is being received are sent together afterwards.
    """

    text_only: bool
    """
    True if a line that is not UTF-8 ends the connection. A receiver that answers such a line
    clears it. Frames are passed on either way.
    """

    @property
    def kind(self) -> str:
        """`websocket`, `stdio`, `unix` or `memory`."""

    @property
    def label(self) -> str:
        """The other side, for errors about unreadable messages."""

    @property
    def credential(self) -> Credential:
        """The credential of the other side, as determined by the server."""

    @property
    def went_silent(self) -> bool:
        """True if this side ended it because the other side sent no heartbeat."""

    @property
    def was_closed(self) -> bool:
        """True if the other side announced the close, and did not just disappear."""

    def send(self, message: bytes, *, alone: bool = False) -> None:
        """
        Send a message; never waits. After the end it does nothing.

        Args:
            message: The message.
            alone: True if no other message is expected to follow at once; it is then not kept back
                to be sent with others.
        """

    def send_parts(self, parts: Sequence[bytes], *, alone: bool = False) -> None:
        """Send a message in pieces that need not be joined; see `send`."""

    def pause_receiving(self) -> None:
        """Stop receiving, so that the peer has to wait."""

    def resume_receiving(self) -> None:
        """Resume receiving."""

    def expect_heartbeats(self, interval: float) -> None:
        """
        Send a heartbeat every `interval` seconds, and expect the same of the other side.

        Call this once both sides have agreed to it in the handshake. From then on, a connection on
        which nothing arrives for two intervals is ended, and `lost` gets the reason. Silence does
        not count while receiving is paused.
        """

    def excuse_silence(self, excused: Callable[[], bool]) -> None:
        """
        Set a callback that returns True while the other side may be too busy to answer.

        It is called before a silent connection is ended, but not after `expect_heartbeats`:
        heartbeats are then sent unprompted.
        """

    def close(self) -> None:
        """Send queued messages, then end."""

    def abort(self) -> None:
        """End at once."""

    async def wait_closed(self) -> None:
        """
        Wait until all of it is closed, after `close` or `abort`.

        After `close` that takes as long as the other side does not read.
        """
