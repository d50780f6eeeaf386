"""Lines in front of asyncio's transports, which are recorded here."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from holdfast.wire.rpc.framing import Lines
from holdfast.wire.transports.line_transport import LineTransport, WriteSide
from holdfast.wire.transports.transport import HIGH_WATER, LOW_WATER
from tests.unit.wire.transports.recorder import Recorder


class Wire(asyncio.Transport):
    """An asyncio transport that goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.calls: list[str] = []
        self.limits: tuple[int | None, int | None] = (None, None)
        self.unsent = 0

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.sent.append(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def is_closing(self) -> bool:
        return "close" in self.calls or "abort" in self.calls

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")


class Socket:
    """A line transport on a socket, connected."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.wire = Wire()
        self.lines = LineTransport("unix", self.recorder.accept)
        self.lines.connection_made(self.wire)


@pytest.fixture
async def socket() -> Socket:
    return Socket()


@pytest.mark.requirement("stdio.lines")
async def test_each_line_is_a_message_and_each_message_a_line(socket: Socket) -> None:
    socket.lines.data_received(b'{"a":1}\n{"b"')
    socket.lines.data_received(b":2}\r\n")
    assert socket.recorder.messages == [b'{"a":1}', b'{"b":2}']
    socket.lines.send(b"out")
    socket.lines.send_parts([b"in ", b"par", b"ts"])
    assert socket.wire.sent == [b"out\n", b"in parts\n"]


async def test_a_transport_tells_its_kind_and_its_limits(socket: Socket) -> None:
    assert socket.lines.kind == "unix"
    assert socket.lines.label == "exec-server unix"
    assert socket.wire.limits == (HIGH_WATER, LOW_WATER)


async def test_answers_to_lines_that_came_together_go_out_together(socket: Socket) -> None:
    def answer(message: bytes) -> None:
        socket.lines.send(b"re:" + message)
        socket.lines.send_parts([b"and ", b"more"])

    socket.recorder.on_message = answer
    socket.lines.data_received(b"1\n2\n")
    assert socket.wire.sent == [b"re:1\nand more\nre:2\nand more\n"]
    socket.lines.data_received(b"3\n")
    assert socket.wire.sent[1:] == [b"re:3\n", b"and more\n"]


@pytest.mark.requirement("stdio.utf8")
@pytest.mark.parametrize("line", [b"\xff\n", b'"\xc3"\n', b"\xed\xa0\x80\n"])
async def test_what_is_not_utf8_ends_the_connection_without_an_answer(
    socket: Socket, line: bytes
) -> None:
    socket.lines.data_received(b"fine \xc3\xa9\n" + line + b"later\n")
    assert socket.recorder.messages == [b"fine \xc3\xa9"]
    assert socket.recorder.ends == ["the input is not UTF-8"]
    assert "close" in socket.wire.calls
    assert socket.wire.sent == []


@pytest.mark.requirement("stdio.limit")
async def test_a_line_that_is_too_long_ends_the_connection_after_those_before_it(
    socket: Socket,
) -> None:
    socket.recorder.on_message = socket.lines.send
    socket.lines._lines = Lines(limit=5)
    socket.lines.data_received(b"one\ntwo\nand three")
    assert socket.recorder.messages == [b"one", b"two"]
    assert socket.wire.sent == [b"one\ntwo\n"]
    assert socket.recorder.ends == ["a line is too long"]
    assert "close" in socket.wire.calls


@pytest.mark.requirement("stdio.last-line")
async def test_a_last_line_without_an_end_is_taken(socket: Socket) -> None:
    socket.lines.data_received(b"one\ntwo")
    assert socket.lines.eof_received() is False
    assert socket.recorder.messages == [b"one", b"two"]
    assert socket.recorder.ends == ["end of input"]


async def test_the_end_is_told_once(socket: Socket) -> None:
    socket.lines.eof_received()
    socket.lines.connection_lost(None)
    socket.lines.close()
    socket.lines.abort()
    assert socket.recorder.ends == ["end of input"]


async def test_a_connection_that_breaks_says_why(socket: Socket) -> None:
    socket.lines.connection_lost(ConnectionResetError("reset by peer"))
    assert socket.recorder.ends == ["reset by peer"]


async def test_after_the_end_nothing_is_sent_or_heard(socket: Socket) -> None:
    socket.lines.close()
    socket.lines.send(b"late")
    socket.lines.send_parts([b"la", b"te"])
    socket.lines.data_received(b"late\n")
    socket.lines.pause_receiving()
    socket.lines.resume_receiving()
    assert socket.wire.sent == []
    assert socket.recorder.messages == []
    assert {"pause", "resume"}.isdisjoint(socket.wire.calls)


async def test_what_was_said_before_a_close_still_goes_out(socket: Socket) -> None:
    def answer(message: bytes) -> None:
        socket.lines.send(b"last words")
        socket.lines.close()

    socket.recorder.on_message = answer
    socket.lines.data_received(b"one\ntwo\n")
    assert socket.wire.sent == [b"last words\n"]
    assert socket.recorder.messages == [b"one"]
    assert socket.recorder.ends == ["closed here"]


async def test_an_abort_is_at_once(socket: Socket) -> None:
    socket.wire.unsent = 1
    socket.lines.abort()
    assert "abort" in socket.wire.calls
    assert socket.recorder.ends == ["closed here"]


async def test_receiving_can_be_paused(socket: Socket) -> None:
    socket.lines.pause_receiving()
    socket.lines.resume_receiving()
    assert socket.wire.calls == ["pause", "resume"]


async def test_a_peer_that_does_not_read_is_told_of(socket: Socket) -> None:
    socket.lines.pause_writing()
    socket.lines.resume_writing()
    assert socket.recorder.pauses == ["pause", "resume"]


# Two pipes instead of a socket.


async def test_messages_may_go_out_on_another_pipe_than_they_come_in() -> None:
    recorder, reader, writer = Recorder(), Wire(), Wire()
    lines = LineTransport("stdio", recorder.accept)
    side = WriteSide(lines)
    lines.write_to(writer)
    side.pause_writing()  # nobody is there to be told yet
    side.resume_writing()
    lines.connection_made(reader)
    lines.send(b"out")
    assert (reader.sent, writer.sent) == ([], [b"out\n"])
    side.pause_writing()
    side.resume_writing()
    assert recorder.pauses == ["pause", "resume"]
    side.connection_lost(BrokenPipeError("nobody reads"))
    assert recorder.ends == ["nobody reads"]
    assert "close" in reader.calls
    assert "close" in writer.calls


async def test_a_pipe_that_ended_before_the_other_was_there_is_told_of() -> None:
    recorder, reader = Recorder(), Wire()
    lines = LineTransport("stdio", recorder.accept)
    lines.write_to(Wire())
    WriteSide(lines).connection_lost(None)
    lines.connection_made(reader)
    assert recorder.ends == ["end of output"]
    assert reader.calls == ["close"]


async def test_nothing_is_sent_before_there_is_a_way_out() -> None:
    recorder = Recorder()
    lines = LineTransport("stdio", recorder.accept)
    lines.send(b"x")
    lines.send_parts([b"x"])
    lines.pause_receiving()
    lines.resume_receiving()
    lines.close()
    lines.abort()
