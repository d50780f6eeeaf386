"""
Heartbeats: how one side of a connection finds out that the other side is gone.

The kernel reports a peer that exits, or whose machine resets the connection. It does not report
these three cases, each of which is handled here:

- Nothing arrives for no visible reason: a lost route, or a proxy whose far side is lost.
  `HeartbeatMonitor` sends heartbeats and watches for silence of the other side.
- The kernel of the other machine acknowledges nothing. `HeartbeatMonitor` reads that from
  `TCP_INFO`, for peers that are allowed to be silent.
- The connection ends while this side does not read it. `HangUpMonitor` notices that.
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

__all__ = ["LEFT_UNREAD", "HangUpMonitor", "HeartbeatMonitor", "TcpState", "keep_alive"]

logger = logging.getLogger(__name__)

LEFT_UNREAD = 2.0
"""Seconds that a server may leave data unread once its client has ended the connection."""

# Checks per interval. A lost peer is noticed after 2 intervals minus one check at the earliest.
_TICKS = 4

# Seconds that an acknowledgement may always take: it may be delayed or retransmitted.
_LATEST_ACK = 1.0

# Unanswered probes of a closed window before it counts: Linux answers only two a second.
_PROBES = 2

# Socket option of Linux 6.15: longest time between two attempts to send (`linux/tcp.h`).
_TCP_RTO_MAX_MS = 44

# `tcpi_probes`, `tcpi_unacked`, `tcpi_last_data_recv` and `tcpi_last_ack_recv`.
_TCP_INFO = struct.Struct("=3xB20xI24xII")


class TcpState(msgspec.Struct, frozen=True):
    """The part of the kernel's `TCP_INFO` that shows whether the other machine is alive."""

    owed: bool
    """True if data, or probes of a closed window, were sent and not acknowledged."""
    last_data: float
    """Seconds since data arrived."""
    last_ack: float
    """Seconds since the other kernel acknowledged anything."""

    @classmethod
    def of(cls, sock: socket.socket) -> "TcpState | None":
        """Return the state of a socket; None if it is not a TCP socket, or closed."""
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            probes, unacked, last_data, last_ack = _TCP_INFO.unpack(info)
        except (OSError, struct.error):
            return None
        owed = unacked > 0 or probes >= _PROBES
        return cls(owed, last_data / 1000, last_ack / 1000)


