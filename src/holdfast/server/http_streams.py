"""
The bodies that are being streamed to one client [http.request.stream].

Each is a task of its own and holds up nothing. A client that reads too slowly stops
the reading of its bodies, and with its connection they all end.
"""

import asyncio
from collections.abc import AsyncIterator

from holdfast.backends import HttpBody
from holdfast.connection import Connection
from holdfast.errors import InvalidParams, OperationFailed
from holdfast.protocol.http import BodyDeltaEvent
from holdfast.protocol.methods import HTTP_BODY_DELTA
from holdfast.rpc.base64 import encode_base64
from holdfast.rpc.encode import encode_value

__all__ = ["MAX_DELTA", "ConnectionBodies"]

MAX_DELTA = 1 << 20
"""Bytes of a body in one notification."""


class ConnectionBodies:
    """The streamed responses of one connection, by the ids the client gave them."""

    def __init__(self, connection: Connection, tasks: asyncio.TaskGroup) -> None:
        self._connection = connection
        self._task_group = tasks
        # Every id that is taken, with its task once that has begun.
        self._streams: dict[str, asyncio.Task[None] | None] = {}
        self._flowing = asyncio.Event()
        self._flowing.set()

    def reserve(self, request_id: str) -> None:
        """
        Take an id.

        Raises:
            InvalidParams: It is taken.
        """
        if request_id in self._streams:
            raise InvalidParams(
                f"http/request streamResponse requestId `{request_id}` is already active"
            )
        self._streams[request_id] = None

    def release(self, request_id: str) -> None:
        """Give an id back: there is nothing to stream."""
        del self._streams[request_id]

    def start(self, request_id: str, body: HttpBody) -> None:
        """
        Send a body, from the event loop's next turn on.

        The caller sends its answer in this turn, so that it comes before the first delta.
        """
        self._task_group.create_task(self._stream(request_id, body))

    def pause(self) -> None:
        """The client does not read."""
        self._flowing.clear()

    def resume(self) -> None:
        """It reads again."""
        self._flowing.set()

    def end(self) -> None:
        """The connection is gone."""
        # One that has not begun will see it. Cancelled before, it could not close its body.
        for task in self._streams.values():
            if task is not None:
                task.cancel()

    async def _stream(self, request_id: str, body: HttpBody) -> None:
        seq = 1
        error = None
        prefix = _prefix(request_id)
        self._streams[request_id] = asyncio.current_task()
        try:
            if self._connection.ended:
                return
            async for piece in _pieces(body):
                await self._flowing.wait()
                parts = (b'%b%d,"deltaBase64":"' % (prefix, seq), encode_base64(piece), _MORE)
                self._connection.send_parts(parts)
                seq += 1
        except OperationFailed as failure:
            error = str(failure)
        finally:
            del self._streams[request_id]
            await body.aclose()
        event = BodyDeltaEvent(
            request_id=request_id, seq=seq, delta_base64=b"", done=True, error=error
        )
        self._connection.notify(HTTP_BODY_DELTA, event)


async def _pieces(body: HttpBody) -> AsyncIterator[bytes]:
    """A body in pieces that fit into a notification."""
    async for piece in body:
        for start in range(0, len(piece), MAX_DELTA):
            yield piece[start : start + MAX_DELTA]


_MORE = b'","done":false,"error":null}}'


def _prefix(request_id: str) -> bytes:
    """The part of every delta that stays the same for one body."""
    method = HTTP_BODY_DELTA.name.encode()
    return b'{"method":"%b","params":{"requestId":%b,"seq":' % (method, encode_value(request_id))
