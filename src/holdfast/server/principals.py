"""
Usage and limits of the principals of a server.

A principal is all clients whose tokens have the same name. Their connections and sessions are
counted together, but separately from those of other principals.
"""

from collections.abc import Iterator
from typing import Final, Literal
from weakref import WeakSet, WeakValueDictionary

import msgspec

from holdfast.base.errors import Overloaded
from holdfast.engine.process.logged import LoggedProcess
from holdfast.engine.process.observers import ProcessObserver, ProcessStart
from holdfast.events import Verdict

__all__ = ["Counted", "PrincipalLimits", "Principals", "Totals", "Usage"]

Counted = Literal["connections", "sessions", "processes", "file_handles", "requests"]

# For error messages.
_WORDS: Final[dict[Counted, str]] = {
    "connections": "connections",
    "sessions": "sessions",
    "processes": "processes",
    "file_handles": "open files",
    "requests": "requests in flight",
}


class PrincipalLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits per principal at any time; None for no limit."""

    connections: int | None = None
    sessions: int | None = None
    """Sessions; those left by their clients make room for new ones."""
    processes: int | None = None
    """Processes that are running or being started."""
    file_handles: int | None = None
    requests: int | None = None
    """Requests that wait for their response; those answered at once do not count."""


class Totals:
    """Counters for all principals since the start of the server."""

    __slots__ = ("connections", "overloads", "processes", "refusals", "requests")

    def __init__(self) -> None:
        self.connections = 0
        self.requests = 0
        self.processes = 0
        self.refusals = 0
        """Connection attempts whose token was missing or wrong."""
        self.overloads = 0
        """Refusals of any kind because a principal was at its limit."""


class Usage(ProcessObserver):
    """Current usage of a principal; observes the processes of all its sessions."""

    def __init__(self, principal: str, limits: PrincipalLimits, totals: Totals) -> None:
        self.principal = principal
        self.totals = totals
        self.connections = 0
        self.sessions = 0
        self.file_handles = 0
        self.requests = 0
        self.limits = limits
        self._running = 0
        # Weak, since observers are not notified of a start that is dropped before it runs.
        self._starting: WeakSet[ProcessStart] = WeakSet()

    @property
    def processes(self) -> int:
        """Number of processes that are running or being started."""
        return self._running + len(self._starting)

    def is_full(self, what: Counted) -> bool:
        """Return True if the principal is at a limit."""
        # Limits, counts and options have the same names.
        limit: int | None = getattr(self.limits, what)
        return limit is not None and getattr(self, what) >= limit

    def check(self, what: Counted) -> None:
        """
        Raise if the principal is at a limit; call this before counting one more.

        Raises:
            Overloaded: The limit is reached.
        """
        if not self.is_full(what):
            return
        self.totals.overloads += 1
        option = f"--max-{what.replace('_', '-')}"
        raise Overloaded(
            f"principal `{self.principal}` has {getattr(self.limits, what)} {_WORDS[what]}"
            f" already, which is all that {option} allows"
        )

    def preparing(self, start: ProcessStart) -> None:
        self._starting.add(start)

    def started(self, start: ProcessStart, process: LoggedProcess) -> None:
        self._starting.discard(start)
        self._running += 1
        self.totals.processes += 1

    def failed(self, start: ProcessStart, error: BaseException) -> None:
        self._starting.discard(start)

    def exited(self, process: LoggedProcess, verdict: Verdict) -> None:
        """Continue to count the process until its close: a descendant may hold its output open."""

    def closed(self, process: LoggedProcess) -> None:
        self._running -= 1


class Principals:
    """The usage of all principals with a connection or session."""

    def __init__(self, limits: PrincipalLimits | None = None) -> None:
        self.totals = Totals()
        self._limits = PrincipalLimits() if limits is None else limits
        # Weak: connections and sessions hold the usage of their principal.
        self._usages: WeakValueDictionary[str, Usage] = WeakValueDictionary()

    def __getitem__(self, principal: str) -> Usage:
        usage = self._usages.get(principal)
        if usage is None:
            usage = self._usages[principal] = Usage(principal, self._limits, self.totals)
        return usage

    def change_limits(self, limits: PrincipalLimits) -> None:
        """Apply new limits; existing usage above them is not reduced."""
        self._limits = limits
        for usage in self._usages.values():
            usage.limits = limits

    def __iter__(self) -> Iterator[Usage]:
        return iter(sorted(self._usages.values(), key=lambda usage: usage.principal))
