"""
Pausing one process of a server while its readers here cannot keep up.

A Holdfast server pauses only the process (`process/hold`). Other servers cannot: there the client
stops reading the connection, which delays everything on it.
"""

from typing import TYPE_CHECKING

from holdfast.base.errors import ConnectionLost, RemoteError, RemoteProtocolError
from holdfast.client.client_connection import TooManyCalls
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.methods import PROCESS_HOLD
from holdfast.wire.protocol.process import HoldParams

if TYPE_CHECKING:
    from holdfast.client.client_session import ClientSession

__all__ = ["RemoteHold"]


class RemoteHold:
    """Desired state (held or not) of one process, which a task transmits to the server."""

    def __init__(self, session: "ClientSession", process_id: str) -> None:
        self._session = session
        self._process_id = process_id
        self._readers: set[object] = set()
        # The last state that the server confirmed; it survives a resumed session.
        self._server_holds = False
        self._sending = False
        self._refused = False
        self._ended = False

    @property
    def holds_alone(self) -> bool:
        """True if the process can be held without the others on its connection."""
        return self._session.capabilities.process_hold and not self._refused

    def hold(self, reader: object) -> None:
        """Hold the process until `release` is called for the same reader."""
        self._readers.add(reader)
        if self.holds_alone:
            self._send_state()
        else:
            self._session.hold_receiving(reader)

    def release(self, reader: object) -> None:
        """Release the hold of one reader; does nothing if that reader holds nothing."""
        self._readers.discard(reader)
        if self.holds_alone:
            self._send_state()
        else:
            self._session.release_receiving(reader)

    def end(self) -> None:
        """Stop sending: the process has ended or cannot be reached."""
        self._ended = True

    def _send_state(self) -> None:
        # One task at a time: it re-reads the desired state after each answer, so no change is lost.
        if not self._sending and bool(self._readers) != self._server_holds and not self._ended:
            self._sending = True
            self._session.start_task(self._send_until_equal())

    async def _send_until_equal(self) -> None:
        try:
            while bool(self._readers) != self._server_holds and not self._ended:
                held = bool(self._readers)
                params = HoldParams(process_id=self._process_id, held=held)
                await self._call(params)
                self._server_holds = held
        except ConnectionLost:
            # The session is lost, and with it the process.
            self._ended = True
        except (RemoteError, RemoteProtocolError) as error:
            if isinstance(error, RemoteError) and error.code == codes.INVALID_REQUEST:
                # The server no longer knows the process.
                self._ended = True
            else:
                # Fall back to holding the connection, so that memory stays bounded.
                self._refused = True
                for reader in self._readers:
                    self._session.hold_receiving(reader)
        finally:
            self._sending = False

    async def _call(self, params: HoldParams) -> None:
        try:
            await self._session.call_again(PROCESS_HOLD, params)
        except TooManyCalls:
            # The reserved slot takes one call at a time; a second one would close the connection.
            async with self._session.reserved_slot:
                await self._session.call_again(PROCESS_HOLD, params, cleanup=True)
