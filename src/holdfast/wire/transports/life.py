"""
Signs of life: how a connection finds out that its other side is gone.

A peer that ends, or whose machine resets the connection, is told of by the kernel.
Three cases are not, and each has its part here:

- Nothing comes any more, and nothing says why: a lost route, or a proxy whose far side
  is lost. `LifeWatch` sends signs of life and judges the silence of the other side.
- The kernel of the other machine acknowledges nothing. `LifeWatch` reads that from
  `TCP_INFO`, for peers that may be silent by right.
- The connection ends while nobody reads from it. `HangUpWatch` sees to that.
"""

import asyncio
import fcntl
import logging
import select
import socket
import struct
import termios
from collections.abc import Callable
from contextlib import suppress

import msgspec

__all__ = ["LEFT_UNREAD", "HangUpWatch", "LifeWatch", "TcpState", "keep_alive"]

logger = logging.getLogger(__name__)

LEFT_UNREAD = 2.0
"""Seconds that a server waits to read on, once its client has ended the connection."""

# Looks per interval. A lost peer is noticed after 2 intervals less one look, at the earliest.
_TICKS = 4

# Seconds an acknowledgement may take in any case: it may be delayed, or have to be repeated.
_LATEST_ACK = 1.0

# Probes of a closed window that have to be unanswered: Linux answers two a second, no more.
_PROBES = 2

# Socket option of Linux 6.15: longest time between two attempts to send (`linux/tcp.h`).
_TCP_RTO_MAX_MS = 44

# `tcpi_probes`, `tcpi_unacked`, `tcpi_last_data_recv` and `tcpi_last_ack_recv`.
_TCP_INFO = struct.Struct("=3xB20xI24xII")


class TcpState(msgspec.Struct, frozen=True):
    """The part of the kernel's `TCP_INFO` that tells whether the other machine is there."""

    owed: bool
    """Something was sent that is not acknowledged: data, or probes of a closed window."""
    last_data: float
    """Seconds since data came."""
    last_ack: float
    """Seconds since the other kernel acknowledged anything."""

    @classmethod
    def of(cls, sock: socket.socket) -> "TcpState | None":
        """Return the state of a socket; None if it is no TCP socket, or closed."""
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            probes, unacked, last_data, last_ack = _TCP_INFO.unpack(info)
        except (OSError, struct.error):
            return None
        owed = unacked > 0 or probes >= _PROBES
        return cls(owed, last_data / 1000, last_ack / 1000)


