"""
Accepts connections of a listening socket, even after the system ran out of descriptors.

asyncio's own loop then retries as often as the backlog is long, and logs a traceback each time.
"""

import asyncio
import logging
import resource
import socket
from collections.abc import Callable

from holdfast.base.system_text import system_text
from holdfast.base.tasks import OwnedTasks
from holdfast.wire.log_event import Sampled

__all__ = ["Acceptor", "Newcomers", "PlainListener"]

logger = logging.getLogger(__name__)

# Connections to accept before other callbacks run. Each takes up to 0.3 ms until it is refused, and
# a call of another client takes about ten turns of the event loop.
_ACCEPTED_AT_ONCE = 16

# Seconds until the next attempt when the system is out of descriptors.
_ACCEPT_PAUSE = 1.0

# Most connections of one listener whose clients have not been admitted.
_MOST_NEWCOMERS = 1_024


class Newcomers:
    """
    Connections of a listener whose clients have not been admitted yet.

    If there is one too many, the oldest is dropped. So a flood of them takes a bounded number of
    descriptors, and does not lock out a client that sends its request at once.
    """

    def __init__(self) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(_MOST_NEWCOMERS, descriptors // 4)
        # In order of arrival.
        self._waiting: dict[asyncio.Transport, None] = {}
        self.refused = Sampled()
        """Selects those whose refusal is logged."""

    def add(self, connection: asyncio.Transport) -> None:
        """Count a connection until it is discarded."""
        self._waiting[connection] = None
        if len(self._waiting) > self._most:
            self.drop_oldest()

    def discard(self, connection: asyncio.Transport) -> None:
        """Forget a connection that was admitted or has ended; does nothing if it is not counted."""
        self._waiting.pop(connection, None)

    def drop_oldest(self) -> bool:
        """End the connection that has waited longest, or return False if there is none."""
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return False
        del self._waiting[oldest]
        oldest.abort()
        return True


class Acceptor:
    """Passes on each connection of a listening socket until closed."""

    def __init__(
        self,
        listening: socket.socket,
        take: Callable[[socket.socket], None],
        newcomers: Newcomers | None = None,
    ) -> None:
        """
        Start accepting.

        Args:
            listening: A socket that listens; it is closed with this object.
            take: Called with each connection, which it then owns.
            newcomers: Dropped when the system is out of descriptors.
        """
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._take = take
        self._newcomers = newcomers or Newcomers()
        listening.setblocking(False)
        self._watch()

    def close(self) -> None:
        """Stop accepting; connections that were passed on stay open."""
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    def _watch(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                line, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if self._newcomers.drop_oldest():
                    # Its descriptor is free in the next turn of the loop, which calls this again.
                    return
                # A waiting connection would trigger this again and again.
                logger.warning("cannot accept a connection: %s", system_text(error))
                self._loop.remove_reader(self._listening)
                self._loop.call_later(_ACCEPT_PAUSE, self._watch)
                return
            line.setblocking(False)
            self._take(line)


class PlainListener:
    """Creates a protocol for each connection, without TLS."""

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        newcomers: Newcomers | None = None,
    ) -> None:
        """
        Start accepting.

        Args:
            listening: A socket that listens; it is closed with the listener.
            make_protocol: Called for each connection.
            newcomers: Counts the connections that have not been admitted.
        """
        self.sockets = (listening,)
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._opening = OwnedTasks()
        self._acceptor = Acceptor(listening, self._take, newcomers)

    def close(self) -> None:
        """Stop accepting; open connections stay open."""
        self._acceptor.close()

    def _take(self, line: socket.socket) -> None:
        self._opening.start(self._open(line))

    async def _open(self, line: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, line)
        except OSError as error:
            line.close()
            logger.info("a connection was lost at once: %s", system_text(error))
        except BaseException:
            # The event loop ended before it took the socket over, or creating the protocol failed.
            line.close()
            raise
