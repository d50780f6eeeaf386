"""
Serves connections on streams passed by other processes, and outlives them.

Such a server has a single client, which reconnects when its connection is lost. So the newest
streams replace the previous connection, even if it still looks alive, and the session can be
resumed at once.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import NamedTuple

from holdfast.wire.transports.accepting import Acceptor
from holdfast.wire.transports.handover import END, listen_for_handovers, peer_is_own_user, take_over
from holdfast.wire.transports.private_directory import PrivateDirectory
from holdfast.wire.transports.stdio import serve_descriptors
from holdfast.wire.transports.transport import Receiver, Transport

__all__ = ["HandedStreams", "Keeping"]

logger = logging.getLogger(__name__)

# Maximum number of peers that are connected but have not passed streams.
_SILENT_PEERS = 8

# Seconds after which such a peer is disconnected.
_SILENT_LIMIT = 5.0


class Keeping(NamedTuple):
    """Directory of the socket that takes streams, and its token."""

    folder: PrivateDirectory
    token: str


class HandedStreams:
    """Listens for streams from other processes, and serves the newest ones."""

    def __init__(
        self,
        keeping: Keeping,
        *,
        accept: Callable[[Transport], Receiver],
        tasks: asyncio.TaskGroup,
        end: Callable[[], None],
    ) -> None:
        """
        Start listening.

        Args:
            keeping: The directory, and the token that a peer must send.
            accept: Serves a connection.
            tasks: Owns the tasks of connections.
            end: Called when the client no longer needs the server.

        Raises:
            OSError: The socket cannot be created.
        """
        self._loop = asyncio.get_running_loop()
        self._token = keeping.token
        self._accept_transport = accept
        self._tasks = tasks
        self._end = end
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._current: _Streams | None = None
        self._acceptor = Acceptor(listen_for_handovers(keeping.folder), self._take)

    def close(self) -> None:
        """Stop listening, and close all streams."""
        self._acceptor.close()
        for control in list(self._silent):
            self._forget(control)
            control.close()
        if self._current is not None:
            self._current.abort()

    def _take(self, control: socket.socket) -> None:
        # The directory is private, but its mode may have been changed.
        if not peer_is_own_user(control):
            control.close()
            return
        if len(self._silent) >= _SILENT_PEERS:
            # Drop the oldest: a client that reconnects sends its message at once.
            self._give_up(next(iter(self._silent)))
        self._silent[control] = self._loop.call_later(_SILENT_LIMIT, self._give_up, control)
        self._loop.add_reader(control, self._receive, control)

    def _forget(self, control: socket.socket) -> None:
        self._silent.pop(control).cancel()
        self._loop.remove_reader(control)

    def _give_up(self, control: socket.socket) -> None:
        self._forget(control)
        control.close()

    def _receive(self, control: socket.socket) -> None:
        self._forget(control)
        taken = take_over(control, self._token)
        if not taken:
            control.close()
            return
        if self._current is not None:
            self._current.abort()
        streams = self._current = _Streams(control, taken, self._end)
        self._tasks.create_task(streams.serve(self._accept_transport))


class _Streams:
    """Three passed streams, and the socket they arrived on."""

    def __init__(
        self, control: socket.socket, descriptors: list[int], end: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._incoming, self._outgoing, errors = descriptors
        self._end = end
        self._transport: Transport | None = None
        # True once the streams are closed, and once the client has ended the server.
        self._ended = False
        self._ending_server = False
        # The log goes to the connected client, and must not block the server.
        os.set_blocking(errors, False)
        os.dup2(errors, 2)
        os.close(errors)
        # The peer sends nothing else, so readable means that the peer has closed it.
        self._loop.add_reader(control, self.abort)

    async def serve(self, accept: Callable[[Transport], Receiver]) -> None:
        """Start a connection on the streams; return once it is set up."""
        try:
            self._transport = await serve_descriptors(
                self._incoming, self._outgoing, lambda it: _EndsWithStreams(accept(it), self)
            )
        except OSError as error:
            logger.warning("cannot use the streams that were handed over: %s", error)
            self.lost()
        if self._ended and self._transport is not None:
            self._transport.abort()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self.lost()

    def lost(self) -> None:
        """Release the streams of a connection that has ended."""
        if self._ended or self._ending_server:
            return
        self._ended = True
        self._loop.remove_reader(self._control)
        _release_stderr()
        # Last: the process at the other end then exits, and ssh with it.
        self._control.close()

    def end_server(self) -> None:
        """
        End the server, because the client has closed for good.

        The socket stays open, so that the process that passed the streams, and with it the
        client's ssh, exits only when this process does. The client then knows that everything has
        ended.
        """
        self._ending_server = True
        self._end()


class _EndsWithStreams:
    """Receiver that forwards everything except the line that ends the server."""

    def __init__(self, inner: Receiver, streams: _Streams) -> None:
        self.pause_sending = inner.pause_sending
        self.resume_sending = inner.resume_sending
        self._inner = inner
        self._streams = streams

    def received(self, message: bytes) -> None:
        if message == END:
            self._streams.end_server()
        else:
            self._inner.received(message)

    def lost(self, reason: str) -> None:
        self._inner.lost(reason)
        self._streams.lost()


def _release_stderr() -> None:
    try:
        null = os.open(os.devnull, os.O_RDWR)
    except OSError:
        # No descriptor is available: close stderr first to free its number.
        os.close(2)
        null = os.open(os.devnull, os.O_RDWR)
    if null != 2:
        os.dup2(null, 2)
        os.close(null)
