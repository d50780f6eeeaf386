"""
The figures, their targets, and the sizes of the work behind them.

No I/O here; `bench.measures` has the measurements, `bench.run` the rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.servers import ServerCommand

__all__ = [
    "FULL",
    "QUICK",
    "Acks",
    "Benchmark",
    "Better",
    "Context",
    "Figure",
    "Limit",
    "Measure",
    "Measurements",
    "Runner",
    "Sizes",
    "Subject",
    "Target",
    "both_clients",
    "for_both",
    "through_both",
]


class Subject(Enum):
    """The measured implementation."""

    HOLDFAST = "holdfast"
    CODEX = "codex"
    BARE = "bare"
    """The same work with Python's own means, without a server or a library."""

    WITHOUT = "without"
    """Holdfast without one of its fast paths."""

    SWE_REX = "swe-rex"
    OPENAI_AGENTS = "openai-agents"


class Acks(Enum):
    """Treatment of acknowledgements by the client's kernel."""

    ORDINARY = "ordinary"
    """Delayed, the default; a server that leaves Nagle's algorithm on waits 40 ms."""

    QUICK = "quick ACKs"
    """At once: `TCP_QUICKACK`, set again after each receive."""


class Better(Enum):
    """Direction in which a figure improves."""

    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True, kw_only=True)
class Target:
    """Ratio that Holdfast's figure must reach against another subject's."""

    factor: float
    against: Subject = Subject.CODEX


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Value that Holdfast's figure itself must reach, in its unit."""

    value: float


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One row of the table."""

    key: str
    title: str
    unit: str
    better: Better = Better.LOWER
    client: Acks | None = None
    """None if no client takes part."""

    others: tuple[Subject, ...] = (Subject.CODEX, Subject.BARE)
    """The subjects to compare with; figures with the same ones share a table."""

    compares: bool = False
    """True for a ratio of two things measured in turn: the best of those would be luck."""

    targets: tuple[Target | Limit, ...] = ()
    """All targets of Holdfast; empty if the figure is only shown."""

    def best(self, values: Sequence[float]) -> float:
        """Return the best of the rounds, the one least disturbed by the machine's other work."""
        if self.compares:
            return statistics.median(values)
        return min(values) if self.better is Better.LOWER else max(values)

    def reaches(self, value: float, wanted: float) -> bool:
        """Return True if a value is as good as the target."""
        return value <= wanted if self.better is Better.LOWER else value >= wanted


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The amount of work of one run of each benchmark."""

    rpc_calls: int
    pipelined_turns: int
    pipelined_width: int
    """Requests in flight: a few thousand can block the real server [dispatch.concurrent]."""

    starts: int
    burst: int
    pipe_bytes: int
    terminal_bytes: int
    echoes: int
    idle_processes: int
    launches: int
    http_requests: int
    metadata_calls: int
    metadata_batches: int
    """Number of batches of `pipelined_width` calls."""

    file_bytes: int
    transfers: int
    """Number of reads and writes of a file with each method."""

    tree_folders: int
    """Directories of 99 files each, so that a tree has a hundred times as many entries."""

    walks: int
    delay_echoes: int
    """Echoes; the real server takes half a second for each."""

    delay_requests: int
    """Walks and reads in flight."""

    sandboxed_starts: int
    """Starts; the real server takes a tenth of a second for each."""

    sandboxed_reads: int
    """Reads for which the real server starts a helper."""

    direct_reads: int
    """Reads for which it does not."""

    runs: int
    run_bytes: int
    """Output, in bytes, of the command that writes much."""

    bursts: int
    """Number of bursts of 61 commands."""

    idle_seconds: int
    writer_bytes: int
    """Output of each of 64 sessions."""
    app_commands: int
    app_burst: int
    """Commands of an app-server at once."""


MIB = 1024 * 1024

FULL = Sizes(
    rpc_calls=4000,
    pipelined_turns=40,
    pipelined_width=250,
    starts=100,
    burst=150,
    pipe_bytes=192 * MIB,
    terminal_bytes=32 * MIB,
    echoes=200,
    idle_processes=100,
    launches=3,
    http_requests=500,
    metadata_calls=2000,
    metadata_batches=20,
    file_bytes=64 * MIB,
    transfers=3,
    tree_folders=200,
    walks=5,
    delay_echoes=25,
    delay_requests=100,
    sandboxed_starts=50,
    sandboxed_reads=25,
    direct_reads=2000,
    runs=200,
    run_bytes=100_000_000,
    bursts=7,
    idle_seconds=5,
    writer_bytes=6_000_000,
    app_commands=200,
    app_burst=50,
)
"""Enough for figures that repeat within a few percent on a quiet machine."""

QUICK = Sizes(
    rpc_calls=200,
    pipelined_turns=4,
    pipelined_width=100,
    starts=5,
    burst=10,
    pipe_bytes=8 * MIB,
    terminal_bytes=MIB,
    echoes=5,
    idle_processes=5,
    launches=1,
    http_requests=50,
    metadata_calls=100,
    metadata_batches=2,
    file_bytes=4 * MIB,
    transfers=1,
    tree_folders=5,
    walks=2,
    delay_echoes=3,
    delay_requests=10,
    sandboxed_starts=5,
    sandboxed_reads=5,
    direct_reads=100,
    runs=5,
    run_bytes=8_000_000,
    bursts=1,
    idle_seconds=1,
    writer_bytes=600_000,
    app_commands=5,
    app_burst=5,
)
"""Enough to see that every measurement works; the figures mean little."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """The input of one run of one benchmark for one subject."""

    sizes: Sizes
    command: ServerCommand | None
    """The command of the subject's server; None if it has none."""

    peers: str | None
    """The interpreter that has the packages of Holdfast's peers, if there is one."""


