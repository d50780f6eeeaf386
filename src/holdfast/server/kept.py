"""
Connections on streams that other processes hand over: how a server outlives them.

One client uses such a server, and comes back when its connection is lost. So the streams
that come last are the right ones: they end the connection before, even if nobody has
noticed yet that it is dead, and the session can be resumed at once.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.transports.base import Receiver, Transport
from holdfast.transports.handover import END, listen_for_handovers, peer_is_own_user, take_over
from holdfast.transports.private_folder import PrivateFolder
from holdfast.transports.stdio import serve_descriptors

__all__ = ["HandedStreams", "Keeping"]

logger = logging.getLogger(__name__)

# Peers that may be connected without having handed over anything.
_SILENT_PEERS = 8

# Seconds such a peer is waited for.
_SILENT_LIMIT = 5.0

# Seconds until the next attempt when the system has no descriptor left.
_ACCEPT_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class Keeping:
    """The folder in which streams are handed over, and the token for it."""

    folder: PrivateFolder
    token: str


class HandedStreams:
    """Accepts streams from other processes, and serves the last that came."""

    def __init__(
        self,
        keeping: Keeping,
        *,
        accept: Callable[[Transport], Receiver],
        tasks: asyncio.TaskGroup,
        end: Callable[[], None],
    ) -> None:
        """
        Listen.

        Args:
            keeping: Where, and the token that a peer has to know.
            accept: Serves a connection.
            tasks: Owns what runs in the background.
            end: Called when the client says that it needs the server no more.

        Raises:
            OSError: The socket cannot be had.
        """
        self._loop = asyncio.get_running_loop()
        self._token = keeping.token
        self._accept_transport = accept
        self._tasks = tasks
        self._end = end
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._current: _Streams | None = None
        self._listening = listen_for_handovers(keeping.folder)
        self._watch()

    def close(self) -> None:
        """Listen no more, and let go of all streams."""
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for control in list(self._silent):
            self._forget(control)
            control.close()
        if self._current is not None:
            self._current.abort()

    def _watch(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            control, _ = self._listening.accept()
        except (BlockingIOError, ConnectionError):
            # It has gone already.
            return
        except OSError as error:
            # The peer waits, so this would be called again and again.
            logger.warning("cannot accept streams: %s", error)
            self._loop.remove_reader(self._listening)
            self._loop.call_later(_ACCEPT_PAUSE, self._watch)
            return
        if not peer_is_own_user(control):
            control.close()
            return
        if len(self._silent) >= _SILENT_PEERS:
            # The oldest goes: the client that comes back speaks at once.
            self._give_up(next(iter(self._silent)))
        control.setblocking(False)
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
    """Three streams and the socket they came by, as long as they are in use."""

    def __init__(
        self, control: socket.socket, descriptors: list[int], end: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._incoming, self._outgoing, errors = descriptors
        self._end = end
        self._transport: Transport | None = None
        # Whether the streams are no longer in use, and whether the whole server ends.
        self._ended = False
        self._ending_server = False
        # What the server logs goes to whoever is connected; it must never wait for that.
        os.set_blocking(errors, False)
        os.dup2(errors, 2)
        os.close(errors)
        # Nothing comes but the end.
        self._loop.add_reader(control, self.abort)

    async def serve(self, accept: Callable[[Transport], Receiver]) -> None:
        """Serve a connection on the streams; returns once it is made."""
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
        """Let go of what is left, since the connection has ended."""
        if self._ended or self._ending_server:
            return
        self._ended = True
        self._loop.remove_reader(self._control)
        _release_stderr()
        # Last: the process at its other end exits, and ssh with it.
        self._control.close()

    def end_server(self) -> None:
        """
        Pass on that the client closes for good.

        The process that handed over the streams, and so the client's ssh, ends when
        this process does: whoever waits for it knows that everything has ended.
        """
        self._ending_server = True
        self._end()


class _EndsWithStreams:
    """Passes everything on, but the line that ends the server."""

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
        # No descriptor is left, but for this one.
        os.close(2)
        null = os.open(os.devnull, os.O_RDWR)
    if null != 2:
        os.dup2(null, 2)
        os.close(null)