def keep_alive(sock: socket.socket, interval: float) -> None:
    """
    Make the kernel probe an idle TCP connection and end it within two intervals.

    `TCP_USER_TIMEOUT` is not set: it also ends a connection whose other side is alive and merely
    does not read.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # At least one second: idle for one interval, then up to four probes in the next.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(interval)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(interval / 4)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    # An older kernel does not know the option.
    with suppress(OSError):
        # A peer that does not read is probed at growing intervals, up to 120 s. Only probes without
        # an answer show that it is lost, so each of our intervals needs some.
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, max(1000, int(interval * 1000 / 3)))


class HeartbeatMonitor:
    """
    Sends a heartbeat in each interval, and ends a connection that sends none for two intervals.

    Silence does not count while this side does not read, or when this side's own event loop was
    late to check.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        send_heartbeat: Callable[[], None],
        end: Callable[[str], None],
    ) -> None:
        """
        Prepare; nothing happens before `start`.

        Args:
            loop: Runs the timer.
            send_heartbeat: Sends a message that the other side's reader ignores.
            end: Called once, with the reason, when the other side is lost.
        """
        self._loop = loop
        self._send_heartbeat = send_heartbeat
        self._end = end
        self._interval = 0.0
        # True if silence ends the connection; otherwise only TCP keep-alive does.
        self._judging = False
        # True if the peer sends heartbeats unprompted, so that nothing excuses its silence.
        self._mutual = False
        self._excused: Callable[[], bool] = lambda: False
        self._paused = False
        self._paused_at = 0.0
        # The other side ended its half; a heartbeat would only provoke a reset.
        self._stopped_sending = False
        # TCP only: the source of the kernel's state.
        self._socket: socket.socket | None = None
        # Since when the other kernel owes an acknowledgement, as observed by our checks.
        self._owed_since: float | None = None
        # Not TCP: the descriptor to read, to check whether bytes wait to be read.
        self._descriptor: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._next_sign = 0.0
        self.last_received = 0.0
        """
        Time of the last arrival by the clock of the loop, set by the owner.

        Not needed on TCP: there the kernel has a better one.
        """

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
        Start, or continue with other settings.

        Args:
            interval: Seconds between two heartbeats.
            judge_silence: End the connection when nothing has arrived for two intervals.
            mutual: The other side sends heartbeats unprompted, and needs no excuse.
            sock: The TCP socket, if it is one; once given, it is kept.
            descriptor: The descriptor to read, if it is not a TCP socket.
        """
        self._interval = interval
        self._judging = judge_silence
        self._mutual = mutual
        if sock is not None:
            self._socket = sock
        if descriptor is not None:
            self._descriptor = descriptor
        now = self._loop.time()
        self.last_received = now
        self._next_sign = now + interval
        self._schedule(now)

    def excuse(self, excused: Callable[[], bool]) -> None:
        """Set a callback that returns True while silence has to be ignored."""
        self._excused = excused

    def pause(self) -> None:
        """Ignore silence from now on: this side does not read."""
        if not self._paused:
            self._paused_at = self._loop.time()
        self._paused = True

    def resume(self) -> None:
        """Count silence again from now on."""
        self._paused = False
        self.last_received = self._loop.time()

    def stop_sending(self) -> None:
        """Stop heartbeats: the other side has ended its half, and its data is still unread."""
        self._stopped_sending = True

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
            # A debugger, a suspended machine, a long computation: data that arrived meanwhile may
            # still be unread, and the other side may have had nothing to answer.
            self.last_received = max(self.last_received, now - self._interval)
        lost = self._find_loss(now)
        if lost is not None:
            self.stop()
            self._end(lost)
            return
        if now >= self._next_sign:
            self._next_sign = now + self._interval
            if not self._stopped_sending and self._may_send_heartbeat(now):
                self._send_heartbeat()
        self._schedule(now)

    def _may_send_heartbeat(self, now: float) -> bool:
        """
        Return True unless a heartbeat could lose data that the other side has sent.

        While this side does not read, a heartbeat breaks a connection that the other side has
        closed with much unread. It is sent where its absence would count as silence. A server,
        which ignores silence, sends one after a while: the kernel does not report an end behind
        data that does not fit its buffer, so the server would keep the connection for ever.
        """
        if not self._paused or self._mutual:
            return True
        return not self._judging and now - self._paused_at >= self._interval

    def _find_loss(self, now: float) -> str | None:
        """Return the reason why the other side is lost, or None."""
        state = None if self._socket is None else TcpState.of(self._socket)
        # Minus one check, so that the loss is noticed within two intervals.
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
            self.last_received = now
            return None
        silence = now - self.last_received
        if state is not None:
            # Exact even for a frame that takes minutes to arrive: only its end is reported to us.
            silence = min(silence, state.last_data)
        if silence < limit:
            return None
        if self._descriptor is not None and _unread(self._descriptor):
            self.last_received = now
            return None
        return f"no answer for {silence:.3g} s"

    def _is_owed_long(self, state: TcpState, now: float) -> bool:
        """Return True if an acknowledgement has been owed for most of an interval."""
        if not state.owed:
            self._owed_since = None
            return False
        if self._owed_since is None or now - state.last_ack > self._owed_since:
            # The data may just have been sent: the last acknowledgement may rightly be old.
            self._owed_since = now
        return now - self._owed_since >= self._interval * (1 - 1 / _TICKS)


class HangUpMonitor:
    """
    Reports the end of a connection that is not being read.

    Event loops notice an end by reading. Both asyncio and uvloop would consider a paused connection
    alive until something is written to it.
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
            loop: Runs the callbacks.
            descriptor: A socket, or a pipe to read.
            reset: Called when the connection broke: it was reset, or the kernel gave it up.
            ended: Called when the other side has ended it, with True if bytes are left to read.
            left: Called with the reason if those bytes are not read for `LEFT_UNREAD` seconds. For
                a server: its client no longer waits for anything, but its requests may keep the
                server from reading for ever.
        """
        self._loop = loop
        self._descriptor = descriptor
        self._reset = reset
        self._ended = ended
        self._left = left
        self._timer: asyncio.TimerHandle | None = None
        # A loop cannot wait for a hang-up alone, but it can wait for an epoll that does.
        # Edge-triggered, since an end stays signalled while bytes are left to read.
        self._epoll: select.epoll | None = None
        try:
            self._epoll = select.epoll()
        except OSError as error:
            # Without a free descriptor an end is noticed only when reading resumes.
            logger.warning("cannot watch a connection that is not read: %s", error)
            return
        self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLET)
        loop.add_reader(self._epoll.fileno(), self._look)

    def stop(self) -> None:
        """Release the descriptor; a second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._epoll is not None and not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _look(self) -> None:
        # The epoll is what became readable.
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
    """Return the number of bytes that wait to be read."""
    count = bytearray(4)
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:
        return 0
    return int.from_bytes(count, "little")
