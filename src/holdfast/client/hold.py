"""
Holding one process of a server while its readers here cannot keep up.

A Holdfast server holds the process alone (`process/hold`). A Codex server cannot: there the
connection is not read until the readers have caught up, and everything on it waits.
"""

from typing import TYPE_CHECKING

from holdfast.client.link import TooManyCalls
from holdfast.errors import ConnectionLost, RemoteError, RemoteProtocolError
from holdfast.protocol import codes
from holdfast.protocol.methods import PROCESS_HOLD
from holdfast.protocol.process import HoldParams

if TYPE_CHECKING:
    from holdfast.client.client import ExecServerClient

__all__ = ["RemoteHold"]


class RemoteHold:
    """Keeps the server's idea of one process, held or not, equal to what its readers need."""

    def __init__(self, client: "ExecServerClient", process_id: str) -> None:
        self._client = client
        self._process_id = process_id
        self._readers: set[object] = set()
        # What the server was told last, if that is certain; it remembers it over a resume.
        self._server_holds = False
        self._telling = False
        self._refused = False
        self._ended = False

    @property
    def holds_alone(self) -> bool:
        """True if the process can be held without the others of its connection."""
        return self._client.can_hold and not self._refused

    def hold(self, reader: object) -> None:
        """Let the process wait for a reader."""
        self._readers.add(reader)
        if self.holds_alone:
            self._tell()
        else:
            self._client.hold_receiving(reader)

    def release(self, reader: object) -> None:
        """Take that back; harmless if it was never held for that reader."""
        self._readers.discard(reader)
        if self.holds_alone:
            self._tell()
        else:
            self._client.release_receiving(reader)

    def end(self) -> None:
        """Stop: the process has ended, or cannot be reached any more."""
        self._ended = True

    def _tell(self) -> None:
        if not self._telling and bool(self._readers) != self._server_holds and not self._ended:
            self._telling = True
            self._client.start_task(self._tell_until_equal())

    async def _tell_until_equal(self) -> None:
        try:
            while bool(self._readers) != self._server_holds and not self._ended:
                held = bool(self._readers)
                params = HoldParams(process_id=self._process_id, held=held)
                await self._call(params)
                self._server_holds = held
        except ConnectionLost:
            self._ended = True  # nothing is left to hold
        except (RemoteError, RemoteProtocolError) as error:
            if isinstance(error, RemoteError) and error.code == codes.INVALID_REQUEST:
                self._ended = True  # the server has forgotten the process
            else:
                # Memory is bounded all the same.
                self._refused = True
                for reader in self._readers:
                    self._client.hold_receiving(reader)
        finally:
            self._telling = False

    async def _call(self, params: HoldParams) -> None:
        try:
            await self._client.call_again(PROCESS_HOLD, params)
        except TooManyCalls:
            # One at a time: a second one in the last place would cost the connection.
            async with self._client.last_place:
                await self._client.call_again(PROCESS_HOLD, params, cleanup=True)
