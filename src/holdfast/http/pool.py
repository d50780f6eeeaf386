"""
Connections kept open between requests, where nobody can tell.

A request takes one that waits, or has one opened. When many go to one place at
once, the later ones wait a moment for an earlier one's connection, but only a
moment: a place that keeps its connections busy for long, with streams say, holds
up nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable

from holdfast.http.exchange import HttpConnection

__all__ = ["Pool"]

# Connections in use at one place from which on it pays to wait for one of them.
_CROWD = 16

# Seconds of such a wait in which no connection came free.
_PATIENCE = 0.1

# Seconds of such a wait in all.
_MAX_PATIENCE = 1.0

# Idle connections to one place; as many as a crowd uses.
_MAX_IDLE_HERE = 16

# Idle connections in all.
_MAX_IDLE = 64

# Seconds a connection may wait for its next use; many servers end it sooner.
_IDLE_TIME = 30.0

Open = Callable[[], Awaitable[HttpConnection]]


class _Place:
    """Where connections lead: a server, or a proxy."""

    __slots__ = ("idle", "released", "used", "waiting")

    def __init__(self) -> None:
        self.idle: list[HttpConnection] = []
        self.used = 0
        self.released = 0
        self.waiting: deque[asyncio.Future[None]] = deque()

    @property
    def forgotten(self) -> bool:
        return not (self.idle or self.used or self.waiting)


class Pool:
    """All connections of a client."""

    def __init__(self, *, idle_time: float = _IDLE_TIME) -> None:
        self._idle_time = idle_time
        self._places: dict[Hashable, _Place] = {}
        # Idle connections, the longest idle first, with the time they became so.
        self._idle: dict[HttpConnection, tuple[float, Hashable]] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    async def take(self, key: Hashable, connect: Open, *, fresh: bool = False) -> HttpConnection:
        """
        A connection to a place, from here on the caller's until its exchange is over.

        Args:
            key: Names the place.
            connect: Opens a connection to it.
            fresh: Open one in any case.
        """
        place = self._places.setdefault(key, _Place())
        try:
            if not fresh:
                if place.used >= _CROWD and not place.idle:
                    await self._wait(place)
                    # Who is woken is not counted, so the place may have been forgotten.
                    place = self._places.setdefault(key, place)
                if place.idle:
                    connection = place.idle.pop()
                    del self._idle[connection]
                    place.used += 1
                    return connection
            place.used += 1
            try:
                connection = await connect()
                if not connection.usable:
                    raise ConnectionResetError("connection closed as soon as it was open")
            except BaseException:
                place.used -= 1
                raise
            connection.released = lambda connection: self._released(key, connection)
            return connection
        finally:
            if place.forgotten:
                self._places.pop(key, None)

    def close(self) -> None:
        """End the connections that nobody uses."""
        for connection in list(self._idle):
            self._drop(connection)
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def _wait(self, place: _Place) -> None:
        """Wait while others are done with their connections, and these may be had in turn."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        place.waiting.append(turn)
        end = loop.time() + _MAX_PATIENCE
        try:
            while not turn.done() and loop.time() < end:
                before = place.released
                await asyncio.wait((turn,), timeout=_PATIENCE)
                if place.released == before:
                    break
        finally:
            turn.cancel()
            if turn in place.waiting:
                place.waiting.remove(turn)

    def _released(self, key: Hashable, connection: HttpConnection) -> None:
        """An exchange is over, or an idle connection is."""
        if connection in self._idle:
            self._drop(connection)
            return
        place = self._places[key]
        place.used -= 1
        place.released += 1
        if connection.usable:
            self._keep(key, place, connection)
        else:
            connection.released = None
        while place.waiting:
            turn = place.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        if place.forgotten:
            del self._places[key]

    def _keep(self, key: Hashable, place: _Place, connection: HttpConnection) -> None:
        loop = asyncio.get_running_loop()
        place.idle.append(connection)
        self._idle[connection] = (loop.time(), key)
        if len(place.idle) > _MAX_IDLE_HERE:
            self._drop(place.idle[0])
        elif len(self._idle) > _MAX_IDLE:
            self._drop(next(iter(self._idle)))
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._idle_time, self._sweep)

    def _drop(self, connection: HttpConnection) -> None:
        """End an idle connection."""
        _, key = self._idle.pop(connection)
        place = self._places[key]
        place.idle.remove(connection)
        connection.released = None
        connection.abort()
        if place.forgotten:
            del self._places[key]

    def _sweep(self) -> None:
        """End what has been idle for too long, and come back when the next one will have been."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._sweeper = None
        for connection, (since, _) in list(self._idle.items()):
            if since + self._idle_time > now:
                self._sweeper = loop.call_later(since + self._idle_time - now, self._sweep)
                break
            self._drop(connection)
