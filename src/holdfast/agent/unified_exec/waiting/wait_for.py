"""
Conditions that end the wait of a call early: `wait_for`.

The first one that is met ends the wait and is named in the result: a regular expression in the
output, a time without output, a port that is listened on, or a program that waits for input.
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
"""Seconds that `quiet` may be, which is longer than any call waits."""

PORT_INTERVAL = 0.2
"""Seconds between two looks for a port."""

# A look for a port is followed by a pause of that many times its length, or more.
_PORT_SHARE = 20

# Bytes of a match that are named in the result.
_DETAIL = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFor:
    """
    The conditions of one call; at least one.

    Raises:
        InvalidParams: A value is out of range or of a wrong type, or there is none.
    """

    pattern: str | None = None
    """A regular expression of RE2. It is searched in what comes during the call."""
    quiet: float | None = None
    """Seconds without output, from the begin of the call or the last output."""
    port: int | None = None
    """A TCP port that something listens on, on any address."""
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

    Make one with `open` before the command is started. Search the output of the call by
    `stream`, and hand over what an `InputWatch` finds by `input_found`. Let `run` go on until the
    wait ends.
    """

    def __init__(
        self, wait_for: WaitFor, wake: Callable[[], None], pattern: Pattern | None
    ) -> None:
        """Make one with `open`."""
        self.stream = None if pattern is None else StreamSearch(pattern)
        """The search for the pattern; call `searched` after each of its steps."""
        self.detail: str | None = None
        """More about `met`: the text that matched, the port, the kind of input."""
        self.pattern_given_up = False
        """True if the pattern is too slow, and not looked for any more."""
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
            wake: Called once, when the first of them is met.
            thread: Where the pattern is compiled.
            files: Those of the environment; needed for a port only.
            sandbox: That of the command, if it has one.

        Raises:
            InvalidParams: The pattern is wrong, or the port cannot be looked up.
        """
        pattern = None
        if wait_for.pattern is not None:
            pattern = await thread.run(partial(compile_pattern, wait_for.pattern))
        watch = cls(wait_for, wake, pattern)
        if wait_for.port is not None:
            # Required for a port.
            assert files is not None
            watch._port = await _ListeningPort.open(wait_for.port, files, sandbox)
        return watch

    @property
    def met(self) -> Condition | None:
        """The first condition that was met."""
        return self._met

    def output_came(self) -> None:
        """Note that there is output."""
        self._last_output = self._loop.time()

    def searched(self) -> None:
        """Take the result of a search for the pattern."""
        if self.stream is None:
            return
        if self.stream.match is not None:
            match = self.stream.match[:_DETAIL]
            self._meet("pattern", match.decode(errors="replace"))
        self.pattern_given_up = self.stream.given_up

    def input_found(self, found: WaitingFor) -> None:
        """Take what the program was found to wait for: `LINE`, `PASSWORD` or `KEY`."""
        if self._wait_for.input and found not in (WaitingFor.NONE, WaitingFor.UNKNOWN):
            self._meet("input", found.value)

    async def run(self) -> None:
        """
        Watch the time and the port until a condition is met; the call begins now.

        Whoever runs it cancels it when the wait is over. A port of an environment that does
        not answer any more is not looked for any further.
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
            # A machine with many sockets takes long to list them.
            pause = _PORT_SHARE * (self._loop.time() - begun)
            await asyncio.sleep(max(PORT_INTERVAL, pause))

    def _meet(self, condition: Condition, detail: str) -> None:
        if self._met is None:
            self._met = condition
            self.detail = detail
            self._wake()


_TABLES = tuple(PathUri.parse(f"file:///proc/net/{name}") for name in ("tcp", "tcp6"))

# Bytes of a table that are searched, some 7,000 sockets; those that listen come first.
_MOST_BYTES = 1 << 20

# Seconds for the look before a command is started or polled: the line may be down.
FIRST_LOOK = 5.0


class _ListeningPort:
    """
    Tells whether a TCP port is listened on, through the files of an environment.

    The kernel lists its sockets in `/proc/net/tcp` and `tcp6`, those that listen first. These are
    the sockets in the network namespace of the server. A command with a namespace of its own cannot
    be looked at.
    """

    def __init__(self, port: int, files: FileSystem) -> None:
        """Make one with `open`."""
        self.was_open = False
        """True if something listened on it when this was made, as far as that is known."""
        self._files = files
        self._tables = _TABLES
        # An address and a port, those of the peer, and the state: 0A is LISTEN.
        self._row = re.compile(
            rb"^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:[0-9A-F]{4} 0A " % port, re.MULTILINE
        )

    @classmethod
    async def open(
        cls, port: int, files: FileSystem, sandbox: SandboxContext | None
    ) -> "_ListeningPort":
        """
        Return one that works, as far as the environment answers within 5 s.

        One that does not answer is left to the call that looks: a start or a poll has its own
        limits, and its own words for an environment that is lost.

        Raises:
            InvalidParams: The command has a network of its own, or the environment does not
                show its sockets.
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
        Return True if something listens on the port.

        Raises:
            Refused: The environment does not show its sockets.
            ConnectionLost: It is lost for good.
        """
        for table in self._tables:
            try:
                text = await self._files.read_file(ReadFileParams(table))
            except NotFound:
                if len(self._tables) == 1:
                    raise
                # A kernel without IPv6, most likely.
                self._tables = tuple(other for other in self._tables if other != table)
                continue
            if self._row.search(text, 0, _MOST_BYTES):
                return True
        return False


def _has_own_network(sandbox: SandboxContext | None) -> bool:
    if sandbox is None or isinstance(sandbox.permissions, DisabledProfile):
        return False
    return sandbox.permissions.network == "restricted"
