"""Questions on terminals, and the commands that share them."""

import asyncio
import os
import pty
import signal
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic

from holdfast.engine.linux.proc import stat_fields
from holdfast.front.drop_in.quiet_terminal import Terminals

# Seconds for a guard to start.
LIMIT = 10.0


def is_stopped(pid: int) -> bool:
    return stat_fields(f"/proc/{pid}")[0] == b"T"


@contextmanager
def sandboxed() -> Iterator[tuple[int, int]]:
    """Yield the pids of a process in the place of the first of a sandbox, and of a command."""
    with subprocess.Popen(
        ["sh", "-c", "sleep 100 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True
    ) as first:
        try:
            assert first.stdout is not None
            yield first.pid, int(first.stdout.readline())
        finally:
            os.killpg(first.pid, signal.SIGKILL)


async def test_a_question_that_is_cancelled_while_its_guard_starts_leaves_nothing_stopped() -> None:
    master, slave = pty.openpty()
    try:
        with sandboxed() as (first, command):
            device = os.fstat(slave).st_rdev
            terminals = Terminals()
            terminals.add_command(first, frozenset([device]))
            turn = terminals.turn(device, os.ttyname(slave))
            asking = asyncio.create_task(turn.__aenter__())
            await asyncio.sleep(0)
            # The event loop is busy until the guard has stopped the command.
            deadline = monotonic() + LIMIT
            while not is_stopped(command):
                assert monotonic() < deadline
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
            assert not is_stopped(command)
            assert not termios.tcgetattr(slave)[3] & termios.TOSTOP
    finally:
        os.close(master)
        os.close(slave)


async def test_a_command_whose_terminal_is_unknown_is_stopped_at_each_question() -> None:
    master, slave = pty.openpty()
    # Opened in another session, it may be any terminal.
    streams = frozenset([os.stat("/dev/tty").st_rdev])
    try:
        with sandboxed() as (first, command):
            terminals = Terminals()
            terminals.add_command(first, streams)
            async with terminals.turn(os.fstat(slave).st_rdev, os.ttyname(slave)):
                assert is_stopped(command)
                starting = asyncio.create_task(terminals.begin_start(streams))
                await asyncio.sleep(0)
                assert not starting.done()
            assert not is_stopped(command)
            (await starting).set_result(None)
    finally:
        os.close(master)
        os.close(slave)
