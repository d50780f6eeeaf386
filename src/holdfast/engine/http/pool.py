"""
Pool of connections that are kept between requests.

A request takes an idle connection or opens one. With many concurrent requests to one server, later
ones wait for an earlier connection, but only briefly, so that long streams hold up no request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable

from holdfast.engine.http.exchange import HttpConnection

__all__ = ["ConnectionPool"]

# From this many used connections to one server, waiting for one pays off.
_CROWD = 16

# Seconds without a released connection that end such a wait.
_PATIENCE = 0.1

# Longest such wait in seconds.
_MAX_PATIENCE = 1.0

# Most idle connections to one server: as many as `_CROWD` uses.
_MAX_IDLE_HERE = 16

# Most idle connections in total.
_MAX_IDLE = 64

# Seconds a connection may be idle; many servers close it sooner.
_IDLE_TIME = 30.0

Open = Callable[[], Awaitable[HttpConnection]]


class _Endpoint:
    """The connections to one server or proxy."""

    __slots__ = ("idle", "released", "used", "waiting")

    def __init__(self) -> None:
        self.idle: list[HttpConnection] = []
        self.used = 0
        self.released = 0
        self.waiting: deque[asyncio.Future[None]] = deque()

    @property
    def forgotten(self) -> bool:
        return not (self.idle or self.used or self.waiting)


class ConnectionPool:
    """The connections of a client."""

    def __init__(self, *, idle_time: float = _IDLE_TIME) -> None:
        self._idle_time = idle_time
        self._endpoints: dict[Hashable, _Endpoint] = {}
        # Idle connections in the order in which they became idle, each with that time.
        self._idle: dict[HttpConnection, tuple[float, Hashable]] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    async def take(self, key: Hashable, connect: Open, *, fresh: bool = False) -> HttpConnection:
        """
        Return a connection; it belongs to the caller until its exchange is over.

        Args:
            key: Identifies the server.
            connect: Opens a connection to it.
            fresh: Open a new one in any case.
        """
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            endpoint = self._endpoints[key] = _Endpoint()
        try:
            if not fresh:
                if endpoint.used >= _CROWD and not endpoint.idle:
                    await self._wait(endpoint)
                    # A waiter that was woken is not counted, so the entry may have been removed.
                    endpoint = self._endpoints.setdefault(key, endpoint)
                if endpoint.idle:
                    connection = endpoint.idle.pop()
                    del self._idle[connection]
                    endpoint.used += 1
                    return connection
            endpoint.used += 1
            try:
                connection = await connect()
                if not connection.usable:
                    raise ConnectionResetError("connection closed as soon as it was open")
            except BaseException:
                endpoint.used -= 1
                raise
            connection.released = lambda connection: self._released(key, connection)
            return connection
        finally:
            if endpoint.forgotten:
                self._endpoints.pop(key, None)

    def close(self) -> None:
        """Close idle connections."""
        for connection in list(self._idle):
            self._drop(connection)
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def _wait(self, endpoint: _Endpoint) -> None:
        """Wait in turn for a connection, as long as others are being released."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        endpoint.waiting.append(turn)
        end = loop.time() + _MAX_PATIENCE
        try:
            while not turn.done() and loop.time() < end:
                before = endpoint.released
                await asyncio.wait((turn,), timeout=_PATIENCE)
                if endpoint.released == before:
                    break
        finally:
            turn.cancel()
            if turn in endpoint.waiting:
                endpoint.waiting.remove(turn)

    def _released(self, key: Hashable, connection: HttpConnection) -> None:
        """Take back a connection whose exchange is over, or forget an idle one that was closed."""
        # The server closed it while it was idle.
        if connection in self._idle:
            self._drop(connection)
            return
        endpoint = self._endpoints[key]
        endpoint.used -= 1
        endpoint.released += 1
        if connection.usable:
            self._keep(key, endpoint, connection)
        else:
            connection.released = None
        while endpoint.waiting:
            turn = endpoint.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        if endpoint.forgotten:
            del self._endpoints[key]

    def _keep(self, key: Hashable, endpoint: _Endpoint, connection: HttpConnection) -> None:
        loop = asyncio.get_running_loop()
        endpoint.idle.append(connection)
        self._idle[connection] = (loop.time(), key)
        if len(endpoint.idle) > _MAX_IDLE_HERE:
            self._drop(endpoint.idle[0])
        elif len(self._idle) > _MAX_IDLE:
            self._drop(next(iter(self._idle)))
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._idle_time, self._sweep)

    def _drop(self, connection: HttpConnection) -> None:
        """Close an idle connection."""
        _, key = self._idle.pop(connection)
        endpoint = self._endpoints[key]
        endpoint.idle.remove(connection)
        connection.released = None
        connection.abort()
        if endpoint.forgotten:
            del self._endpoints[key]

    def _sweep(self) -> None:
        """Close connections that were idle for too long, and schedule the next sweep."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._sweeper = None
        for connection, (since, _) in list(self._idle.items()):
            if since + self._idle_time > now:
                self._sweeper = loop.call_later(since + self._idle_time - now, self._sweep)
                break
            self._drop(connection)
