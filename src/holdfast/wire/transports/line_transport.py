"""
One message per line on any pair of byte streams: the base of stdio and unix sockets [stdio.*].
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from holdfast.wire.rpc.framing import Lines, LineTooLong
from holdfast.wire.transports.liveness import HangUpMonitor, HeartbeatMonitor
from holdfast.wire.transports.transport import (
    HIGH_WATER,
    LOCAL,
    LOW_WATER,
    Receiver,
    Transport,
)

__all__ = ["LineTransport", "WriteSide"]

# Largest message, in bytes, that may wait to be sent together with others.
_SMALL = 8192


class _HasDescriptor(Protocol):
    """A file, or a socket of either event loop."""

    def fileno(self) -> int: ...


class LineTransport(asyncio.Protocol):
    """
    Messages as lines, read from one asyncio transport and written to another.

    On a socket both are the same.
    """

    def __init__(
        self,
        kind: str,
        accept: Callable[[Transport], Receiver],
        *,
        leaves_unread: bool = False,
    ) -> None:
        """
        Args:
            kind: The transport's name.
            accept: Called once connected; returns the receiver of its messages. leaves_unread: True
                if the data that a peer sent before it left need not be read;
                    see `HangUpMonitor`.
        """
        self.kind = kind
        self._leaves_unread = leaves_unread
        self.went_silent = False
        # The end of a stream looks the same whether its client closed it or was killed.
        self.was_closed = False
        self.credential = LOCAL
        self.text_only = True
        self.label = f"exec-server {kind}"
        self._accept = accept
        self._receiver: Receiver | None = None
        self._reader: asyncio.ReadTransport | None = None
        self._writer: asyncio.WriteTransport | None = None
        self._lines = Lines()
        self._corked: list[bytes] | None = None
        self._lost = False
        # Both sides send heartbeats; None until they have agreed to.
        self._heartbeats: HeartbeatMonitor | None = None
        # Only while receiving is paused.
        self._hang_up: HangUpMonitor | None = None
        # Number of sockets or pipes whose end the event loop still has to report.
        self._open_ends = 0
        self._closed = asyncio.Event()

    def end_opened(self) -> None:
        """Note that the event loop has to report the end of one more stream."""
        self._open_ends += 1

    def write_to(self, writer: asyncio.WriteTransport) -> None:
        """Set the stream for messages to send; call this before anything is received."""
        self._writer = writer
        writer.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)

    # -- Transport

    def send(self, message: bytes, *, alone: bool = False) -> None:
        if self._lost or self._writer is None:
            return
        if self._corked is not None and len(message) <= _SMALL:
            self._corked.append(message)
        elif self._corked is not None:
            # Not kept back: the sender has to notice if the other side does not read it.
            self._uncork()
            self.send(message)
            self._corked = []
        else:
            self._writer.write(message + b"\n")

    def send_parts(self, parts: Sequence[bytes], *, alone: bool = False) -> None:
        if self._lost or self._writer is None or self._corked is not None:
            self.send(b"".join(parts))
        else:
            self._writer.writelines((*parts, b"\n"))

    def pause_receiving(self) -> None:
        if self._reader is None or self._reader.is_closing():
            return
        self._reader.pause_reading()
        if self._heartbeats is not None:
            self._heartbeats.pause()
        descriptor = self._descriptor()
        if self._hang_up is None and descriptor is not None:
            self._hang_up = HangUpMonitor(
                asyncio.get_running_loop(),
                descriptor,
                reset=self._reset,
                ended=self._ended_unread,
                left=self._leave if self._leaves_unread else None,
            )

    def resume_receiving(self) -> None:
        self._stop_hang_up()
        if self._reader is None or self._reader.is_closing():
            return
        if self._heartbeats is not None:
            self._heartbeats.resume()
        self._reader.resume_reading()

    def expect_heartbeats(self, interval: float) -> None:
        if self._lost:
            return
        if self._heartbeats is None:
            self._heartbeats = HeartbeatMonitor(
                asyncio.get_running_loop(), send_heartbeat=self._send_heartbeat, end=self._give_up
            )
        if self._hang_up is not None:
            self._heartbeats.pause()
        self._heartbeats.start(
            interval, judge_silence=True, mutual=True, descriptor=self._descriptor()
        )

    def excuse_silence(self, excused: Callable[[], bool]) -> None:
        """Do nothing: silence only counts if both sides send heartbeats."""

    def close(self) -> None:
        self._uncork()
        self._end("closed here")
        if self._writer is not None:
            self._writer.close()

    def abort(self) -> None:
        self._end("closed here")
        writer = self._writer
        # One that is closing with nothing left to send needs no more; asyncio's pipes report their
        # end twice if aborted twice.
        if writer is not None and (not writer.is_closing() or writer.get_write_buffer_size()):
            writer.abort()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.end_opened()
        # uvloop's transports do not derive from asyncio's.
        self._reader = cast(asyncio.ReadTransport, transport)
        # A socket is both reader and writer.
        if self._writer is None:
            self.write_to(cast(asyncio.WriteTransport, transport))
        self._receiver = self._accept(self)
        if self._lost:
            # The pipe to write to ended before the one to read was connected.
            self._reader.close()
            self._receiver.lost("end of output")

    def data_received(self, data: bytes) -> None:
        if self._lost:
            return
        if self._heartbeats is not None:
            self._heartbeats.last_received = asyncio.get_running_loop().time()
        too_long = False
        try:
            lines = self._lines.feed(data)
        except LineTooLong as error:
            lines = error.lines
            too_long = True
        if len(lines) > 1:
            self._corked = []
        try:
            for line in lines:
                if not self._take(line):
                    break
        finally:
            self._uncork()
        if too_long:
            self._end("a line is too long")
            self.close()

    def eof_received(self) -> bool:
        last = self._lines.end()
        if last is not None and not self._lost:
            self._take(last)
        self._end("end of input")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._open_ends -= 1
        if self._open_ends == 0:
            self._closed.set()
        self._end("end of input" if exc is None else str(exc))
        if self._writer is not None:
            self._writer.close()

    def pause_writing(self) -> None:
        if self._receiver is not None:
            self._receiver.pause_sending()

    def resume_writing(self) -> None:
        if self._receiver is not None:
            self._receiver.resume_sending()

    # -- internals

    def _descriptor(self) -> int | None:
        """Return the descriptor to read, if it is a socket or a pipe."""
        # Only called on a connected transport.
        assert self._reader is not None
        for name in ("socket", "pipe"):
            found: _HasDescriptor | None = self._reader.get_extra_info(name)
            if found is not None:
                return found.fileno()
        return None

    def _send_heartbeat(self) -> None:
        # Every write has whole messages, so this is never inside one. While data waits to be
        # written, that will serve as a heartbeat.
        writer = self._writer
        if writer is not None and not writer.is_closing() and not writer.get_write_buffer_size():
            writer.write(b"\n")

    def _reset(self) -> None:
        self._give_up("connection reset")

    def _ended_unread(self, unread: bool) -> None:
        if not unread:
            # Nothing but the end is left to read.
            self.resume_receiving()
        elif self._heartbeats is not None:
            # Writing now would break the connection and lose the unread data.
            self._heartbeats.stop_sending()

    def _give_up(self, reason: str) -> None:
        self.went_silent = True
        self._leave(reason)

    def _leave(self, reason: str) -> None:
        self._end(reason)
        self.abort()

    def _stop_hang_up(self) -> None:
        if self._hang_up is not None:
            self._hang_up.stop()
            self._hang_up = None

    def _take(self, line: bytes) -> bool:
        """Pass a line on; return False if that ended the connection."""
        # Set before the first data can arrive.
        assert self._receiver is not None
        if self.text_only and not line.isascii():
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                self._end("the input is not UTF-8")
                self.close()
                return False
        self._receiver.received(line)
        return not self._lost

    def _uncork(self) -> None:
        corked, self._corked = self._corked, None
        if corked and not self._lost and self._writer is not None:
            self._writer.write(b"\n".join(corked) + b"\n")

    def _end(self, reason: str) -> None:
        if self._lost:
            return
        self._uncork()
        self._lost = True
        self._stop_hang_up()
        if self._heartbeats is not None:
            self._heartbeats.stop()
        if self._reader is not None:
            self._reader.close()
        if self._receiver is not None:
            self._receiver.lost(reason)


class WriteSide(asyncio.BaseProtocol):
    """The protocol of a pipe that is only written to: reports that it is full or ended."""

    def __init__(self, lines: LineTransport) -> None:
        self._lines = lines

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._lines.end_opened()

    def pause_writing(self) -> None:
        self._lines.pause_writing()

    def resume_writing(self) -> None:
        self._lines.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lines.connection_lost(exc)
