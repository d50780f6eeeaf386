"""A look at the kernel: real processes on a terminal, and folders that stand in for `/proc`."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from holdfast.engine.process.io import input_wanted
from holdfast.engine.process.io.input_wanted import Polling, look
from holdfast.engine.process.process import LocalProcess
from holdfast.engine.process.registry import ProcessRegistry
from holdfast.events import Reason, WaitingFor
from holdfast.wire.protocol.process import WriteStatus
from tests.unit.engine.process.starting import LIMIT, launch, program, shell, written

READS_IN_THREAD = """
import sys, threading, time
threading.Thread(target=sys.stdin.readline).start()
print("ready", flush=True)
time.sleep(60)
"""

POLLS = """
import select, sys
p = select.poll(); p.register(0, select.POLLIN)
print("ready", flush=True)
p.poll()
"""

SELECTS = 'import select; print("ready", flush=True); select.select([0], [], [])'
EPOLLS = """
import select
p = select.epoll(); p.register(0, select.EPOLLIN)
print("ready", flush=True)
p.poll()
"""
MANY_THREADS = """
import threading, time
done = threading.Event()
for _ in range(60):
    threading.Thread(target=done.wait, daemon=True).start()
print("ready", flush=True)
input()
time.sleep(60)
"""
WRITE_POLLS = """
import select, os
p = select.poll(); p.register(0, 0); p.register(os.pipe()[0], select.POLLIN)
print("ready", flush=True)
p.poll()
"""


class Terminal:
    """A process on a terminal, and looks at it."""

    def __init__(self, process: LocalProcess) -> None:
        self.process = process
        assert process._terminal is not None
        self.master = process._terminal

    def look(self, proc: Path | None = None) -> WaitingFor | Polling:
        return look(self.master, self.process.pid, proc="/proc" if proc is None else str(proc))

    async def comes_to(self, holds: Callable[[WaitingFor | Polling], bool]) -> WaitingFor | Polling:
        """Look until something holds, which nothing tells of."""
        async with asyncio.timeout(LIMIT):
            while not holds(found := self.look()):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.005)
        return found

    async def waits(self) -> WaitingFor | Polling:
        return await self.comes_to(lambda found: found is not WaitingFor.NONE)


Start = Callable[..., Terminal]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    processes = ProcessRegistry()
    yield lambda *argv: Terminal(launch(processes, program(*argv, tty=True)))
    processes.end(Reason.SERVER_STOPPING)
    await processes.wait_all_closed(LIMIT)


def channels(folder: Path, pid: int, channel: bytes, call: bytes | None = None) -> Path:
    """Make a `/proc` for one process in which the kernel shows less."""
    task = folder / str(pid) / "task" / str(pid)
    task.mkdir(parents=True)
    (task / "children").write_bytes(b"")
    (task / "wchan").write_bytes(channel)
    (task / "stat").write_bytes(b"1 (a b) ) S 1 1")
    if call is not None:
        (task / "syscall").write_bytes(call)
    (folder / str(pid) / "fd").symlink_to(f"/proc/{pid}/fd")
    (folder / str(pid) / "mem").symlink_to(f"/proc/{pid}/mem")
    return folder


async def test_a_thread_that_reads_counts(start: Start) -> None:
    terminal = start(sys.executable, "-c", READS_IN_THREAD)
    assert await terminal.waits() is WaitingFor.LINE


@pytest.mark.parametrize("script", [POLLS, SELECTS, EPOLLS], ids=["poll", "select", "epoll"])
async def test_a_set_with_the_terminal_needs_a_second_look(start: Start, script: str) -> None:
    terminal = start(sys.executable, "-c", script)
    first = await terminal.waits()
    assert isinstance(first, Polling)
    assert first.mode is WaitingFor.LINE
    assert first.confirmed(terminal.look()) is WaitingFor.LINE


async def test_a_set_that_has_the_terminal_for_something_else_does_not_count(start: Start) -> None:
    terminal = start(sys.executable, "-c", WRITE_POLLS)
    await written(terminal.process, b"ready")
    for _ in range(20):
        assert terminal.look() is WaitingFor.NONE
        await asyncio.sleep(0.005)


def test_only_the_same_call_confirms_a_poll() -> None:
    first = Polling(WaitingFor.KEY, frozenset({("1", b"7 0x1")}))
    assert first.confirmed(Polling(WaitingFor.LINE, first.calls)) is WaitingFor.LINE
    other = Polling(WaitingFor.KEY, frozenset({("1", b"7 0x2"), ("2", b"7 0x1")}))
    assert first.confirmed(other) is WaitingFor.NONE
    for certain in WaitingFor:
        assert first.confirmed(certain) is certain


async def test_a_poll_that_goes_on_after_a_stop_counts(start: Start) -> None:
    terminal = start(sys.executable, "-c", POLLS)
    await terminal.waits()
    os.kill(terminal.process.pid, signal.SIGSTOP)
    await terminal.comes_to(lambda found: found is WaitingFor.NONE)
    os.kill(terminal.process.pid, signal.SIGCONT)
    assert isinstance(await terminal.waits(), Polling)


async def test_a_stopped_reader_waits_for_none(start: Start) -> None:
    terminal = start("cat")
    assert await terminal.waits() is WaitingFor.LINE
    os.kill(terminal.process.pid, signal.SIGSTOP)
    await terminal.comes_to(lambda found: found is WaitingFor.NONE)
    os.kill(terminal.process.pid, signal.SIGCONT)
    assert await terminal.waits() is WaitingFor.LINE


async def test_the_job_in_the_foreground_of_a_shell_counts(start: Start) -> None:
    terminal = start("bash", "--norc", "-ic", "sleep 60 & cat; true")
    assert await terminal.waits() is WaitingFor.LINE
    assert os.tcgetpgrp(terminal.master) != terminal.process.pid


async def test_a_job_in_the_background_does_not_count(start: Start) -> None:
    terminal = start("bash", "--norc", "-ic", "cat & echo rea''dy; sleep 60")
    await written(terminal.process, b"ready")
    for _ in range(20):
        assert terminal.look() is WaitingFor.NONE
        await asyncio.sleep(0.005)


async def test_another_terminal_does_not_count(start: Start) -> None:
    script = "import os; m, s = os.openpty(); print('ready', flush=True); os.read(s, 1)"
    terminal = start(sys.executable, "-c", script)
    await written(terminal.process, b"ready")
    for _ in range(20):
        assert terminal.look() is WaitingFor.NONE
        await asyncio.sleep(0.005)


async def test_with_too_many_threads_nobody_knows(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = start("sh", "-c", "sleep 60 | sleep 60; true")
    assert terminal.look() is WaitingFor.NONE
    monkeypatch.setattr(input_wanted, "MOST_THREADS", 1)
    assert await terminal.waits() is WaitingFor.UNKNOWN


async def test_of_many_threads_the_first_counts(start: Start) -> None:
    terminal = start(sys.executable, "-c", MANY_THREADS)
    await terminal.comes_to(lambda found: found is WaitingFor.LINE)
    assert await terminal.process.write(b"\n", "w") is WriteStatus.ACCEPTED
    await terminal.comes_to(lambda found: found is WaitingFor.UNKNOWN)


@pytest.mark.parametrize(
    ("channel", "expected"),
    [
        (b"n_tty_read", WaitingFor.LINE),
        (b"wait_woken", WaitingFor.LINE),
        (b"hrtimer_nanosleep", WaitingFor.NONE),
        (b"poll_schedule_timeout.constprop.0", WaitingFor.UNKNOWN),
        (b"do_epoll_wait", WaitingFor.UNKNOWN),
        (b"0", WaitingFor.UNKNOWN),
        (b"", WaitingFor.UNKNOWN),
    ],
)
async def test_where_the_call_is_hidden_the_wait_channel_tells(
    start: Start, tmp_path: Path, channel: bytes, expected: WaitingFor
) -> None:
    terminal = start("cat")
    assert terminal.look(channels(tmp_path, terminal.process.pid, channel)) is expected


async def test_the_wait_channel_of_a_process_with_sockets_may_be_theirs(
    start: Start, tmp_path: Path
) -> None:
    script = "import socket; s = socket.socketpair(); print('ready', flush=True); input()"
    terminal = start(sys.executable, "-c", script)
    await written(terminal.process, b"ready")
    proc = channels(tmp_path, terminal.process.pid, b"wait_woken")
    assert terminal.look(proc) is WaitingFor.UNKNOWN


async def test_numbers_of_a_32_bit_program_mean_nothing(start: Start, tmp_path: Path) -> None:
    terminal = start("sleep", "60")
    # 0 is `restart_syscall` there, and not `read`.
    call = b"0 0x0 0x0 0x0 0x0 0x0 0x0 0xffd3b0a0 0xf7f0b549\n"
    proc = channels(tmp_path, terminal.process.pid, b"hrtimer_nanosleep", call)
    assert terminal.look(proc) is WaitingFor.NONE


@pytest.mark.parametrize("call", [b"running\n", b"-1 0x7ffd00000000 0x7ffd00000000\n", b""])
async def test_outside_of_a_call_nothing_is_waited_for(
    start: Start, tmp_path: Path, call: bytes
) -> None:
    terminal = start("cat")
    assert terminal.look(channels(tmp_path, terminal.process.pid, b"0", call)) is WaitingFor.NONE


async def test_a_set_that_cannot_be_read_is_unknown(start: Start, tmp_path: Path) -> None:
    terminal = start("cat")
    number = next(number for number, name in input_wanted._CALLS.items() if name == "ppoll")
    call = f"{number} 0x10 0x1 0x0 0x0 0x0 0x0 0x7ffd00000000 0x7ffd00000000\n".encode()
    proc = channels(tmp_path, terminal.process.pid, b"do_sys_poll", call)
    assert terminal.look(proc) is WaitingFor.UNKNOWN


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start something of another user")
async def test_a_process_of_another_user_is_seen_by_root(start: Start) -> None:
    terminal = start(
        sys.executable, "-c", "import os; os.setuid(65534); print('ready', flush=True); input()"
    )
    await written(terminal.process, b"ready")
    assert await terminal.waits() in (WaitingFor.LINE, WaitingFor.UNKNOWN)


def test_what_is_no_terminal_is_unknown() -> None:
    ends = os.pipe()
    try:
        assert look(ends[0], os.getpid()) is WaitingFor.UNKNOWN
    finally:
        for end in ends:
            os.close(end)


def test_a_terminal_of_nobody_is_unknown() -> None:
    master, slave = os.openpty()
    try:
        assert look(master, os.getpid()) is WaitingFor.UNKNOWN
    finally:
        os.close(master)
        os.close(slave)


async def test_a_look_leaves_no_descriptor_open(start: Start) -> None:
    terminal = start("cat")
    await terminal.waits()
    before = os.listdir("/proc/self/fd")
    for _ in range(10):
        terminal.look()
    assert os.listdir("/proc/self/fd") == before


async def test_a_process_of_pipes_and_one_that_ended_are_not_looked_at() -> None:
    processes = ProcessRegistry()
    piped = launch(processes, shell("sleep 60"))
    assert await piped.waiting_for() is WaitingFor.UNKNOWN
    processes.end(Reason.SERVER_STOPPING)
    await processes.wait_all_closed(LIMIT)
    assert await piped.waiting_for() is WaitingFor.NONE
