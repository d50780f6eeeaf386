"""
HTTP connections with bounds on what comes before a request is known.

uvicorn waits for the head of a request as long as its client likes, and keeps all of it. Nobody
has shown a token by then, so both are bounded here.
"""

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.transports.http_head import MAX_HEAD

__all__ = ["BoundedHeads"]

# Seconds for a head, from the connection or from the first byte of a later request.
_HEAD_TIME: Final = 10.0

# Connections without a complete head, at most: a quarter of all that the server takes.
_MOST_HEADS: Final = 1_024

# Those connections, the oldest first. One in earnest sends its head at once.
_incomplete: "dict[BoundedHeads, None]" = {}


class BoundedHeads(HttpToolsProtocol):
    """
    The protocol of one connection; ends it if a head is too slow or too large.

    If too many clients are slow, it ends the one that has waited for longest.
    """

    # Runs while the head of a request is not complete.
    _waiting: asyncio.TimerHandle | None = None
    # Bytes that came meanwhile.
    _head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self._waiting is not None and self._head > MAX_HEAD:
            self._stop_waiting()
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._waiting is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._head = 0
        self._waiting = self.loop.call_later(_HEAD_TIME, self.transport.abort)
        _incomplete[self] = None
        if len(_incomplete) > _MOST_HEADS:
            oldest = next(iter(_incomplete))
            oldest._stop_waiting()  # noqa: SLF001 - of this class
            oldest.transport.abort()

    def _stop_waiting(self) -> None:
        _incomplete.pop(self, None)
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
