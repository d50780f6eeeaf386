"""Rules for a lost peer, with a clock and a kernel played by hand."""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.wire.connection import MANY_CALLS, Connection
from holdfast.wire.protocol.methods import ENVIRONMENT_STATUS
from holdfast.wire.protocol.wire_types import Empty
from holdfast.wire.transports.liveness import HangUpMonitor, HeartbeatMonitor, TcpState, keep_alive
from tests.unit.fakes import FakeTransport
from tests.unit.wire.transports.scarcity import no_descriptor_left

INTERVAL = 8.0
"""Seconds; the clock is played, so nothing waits."""


class Clock:
    """The part of an event loop that a watch uses."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[tuple[float, Callable[[], None], asyncio.TimerHandle]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        handle = _Handle()
        self._timers = [(when, callback, handle)]  # type: ignore[list-item]  # one is enough
        return handle

    def advance(self, seconds: float) -> None:
        """Let time pass, with every look at its time."""
        until = self.now + seconds
        while self._timers and self._timers[0][0] <= until:
            when, callback, handle = self._timers.pop(0)
            self.now = max(when, self.now)
            if not handle.cancelled():
                callback()
        self.now = until

    def stall(self, seconds: float) -> None:
        """Let time pass while no callback can run."""
        self.now += seconds


class _Handle:
    def __init__(self) -> None:
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled


class Watched:
    """A watch and what it did."""

    def __init__(self, **how: Any) -> None:
        self.clock = Clock()
        self.signs: list[float] = []
        self.ends: list[str] = []
        loop: Any = self.clock
        self.watch = HeartbeatMonitor(
            loop, send_heartbeat=lambda: self.signs.append(loop.now - 100), end=self.ends.append
        )
        self.watch.start(INTERVAL, **how)

    def hear(self) -> None:
        self.watch.last_received = self.clock.time()


def test_a_sign_is_sent_in_each_interval_and_silence_ends_it_within_two() -> None:
    watched = Watched(judge_silence=True)
    watched.clock.advance(1.7 * INTERVAL)
    assert (watched.signs, watched.ends) == ([INTERVAL], [])
    watched.clock.advance(0.3 * INTERVAL)
    assert watched.ends == ["no answer for 14 s"]
    watched.clock.advance(10 * INTERVAL)
    assert len(watched.ends) == 1


def test_whatever_is_heard_is_an_answer() -> None:
    watched = Watched(judge_silence=True)
    for _ in range(10):
        watched.clock.advance(1.5 * INTERVAL)
        watched.hear()
    assert watched.ends == []


def test_silence_means_nothing_where_it_is_not_judged() -> None:
    watched = Watched(judge_silence=False)
    watched.clock.advance(10 * INTERVAL)
    assert watched.ends == []
    assert len(watched.signs) == 10


def test_silence_is_not_judged_while_paused_and_anew_afterwards() -> None:
    watched = Watched(judge_silence=True)
    watched.watch.pause()
    watched.clock.advance(5 * INTERVAL)
    assert watched.ends == []
    assert watched.signs == []  # nobody expects any
    watched.watch.resume()
    watched.clock.advance(1.5 * INTERVAL)
    assert watched.ends == []
    watched.clock.advance(0.5 * INTERVAL)
    assert len(watched.ends) == 1


def test_one_whose_signs_are_expected_sends_them_while_paused_too() -> None:
    watched = Watched(judge_silence=True, mutual=True)
    watched.watch.pause()
    watched.clock.advance(3 * INTERVAL)
    assert len(watched.signs) == 3
    watched.watch.stop_sending()
    watched.clock.advance(3 * INTERVAL)
    assert len(watched.signs) == 3


def test_a_busy_peer_is_excused_unless_it_speaks_by_itself() -> None:
    watched = Watched(judge_silence=True)
    busy = True
    watched.watch.excuse(lambda: busy)
    watched.clock.advance(5 * INTERVAL)
    assert watched.ends == []
    watched.watch.start(INTERVAL, judge_silence=True, mutual=True)
    watched.clock.advance(2 * INTERVAL)
    assert len(watched.ends) == 1


def test_a_late_look_gives_another_interval() -> None:
    watched = Watched(judge_silence=True)
    watched.clock.stall(5 * INTERVAL)
    watched.clock.advance(0)
    assert watched.ends == []
    watched.hear()  # what had come meanwhile is read only now
    watched.clock.advance(INTERVAL)
    assert watched.ends == []


def test_a_late_look_does_not_excuse_for_ever() -> None:
    watched = Watched(judge_silence=True)
    watched.clock.stall(5 * INTERVAL)
    watched.clock.advance(INTERVAL)
    assert len(watched.ends) == 1


def test_bytes_that_wait_to_be_read_are_an_answer() -> None:
    incoming, outgoing = os.pipe()
    try:
        watched = Watched(judge_silence=True, descriptor=incoming)
        os.write(outgoing, b"\n")
        watched.clock.advance(5 * INTERVAL)
        assert watched.ends == []
        os.read(incoming, 1)
        watched.clock.advance(2 * INTERVAL)
        assert len(watched.ends) == 1
    finally:
        os.close(incoming)
        os.close(outgoing)


# What the kernel knows.


class Kernel:
    """Plays `TCP_INFO`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.owed = False
        self.acked = self.received = 100.0
        monkeypatch.setattr(TcpState, "of", self._state)
        self.watched = Watched(judge_silence=False, sock=object())

    def _state(self, sock: object) -> TcpState:
        now = self.watched.clock.now
        return TcpState(self.owed, now - self.received, now - self.acked)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