def keep_alive(sock: socket.socket, interval: float) -> None:
    """
    Let the kernel probe an idle TCP connection and end it within two intervals.

    `TCP_USER_TIMEOUT` is left alone: it also ends a connection whose other side is
    alive and merely does not read.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Seconds, and at least one: idle for one interval, then up to four probes in the next.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(interval)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(interval / 4)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    # An older kernel does not know the option.
    with suppress(OSError):
        # A peer that does not read is probed at growing distances, up to 120 s. Only probes
        # without an answer show that it is lost, so there have to be some in each interval.
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, max(1000, int(interval * 1000 / 3)))


class LifeWatch:
    """
    Sends a sign of life in each interval, and ends a connection that gives none for two.

    Silence is not held against the other side while this side does not read, nor
    when this side's own event loop was late to look.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        send_sign: Callable[[], None],
        end: Callable[[str], None],
    ) -> None:
        """
        Prepare to watch; nothing happens before `start`.

        Args:
            loop: Where the timer runs.
            send_sign: Sends something the other side's reader takes no notice of.
            end: Called once, with the reason, when the other side is lost.
        """
        self._loop = loop
        self._send_sign = send_sign
        self._end = end
        self._interval = 0.0
        # True if silence ends the connection; otherwise only TCP keep-alive does.
        self._judging = False
        # True if the peer sends signs of life by itself, so that nothing excuses its silence.
        self._mutual = False
        self._excused: Callable[[], bool] = lambda: False
        self._paused = False
        self._paused_at = 0.0
        # The other side said that nothing more comes; a sign would only provoke a reset.
        self._no_signs = False
        # TCP only: what the kernel knows.
        self._socket: socket.socket | None = None
        # Since when the other kernel owes an acknowledgement, as far as the looks show.
        self._owed_since: float | None = None
        # Not TCP: the descriptor that is read from, to see if bytes wait to be read.
        self._descriptor: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._next_sign = 0.0
        # When something came last; on TCP the kernel knows better.
        self._last_received = 0.0

    def start(
        self,
        interval: float,
        *,
        judge_silence: bool,
        mutual: bool = False,
        sock: socket.socket | None = None,
        descriptor: int | None = None,
    ) -> None:
        """
        Begin, or go on in another way.

        Args:
            interval: Seconds between two signs of life.
            judge_silence: End the connection when nothing came for two intervals.
            mutual: The other side sends signs by itself, and needs no excuse.
            sock: The TCP socket, if it is one; once given, it stays.
            descriptor: What is read from, if it is no TCP socket.
        """
        self._interval = interval
        self._judging = judge_silence
        self._mutual = mutual
        if sock is not None:
            self._socket = sock
        if descriptor is not None:
            self._descriptor = descriptor
        now = self._loop.time()
        self._last_received = now
        self._next_sign = now + interval
        self._schedule(now)

    def excuse(self, excused: Callable[[], bool]) -> None:
        """Set who is asked whether silence means nothing at the moment."""
        self._excused = excused

    def received(self) -> None:
        """Take note that something came; not needed on TCP, where the kernel does."""
        self._last_received = self._loop.time()

    def pause(self) -> None:
        """Judge no silence from here on: this side does not read."""
        if not self._paused:
            self._paused_at = self._loop.time()
        self._paused = True

    def resume(self) -> None:
        """Judge silence again, from now on."""
        self._paused = False
        self._last_received = self._loop.time()

    def stop_signs(self) -> None:
        """Send no more: the other side has ended its half, and what it said is still unread."""
        self._no_signs = True

    def stop(self) -> None:
        """Stop for good."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._socket = None
        self._descriptor = None

    def _schedule(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = now + self._interval / _TICKS
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if now - self._due > self._interval / 2:
            # A debugger, a suspended machine, a long computation: what came meanwhile may
            # not have been read yet, and the other side may have had nothing to answer.
            self._last_received = max(self._last_received, now - self._interval)
        lost = self._find_loss(now)
        if lost is not None:
            self.stop()
            self._end(lost)
            return
        if now >= self._next_sign:
            self._next_sign = now + self._interval
            if not self._no_signs and self._may_send_sign(now):
                self._send_sign()
        self._schedule(now)

    def _may_send_sign(self, now: float) -> bool:
        """
        Return True unless a sign could lose what the other side has said.

        While this side does not read, a sign breaks a connection that the other side has closed
        with much unread. It is sent where its absence would be judged. And a server, which does
        not judge, sends it after a while: the kernel tells of no end that is behind what it has
        no room for, so the server would keep the connection for ever.
        """
        if not self._paused or self._mutual:
            return True
        return not self._judging and now - self._paused_at >= self._interval

    def _find_loss(self, now: float) -> str | None:
        """Return why the other side is lost, or None."""
        state = None if self._socket is None else TcpState.of(self._socket)
        # One look less, so that it is not noticed later than after two intervals.
        limit = self._interval * (2 - 1 / _TICKS)
        if (
            state is not None
            and self._is_owed_long(state, now)
            and state.last_ack >= max(limit, _LATEST_ACK)
        ):
            return f"no acknowledgement for {state.last_ack:.3g} s"
        if not self._judging or self._paused:
            return None
        if not self._mutual and self._excused():
            self._last_received = now
            return None
        silence = now - self._last_received
        if state is not None:
            # Exact even for a frame that takes minutes to come, of which only the end is told.
            silence = min(silence, state.last_data)
        if silence < limit:
            return None
        if self._descriptor is not None and _unread(self._descriptor):
            self._last_received = now
            return None
        return f"no answer for {silence:.3g} s"

    def _is_owed_long(self, state: TcpState, now: float) -> bool:
        """Return True if an acknowledgement is owed since most of an interval."""
        if not state.owed:
            self._owed_since = None
            return False
        if self._owed_since is None or now - state.last_ack > self._owed_since:
            # It may just have been sent: the last acknowledgement can be old by right.
            self._owed_since = now
        return now - self._owed_since >= self._interval * (1 - 1 / _TICKS)


class HangUpWatch:
    """
    Tells of the end of a connection that nobody reads from at the moment.

    Event loops notice an end by reading. A paused connection would be taken for a living
    one, on asyncio and on uvloop, until something is written to it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        descriptor: int,
        *,
        reset: Callable[[], None],
        ended: Callable[[bool], None],
        left: Callable[[str], None] | None = None,
    ) -> None:
        """
        Watch a descriptor until `stop`.

        Args:
            loop: Where the callbacks are called.
            descriptor: A socket, or a pipe that is read from.
            reset: Called when the connection broke: it was reset, or the kernel gave it up.
            ended: Called when the other side has ended it, with True if bytes are left to read.
            left: Called with the reason when those bytes are not read for `LEFT_UNREAD` seconds
                either. A server gives: its client waits for nothing any more, but what it has
                asked for may keep the server from reading on for ever.
        """
        self._loop = loop
        self._descriptor = descriptor
        self._reset = reset
        self._ended = ended
        self._left = left
        self._timer: asyncio.TimerHandle | None = None
        # A loop cannot wait for a hang-up alone, but it can wait for an epoll that does. Edges,
        # since an end whose bytes are left to read stays true for as long as they are.
        self._epoll: select.epoll | None = None
        try:
            self._epoll = select.epoll()
        except OSError as error:
            # Without a free descriptor an end is noticed when somebody reads again.
            logger.warning("cannot watch a connection that is not read: %s", error)
            return
        self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLET)
        loop.add_reader(self._epoll.fileno(), self._look)

    def stop(self) -> None:
        """Let go of the descriptor; harmless the second time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._epoll is not None and not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _look(self) -> None:
        # It is what became readable.
        assert self._epoll is not None
        for _, events in self._epoll.poll(0):
            if events & select.EPOLLERR:
                self.stop()
                self._reset()
            else:
                if self._left is not None and self._timer is None:
                    reason = "the other side has left"
                    self._timer = self._loop.call_later(LEFT_UNREAD, self._left, reason)
                self._ended(_unread(self._descriptor) > 0)


def _unread(descriptor: int) -> int:
    """Return how many bytes wait to be read."""
    count = bytearray(4)
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:
        return 0
    return int.from_bytes(count, "little")
