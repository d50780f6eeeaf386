"""
Conditions of `wait_for`, which end the wait of a call early.

The first condition met ends the wait and is named in the result: a regular expression that matches
the output, a time without output, a listening port, or a program that waits for input.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

from holdfast.agent.unified_exec.output.patterns import Pattern, compile_pattern
from holdfast.agent.unified_exec.output.search_thread import SearchThread
from holdfast.agent.unified_exec.waiting.stream_search import StreamSearch
from holdfast.backends import FileSystem
from holdfast.base.errors import ConnectionLost, HoldfastError, InvalidParams, NotFound, Refused
from holdfast.events import WaitingFor
from holdfast.wire.protocol.fs import ReadFileParams
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import DisabledProfile, SandboxContext

__all__ = ["LONGEST_QUIET", "PORT_INTERVAL", "Condition", "WaitFor", "Watch"]

Condition = Literal["pattern", "quiet", "port", "input"]

LONGEST_QUIET = 86_400
"""Largest value of `quiet` in seconds, longer than any call waits."""

PORT_INTERVAL = 0.2
"""Seconds between two checks of a port."""

# The pause after a check of a port is at least this many times as long as the check.
_PORT_SHARE = 20

# Most bytes of a match to show in the result.
_DETAIL = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFor:
    """
    The conditions of one call; at least one.

    Raises:
        InvalidParams: A value is out of range or has the wrong type, or no condition is given.
    """

    pattern: str | None = None
    """A regular expression in RE2 syntax, to search in the output during the call."""
    quiet: float | None = None
    """Seconds without output since the start of the call or the last output."""
    port: int | None = None
    """A TCP port on which a program listens, on any address."""
    input: bool = False
    """The program waits for input on its terminal."""

    def __post_init__(self) -> None:
        if self.pattern is not None and not _is_text(self.pattern):
            raise InvalidParams(
                f"wait_for: pattern is {self.pattern!r}, it must be a text that is not empty"
            )
        if self.quiet is not None and not _is_time(self.quiet):
            raise InvalidParams(
                f"wait_for: quiet is {self.quiet!r}, it must be a number of seconds above 0,"
                f" at most {LONGEST_QUIET:,}"
            )
        if self.port is not None and not _is_port(self.port):
            raise InvalidParams(f"wait_for: port is {self.port!r}, it must be from 1 to 65535")
        if not _is_flag(self.input):
            raise InvalidParams(f"wait_for: input is {self.input!r}, it must be true or false")
        if self.pattern is None and self.quiet is None and self.port is None and not self.input:
            raise InvalidParams("wait_for: give a pattern, quiet, a port or input")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_time(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value <= LONGEST_QUIET


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535


class Watch:
    """
    Watches for the conditions of one call.

    Create it with `open` before the command is started. Pass the output of the call to `stream`,
    and results of an `InputWatch` to `input_found`. Keep `run` running until the wait ends.
    """

    def __init__(
        self, wait_for: WaitFor, wake: Callable[[], None], pattern: Pattern | None
    ) -> None:
        """Use `open` instead."""
        self.stream = None if pattern is None else StreamSearch(pattern)
        """The search for the pattern; call `searched` after each step."""
        self.detail: str | None = None
        """Details of `met`: the matched text, the port or the kind of input."""
        self.pattern_given_up = False
        """True if the pattern proved too slow and is no longer searched."""
        self._wait_for = wait_for
        self._wake = wake
        self._port: _ListeningPort | None = None
        self._met: Condition | None = None
        self._loop = asyncio.get_running_loop()
        self._last_output = self._loop.time()

    @classmethod
    async def open(
        cls,
        wait_for: WaitFor,
        wake: Callable[[], None],
        *,
        thread: SearchThread,
        files: FileSystem | None = None,
        sandbox: SandboxContext | None = None,
    ) -> Self:
        """
        Check the conditions and return a watch for them.

        Args:
            wait_for: The conditions.
            wake: Called once, when the first condition is met.
            thread: Compiles the pattern.
            files: The files of the environment; only needed for a port.
            sandbox: The sandbox of the command, if any.

        Raises:
            InvalidParams: The pattern is invalid, or the port cannot be checked.
        """
        pattern = None
        if wait_for.pattern is not None:
            pattern = await thread.run(partial(compile_pattern, wait_for.pattern))
        watch = cls(wait_for, wake, pattern)
        if wait_for.port is not None:
            # A port requires files.
            assert files is not None
            watch._port = await _ListeningPort.open(wait_for.port, files, sandbox)
        return watch

    @property
    def met(self) -> Condition | None:
        """The first condition that was met."""
        return self._met

    def output_came(self) -> None:
        """Note output of the command."""
        self._last_output = self._loop.time()

    def searched(self) -> None:
        """Process the result of a search for the pattern."""
        if self.stream is None:
            return
        if self.stream.match is not None:
            match = self.stream.match[:_DETAIL]
            self._meet("pattern", match.decode(errors="replace"))
        self.pattern_given_up = self.stream.given_up

    def input_found(self, found: WaitingFor) -> None:
        """Note that the program waits for `LINE`, `PASSWORD` or `KEY`."""
        if self._wait_for.input and found not in (WaitingFor.NONE, WaitingFor.UNKNOWN):
            self._meet("input", found.value)

    async def run(self) -> None:
        """
        Watch the time and the port until a condition is met. The call starts now.

        The caller cancels this when the wait is over. A port is no longer checked if the
        environment stops answering.
        """
        self._last_output = self._loop.time()
        async with asyncio.TaskGroup() as group:
            if self._wait_for.quiet is not None:
                group.create_task(self._watch_time(self._wait_for.quiet))
            if self._port is not None:
                group.create_task(self._watch_port(self._port))

    async def _watch_time(self, quiet: float) -> None:
        while self._met is None:
            left = self._last_output + quiet - self._loop.time()
            if left <= 0:
                self._meet("quiet", f"{quiet:g} s")
            else:
                await asyncio.sleep(left)

    async def _watch_port(self, port: "_ListeningPort") -> None:
        while self._met is None:
            begun = self._loop.time()
            try:
                if await port.is_open():
                    before = ", open before this call" if port.was_open else ""
                    self._meet("port", f"{self._wait_for.port}{before}")
                    return
            except HoldfastError:
                return
            # Listing sockets takes long on a machine with many.
            pause = _PORT_SHARE * (self._loop.time() - begun)
            await asyncio.sleep(max(PORT_INTERVAL, pause))

    def _meet(self, condition: Condition, detail: str) -> None:
        if self._met is None:
            self._met = condition
            self.detail = detail
            self._wake()


_TABLES = tuple(PathUri.parse(f"file:///proc/net/{name}") for name in ("tcp", "tcp6"))

# Most bytes of a table to search, about 7,000 sockets; listening sockets come first.
_MOST_BYTES = 1 << 20

# Seconds for the check before a command is started or polled: the connection may be lost.
FIRST_LOOK = 5.0


class _ListeningPort:
    """
    Checks whether a program listens on a TCP port, through the files of an environment.

    The kernel lists sockets in `/proc/net/tcp` and `tcp6`, listening ones first. These are the
    sockets in the network namespace of the server. A command with a separate namespace cannot be
    checked.
    """

    def __init__(self, port: int, files: FileSystem) -> None:
        """Use `open` instead."""
        self.was_open = False
        """True if the port is known to have been open when this was created."""
        self._files = files
        self._tables = _TABLES
        # Address and port, those of the peer, and the state: 0A is LISTEN.
        self._row = re.compile(
            rb"^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:[0-9A-F]{4} 0A " % port, re.MULTILINE
        )

    @classmethod
    async def open(
        cls, port: int, files: FileSystem, sandbox: SandboxContext | None
    ) -> "_ListeningPort":
        """
        Return a checker that works, provided that the environment answers within 5 s.

        If it does not, the call itself will fail: a start or a poll has its own limits, and its own
        error for a lost environment.

        Raises:
            InvalidParams: The command has a separate network, or the environment does not list its
                sockets.
        """
        if _has_own_network(sandbox):
            raise InvalidParams(
                f"wait_for: port {port} cannot be looked up, because the sandbox gives the command"
                " a network of its own"
            )
        found = cls(port, files)
        try:
            async with asyncio.timeout(FIRST_LOOK):
                found.was_open = await found.is_open()
        except (TimeoutError, ConnectionLost):
            pass
        except Refused as error:
            raise InvalidParams(
                f"wait_for: port {port} cannot be looked up, because the environment does not"
                f" show its sockets in {_TABLES[0].native}: {error}"
            ) from error
        return found

    async def is_open(self) -> bool:
        """
        Return True if a program listens on the port.

        Raises:
            Refused: The environment does not list its sockets.
            ConnectionLost: The environment is lost for good.
        """
        for table in self._tables:
            try:
                text = await self._files.read_file(ReadFileParams(table))
            except NotFound:
                if len(self._tables) == 1:
                    raise
                # Most likely a kernel without IPv6.
                self._tables = tuple(other for other in self._tables if other != table)
                continue
            if self._row.search(text, 0, _MOST_BYTES):
                return True
        return False


def _has_own_network(sandbox: SandboxContext | None) -> bool:
    if sandbox is None or isinstance(sandbox.permissions, DisabledProfile):
        return False
    return sandbox.permissions.network == "restricted"