Runner = Callable[[Context], Awaitable[Mapping[str, float]]]
"""Measures once; returns values by the key of their figure."""


Measure = Callable[[Context, Acks], Awaitable[Mapping[str, float]]]
"""Measures once through a client of that kind; returns values by the key of their figure."""

_QUICK_SUFFIX = "_quick"


def both_clients(*figures: Figure) -> tuple[Figure, ...]:
    """
    Return each figure for an ordinary client, and a second one with quick ACKs.

    The targets are for the ordinary client, since that is what users have.
    """
    return tuple(
        variant
        for figure in figures
        for variant in (
            replace(figure, client=Acks.ORDINARY),
            replace(figure, client=Acks.QUICK, key=figure.key + _QUICK_SUFFIX, targets=()),
        )
    )


def through_both(measure: Measure) -> Runner:
    """Return a runner that measures with both clients, for figures of `both_clients`."""

    async def run(context: Context) -> Mapping[str, float]:
        ordinary = await measure(context, Acks.ORDINARY)
        quick = await measure(context, Acks.QUICK)
        return {**ordinary, **{key + _QUICK_SUFFIX: value for key, value in quick.items()}}

    return run


def for_both(values: Mapping[str, float]) -> Mapping[str, float]:
    """Return values of the bare system calls, which have no client, for both figures."""
    return {**values, **{key + _QUICK_SUFFIX: value for key, value in values.items()}}


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Figures of one run, and how to run each subject."""

    name: str
    figures: tuple[Figure, ...]
    runners: Mapping[Subject, Runner]


@dataclass(kw_only=True)
class Measurements:
    """Everything seen in all rounds."""

    values: dict[tuple[str, Subject], list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """Failures, as sentences."""

    missing: list[str] = field(default_factory=list)
    """Figures that could not be measured on this machine, as sentences."""

    unavailable: set[tuple[str, Subject]] = field(default_factory=set)
    """Keys of figures that are not available, each with the subject."""

    def add(self, key: str, subject: Subject, value: float) -> None:
        self.values.setdefault((key, subject), []).append(value)

    def best(self, figure: Figure, subject: Subject) -> float | None:
        """Return the best round, or None if the subject was never measured."""
        values = self.values.get((figure.key, subject))
        return figure.best(values) if values else None

    def median(self, figure: Figure, subject: Subject) -> float | None:
        """Return the median round, or None if the subject was never measured."""
        values = self.values.get((figure.key, subject))
        return statistics.median(values) if values else None

    def ratio(self, figure: Figure, against: Subject) -> float | None:
        """Return Holdfast's best divided by the other's best, or None without both."""
        ours = self.best(figure, Subject.HOLDFAST)
        theirs = self.best(figure, against)
        return ours / theirs if ours is not None and theirs else None

    def met(self, figure: Figure) -> bool | None:
        """Return True if all targets were reached; None without targets, or without values."""
        if not figure.targets:
            return None
        reached = [self._reached(figure, target) for target in figure.targets]
        if False in reached:
            return False
        return None if None in reached else True

    def _reached(self, figure: Figure, target: Target | Limit) -> bool | None:
        if isinstance(target, Limit):
            value, wanted = self.best(figure, Subject.HOLDFAST), target.value
        else:
            value, wanted = self.ratio(figure, target.against), target.factor
        return None if value is None else figure.reaches(value, wanted)
