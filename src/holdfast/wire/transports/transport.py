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
"""Bytes waiting to be sent at which the sender is asked to pause."""

LOW_WATER = 256 << 10
"""Bytes left at which it may go on."""

SIGN_INTERVAL = 10.0
"""Seconds between two signs of life of a client, and of either side where both are Holdfast."""


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
        """Take a whole message."""

    def lost(self, reason: str) -> None:
        """Take the end of the transport; called once, and nothing follows."""

    def pause_sending(self) -> None:
        """Produce less: the peer does not read, and what is sent now only piles up."""

    def resume_sending(self) -> None:
        """Produce again: the peer reads."""


class Transport(Protocol):
    """
    One connection that carries messages, in order, until it ends.

    Messages that are sent while one is being received go out together afterwards.
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
        """The other side, for the text about a message that cannot be read."""

    @property
    def credential(self) -> Credential:
        """The credential of the other side, as a server found out."""

    @property
    def went_silent(self) -> bool:
        """True if it was ended from here because the other side gave no sign of life."""

    @property
    def was_closed(self) -> bool:
        """True if the other side said that it closes it, and was not just gone."""

    def send(self, message: bytes, *, alone: bool = False) -> None:
        """
        Send a message; never waits. After the end it does nothing.

        Args:
            message: The message.
            alone: True if no other one is expected to follow at once. It is then not kept
                back to be sent together with others.
        """

    def send_parts(self, parts: Sequence[bytes], *, alone: bool = False) -> None:
        """Send a message in pieces that need not be joined; see `send`."""

    def pause_receiving(self) -> None:
        """Stop taking messages, so that the peer has to wait."""

    def resume_receiving(self) -> None:
        """Take messages again."""

    def expect_life(self, interval: float) -> None:
        """
        Send a sign of life every `interval` seconds, and expect the same of the other side.

        Call it once both sides have agreed to it in the handshake. From then on a connection
        on which nothing came for two intervals is ended, and `lost` is told why. Silence is
        not judged while receiving is paused.
        """

    def excuse_silence(self, excused: Callable[[], bool]) -> None:
        """
        Set a callback that returns True while the other side may be too busy to answer.

        It is asked before a silent connection is ended. After `expect_life` it is asked no
        more, since signs of life then come without a question.
        """

    def close(self) -> None:
        """Send what is waiting, then end."""

    def abort(self) -> None:
        """End at once."""

    async def wait_closed(self) -> None:
        """
        Wait until nothing of it is open any more, after `close` or `abort`.

        After `close` that may take as long as the other side does not read.
        """
