"""
Accepts connections of a listening socket, also after the system had no descriptor left.

asyncio's own loop tries again as often as the backlog is long, and logs a traceback each time.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

from holdfast.base.system_text import system_text
from holdfast.base.tasks import OwnedTasks

__all__ = ["Acceptor", "PlainListener"]

logger = logging.getLogger(__name__)

# Connections that are taken before others have their turn.
_ACCEPTED_AT_ONCE = 64

# Seconds until the next attempt when the system has no descriptor left.
_ACCEPT_PAUSE = 1.0


class Acceptor:
    """Passes on each connection of a listening socket, until it is closed."""

    def __init__(self, listening: socket.socket, take: Callable[[socket.socket], None]) -> None:
        """
        Begin to accept.

        Args:
            listening: A socket that listens; it is closed with this object.
            take: Called with each connection, which it then owns.
        """
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._take = take
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
        self, listening: socket.socket, make_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        """
        Begin to accept.

        Args:
            listening: A socket that listens; it is closed with the listener.
            make_protocol: Called for each connection.
        """
        self.sockets = (listening,)
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._opening = OwnedTasks()
        self._acceptor = Acceptor(listening, self._take)

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
