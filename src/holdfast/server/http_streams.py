"""
Response bodies that are streamed to a client [http.request.stream].

Each has a separate task and does not block other requests. If the client reads too slowly, its
bodies are not read either. All of them end with the connection.
"""

import asyncio
import logging
from collections.abc import AsyncIterator

from holdfast.backends import HttpBody
from holdfast.base.dialect import limits, texts
from holdfast.base.errors import HoldfastError, InvalidParams
from holdfast.base.tasks import was_cancelled
from holdfast.wire.connection import Connection
from holdfast.wire.protocol.http import BodyDeltaEvent
from holdfast.wire.protocol.methods import HTTP_BODY_DELTA
from holdfast.wire.rpc.base64 import encode_base64
from holdfast.wire.rpc.encode import encode_value

__all__ = ["MAX_DELTA", "ConnectionBodies"]

logger = logging.getLogger(__name__)

# Bytes of a body in one notification, before base64.
MAX_DELTA = limits.BODY_PIECE


class ConnectionBodies:
    """Streamed responses of a connection, by the client's ids."""

    def __init__(self, connection: Connection, tasks: asyncio.TaskGroup) -> None:
        self._connection = connection
        self._task_group = tasks
        # All ids in use, with their tasks once these have begun.
        self._streams: dict[str, asyncio.Task[None] | None] = {}
        self._flowing = asyncio.Event()
        self._flowing.set()

    def reserve(self, request_id: str) -> None:
        """
        Reserve an id, before the request is made.

        Raises:
            InvalidParams: The id is in use.
        """
        if request_id in self._streams:
            raise InvalidParams(texts.http_stream_active(request_id))
        self._streams[request_id] = None

    def release(self, request_id: str) -> None:
        """Free an id whose request has failed."""
        del self._streams[request_id]

    def start(self, request_id: str, body: HttpBody) -> None:
        """
        Start sending a body in the next iteration of the event loop.

        The caller sends the response in this iteration, and so before the first delta.
        """
        self._task_group.create_task(self._stream(request_id, body))

    def pause(self) -> None:
        """Stop sending while the client does not read."""
        self._flowing.clear()

    def resume(self) -> None:
        """Continue: the client reads again."""
        self._flowing.set()

    def end(self) -> None:
        """Cancel all bodies: the connection was lost."""
        # Except those that have not begun: a task cancelled before its first step could not
        # close its body. It checks for the end of the connection itself.
        for task in self._streams.values():
            if task is not None:
                task.cancel()

    async def _stream(self, request_id: str, body: HttpBody) -> None:
        seq = 1
        error = None
        prefix = _prefix(request_id)
        self._streams[request_id] = asyncio.current_task()
        try:
            # The connection ended before this task began; see `end`.
            if self._connection.ended:
                return
            async for piece in _pieces(body):
                await self._flowing.wait()
                parts = (b'%b%d,"deltaBase64":"' % (prefix, seq), encode_base64(piece), _MORE)
                self._connection.send_parts(parts)
                seq += 1
        except HoldfastError as failure:
            # The response has been sent, so the last delta carries the error.
            error = str(failure)
        except asyncio.CancelledError:
            if was_cancelled():
                raise
            error = "the backend cancelled the body"
        except Exception:
            # Letting it propagate would end the server with all its connections.
            logger.exception("the body of an HTTP response failed")
            error = "internal error"
        finally:
            del self._streams[request_id]
            await _close(body)
        event = BodyDeltaEvent(
            request_id=request_id, seq=seq, delta_base64=b"", done=True, error=error
        )
        self._connection.notify(HTTP_BODY_DELTA, event)


async def _pieces(body: HttpBody) -> AsyncIterator[bytes]:
    """Yield a body in pieces that fit into a notification."""
    async for piece in body:
        for start in range(0, len(piece), MAX_DELTA):
            yield piece[start : start + MAX_DELTA]


async def _close(body: HttpBody) -> None:
    """Close a body; a failure is only logged, since the client has received all of it."""
    try:
        await body.aclose()
    except asyncio.CancelledError:
        if was_cancelled():
            raise
    except Exception:
        logger.exception("the body of an HTTP response cannot be closed")


_MORE = b'","done":false,"error":null}}'


def _prefix(request_id: str) -> bytes:
    """Return the part that all deltas of a body share."""
    method = HTTP_BODY_DELTA.name.encode()
    return b'{"method":"%b","params":{"requestId":%b,"seq":' % (method, encode_value(request_id))
