"""
Accepts connections of a listening socket, also after the system had no descriptor left.

asyncio's own loop tries again as often as the backlog is long, and logs a traceback each time.
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

# Connections that are taken before others have their turn. Each takes up to 0.3 ms until it is
# refused, and a call of another client takes some ten turns of the event loop.
_ACCEPTED_AT_ONCE = 16

# Seconds until the next attempt when the system has no descriptor left.
_ACCEPT_PAUSE = 1.0

# Connections of one listener whose clients have not been let in, at most.
_MOST_NEWCOMERS = 1_024


class Newcomers:
    """
    Connections of a listener whose clients have not been let in yet.

    The oldest is dropped for one too many. So a flood of them takes a bounded number of
    descriptors, and does not lock out a client that sends its request at once.
    """

    def __init__(self) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(_MOST_NEWCOMERS, descriptors // 4)
        # In the order in which they came.
        self._waiting: dict[asyncio.Transport, None] = {}
        self.refused = Sampled()
        """Selects those whose refusal is logged."""

    def add(self, connection: asyncio.Transport) -> None:
        """Count a connection until it is discarded."""
        self._waiting[connection] = None
        if len(self._waiting) > self._most:
            self.drop_oldest()

    def discard(self, connection: asyncio.Transport) -> None:
        """Forget a connection that was let in or has ended; harmless if it is not counted."""
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
    """Passes on each connection of a listening socket, until it is closed."""

    def __init__(
        self,
        listening: socket.socket,
        take: Callable[[socket.socket], None],
        newcomers: Newcomers | None = None,
    ) -> None:
        """
        Begin to accept.

        Args:
            listening: A socket that listens; it is closed with this object.
            take: Called with each connection, which it then owns.
            newcomers: Dropped when the system has no descriptor left.
        """
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._take = take
        self._newcomers = newcomers or Newcomers()
        listening.setblocking(False)
        self._watch()

    def close(self) -> None:
        """Accept no more; connections that were passed on go on."""
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
                    # Its descriptor is free in the next turn, which calls this again.
                    return
                # A connection that waits would have this called again and again.
                logger.warning("cannot accept a connection: %s", system_text(error))
                self._loop.remove_reader(self._listening)
                self._loop.call_later(_ACCEPT_PAUSE, self._watch)
                return
            line.setblocking(False)
            self._take(line)


class PlainListener:
    """Makes a protocol of each connection, without TLS."""

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        newcomers: Newcomers | None = None,
    ) -> None:
        """
        Begin to accept.

        Args:
            listening: A socket that listens; it is closed with the listener.
            make_protocol: Called for each connection.
            newcomers: Counts the connections that have not been let in.
        """
        self.sockets = (listening,)
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._opening = OwnedTasks()
        self._acceptor = Acceptor(listening, self._take, newcomers)

    def close(self) -> None:
        """Accept no more; connections that are open go on."""
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
            # The event loop ends before it has taken the socket over, or no protocol was made.
            line.close()
            raise
