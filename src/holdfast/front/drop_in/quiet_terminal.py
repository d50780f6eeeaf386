"""
Keeps questions and sandboxed commands on the terminals of callers apart.

A command could write over a question, and show another one than the person answers. So while a
question is open, the commands in sandboxes that share its terminal are stopped, and none is
started there. The terminal itself stops what writes from the background (`terminal_guard`).
"""

import asyncio
import logging
import os
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from weakref import WeakValueDictionary

from holdfast.base.errors import OperationFailed
from holdfast.front.drop_in import terminal_guard

__all__ = ["Terminals"]

logger = logging.getLogger(__name__)

_GUARD = os.path.realpath(terminal_guard.__file__)

# Seconds for all commands of a terminal to stop; without that, nothing is asked.
_STOP_LIMIT = 10.0

# Seconds for starts in progress to end; each has its own bound.
_START_LIMIT = 60.0

# Undoes what a command may have written before it was stopped, so that a question could not be
# seen: an unfinished sequence, colours, letters of lines, insertion, one long line, a screen that
# is not updated, margins. The cursor stays where it is, and what is below it is erased.
_READABLE = b"\x18\x1b\\\x1b[0m\x1b(B\x0f\x1b[4l\x1b[?7h\x1b[?2026l\x1b7\x1b[r\x1b8\x1b[J"

# `/dev/tty`, `/dev/console` and `/dev/tty0`: such a descriptor leads to a terminal that its number
# does not tell, for example to that of another session.
_ALIASES = frozenset(os.makedev(*numbers) for numbers in ((5, 0), (5, 1), (4, 0)))

# O_NOCTTY: the terminal must not become the controlling one of the server.
_FLAGS = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK


class Terminals:
    """The terminals of all callers, by their device numbers."""

    def __init__(self) -> None:
        # One question at a time is open on a terminal.
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        # Open questions; done when they are closed.
        self._questions: dict[int, asyncio.Future[None]] = {}
        # Starts in progress, done when they have ended, with their terminals.
        self._starts: dict[asyncio.Future[None], frozenset[int]] = {}
        # First processes of sandboxes, with the terminals that these share.
        self._commands: dict[int, frozenset[int]] = {}

    async def begin_start(self, devices: frozenset[int]) -> asyncio.Future[None]:
        """
        Wait until no question is open on some terminals.

        Returns:
            A future to be resolved by the caller when the start has ended, well or badly.
        """
        while waits := [end for on, end in self._questions.items() if _reach(devices, on)]:
            await asyncio.wait(waits)
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starts[started] = devices
        started.add_done_callback(lambda ended: self._starts.pop(ended, None))
        return started

    def add_command(self, first: int, devices: frozenset[int]) -> None:
        """Note a sandbox by its first process."""
        self._commands[first] = devices

    def remove_command(self, first: int | None) -> None:
        """Remove a sandbox that has ended; None for one that was never built."""
        if first is not None:
            self._commands.pop(first, None)

    def turn(
        self, device: int, path: str, *, escapes: bool = False
    ) -> AbstractAsyncContextManager[None]:
        """
        Return a context in which a question may be open on a terminal.

        Args:
            device: Its number.
            path: A path to it.
            escapes: True if it knows escape sequences.
        """
        lock = self._turns.setdefault(device, asyncio.Lock())
        return self._turn(device, path, lock, escapes=escapes)

    @asynccontextmanager
    async def _turn(
        self, device: int, path: str, lock: asyncio.Lock, *, escapes: bool
    ) -> AsyncIterator[None]:
        async with lock:
            closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._questions[device] = closed
            try:
                starts = [start for start, on in self._starts.items() if _reach(on, device)]
                if starts and (await asyncio.wait(starts, timeout=_START_LIMIT))[1]:
                    raise OperationFailed("a command on the terminal is still being started")
                async with self._quiet(device, path) as terminal:
                    if escapes:
                        # Full or hung up, it shows no question either.
                        with suppress(OSError):
                            os.write(terminal, _READABLE)
                    yield
            finally:
                del self._questions[device]
                closed.set_result(None)

    @asynccontextmanager
    async def _quiet(self, device: int, path: str) -> AsyncIterator[int]:
        first = [str(pid) for pid, on in self._commands.items() if _reach(on, device)]
        terminal = os.open(path, _FLAGS)
        try:
            arguments = (str(terminal), str(_kernel_number(device)), _mode(terminal), *first)
            guard = await _hold(arguments, terminal)
            # Both are pipes.
            assert guard.stdin is not None
            assert guard.stdout is not None
            try:
                try:
                    async with asyncio.timeout(_STOP_LIMIT):
                        quiet = await guard.stdout.read(1)
                except TimeoutError:
                    quiet = b""
                if quiet != terminal_guard.QUIET:
                    raise OperationFailed("the commands on the terminal cannot be stopped")
                yield terminal
            finally:
                # From here on the guard continues everything, whatever happens to this task.
                guard.stdin.close()
                if await asyncio.shield(guard.wait()):
                    logger.warning("the guard of a terminal was killed")
                    await _release(arguments, terminal)
        finally:
            os.close(terminal)


async def _hold(arguments: tuple[str, ...], terminal: int) -> asyncio.subprocess.Process:
    try:
        return await _start("hold", arguments, terminal)
    except asyncio.CancelledError:
        # That killed the guard, which may have stopped commands before.
        await _release(arguments, terminal)
        raise


async def _release(arguments: tuple[str, ...], terminal: int) -> None:
    await (await _start("release", arguments, terminal)).wait()


async def _start(way: str, arguments: tuple[str, ...], terminal: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", _GUARD, way, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(terminal,),
        # Ctrl-C at the terminal of the server is not for the guard.
        start_new_session=True,
    )


def _reach(devices: frozenset[int], terminal: int) -> bool:
    """Return True if one of some devices may be a terminal."""
    return terminal in devices or not _ALIASES.isdisjoint(devices)


def _mode(terminal: int) -> str:
    """Return whether a terminal stops background processes that write, as `stty` says it."""
    with suppress(termios.error):
        if termios.tcgetattr(terminal)[3] & termios.TOSTOP:
            return "tostop"
    return "-tostop"


def _kernel_number(device: int) -> int:
    """Convert a device number from `st_rdev` to the kernel's encoding in `/proc/PID/stat`."""
    major, minor = os.major(device), os.minor(device)
    number = (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)
    return number - (1 << 32) if number >= 1 << 31 else number