def test_a_machine_that_acknowledges_nothing_is_lost(kernel: Kernel) -> None:
    kernel.owed = True
    kernel.watched.clock.advance(1.7 * INTERVAL)
    assert kernel.watched.ends == []
    kernel.watched.clock.advance(0.3 * INTERVAL)
    assert kernel.watched.ends == ["no acknowledgement for 14 s"]


def test_a_machine_that_owes_nothing_may_be_silent(kernel: Kernel) -> None:
    kernel.watched.clock.advance(10 * INTERVAL)
    assert kernel.watched.ends == []


def test_what_was_only_just_sent_may_be_unacknowledged(kernel: Kernel) -> None:
    kernel.watched.clock.advance(10 * INTERVAL)
    kernel.owed = True
    kernel.watched.clock.advance(0.7 * INTERVAL)
    assert kernel.watched.ends == []
    kernel.acked = kernel.watched.clock.now
    kernel.watched.clock.advance(1.7 * INTERVAL)
    assert kernel.watched.ends == []
    kernel.watched.clock.advance(0.3 * INTERVAL)
    assert len(kernel.watched.ends) == 1


def test_a_part_of_a_message_is_an_answer(kernel: Kernel) -> None:
    kernel.watched.watch.start(INTERVAL, judge_silence=True)
    for _ in range(10):
        kernel.watched.clock.advance(INTERVAL)
        kernel.received = kernel.watched.clock.now
    assert kernel.watched.ends == []
    kernel.watched.clock.advance(2 * INTERVAL)
    assert kernel.watched.ends == ["no answer for 14 s"]


def test_only_tcp_has_such_a_state() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert TcpState.of(left) is None


def test_the_kernel_ends_an_idle_connection_within_two_intervals() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sock = socket.create_connection(listening.getsockname())
        with sock:
            keep_alive(sock, 30)
            state = TcpState.of(sock)
            assert state is not None
            assert not state.owed
            idle, distance, count = (
                sock.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert idle + distance * count <= 60


async def test_a_peer_that_owes_many_answers_may_be_too_busy_for_a_ping() -> None:
    transport = FakeTransport()
    handler: Any = None
    connection = Connection(transport, handler)
    async with asyncio.TaskGroup() as tasks:
        calls = []
        for _ in range(MANY_CALLS + 1):
            assert not transport.silence_is_excused()
            call = connection.call(ENVIRONMENT_STATUS, Empty())
            calls.append(tasks.create_task(call))
            await asyncio.sleep(0)
        assert transport.silence_is_excused()
        for call_task in calls:
            call_task.cancel()


async def test_a_connection_is_paused_also_without_a_free_descriptor() -> None:
    left, right = socket.socketpair()
    with left, right:
        with no_descriptor_left():
            watch = HangUpMonitor(
                asyncio.get_running_loop(),
                left.fileno(),
                reset=lambda: None,
                ended=lambda _: None,
            )
        watch.stop()
        watch.stop()
