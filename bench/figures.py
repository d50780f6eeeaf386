"""
What is measured: figures, their targets, and the sizes of the work behind them.

No I/O here; `bench.measures` holds the ways of measuring, `bench.run` the rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    "Measurements",
    "Runner",
    "Sizes",
    "Subject",
    "Target",
]


class Subject(Enum):
    """Who is measured."""

    HOLDFAST = "holdfast"
    CODEX = "codex"
    BARE = "bare"
    """The same work by bare system calls from this process, with no server at all."""


class Acks(Enum):
    """How the client's kernel acknowledges what a server sent."""

    ORDINARY = "ordinary"
    """Delayed, as for any client that sets nothing: with a server that leaves Nagle on, up to 40 ms."""

    QUICK = "quick ACKs"
    """At once: `TCP_QUICKACK`, set again after each receive."""


class Better(Enum):
    """In which direction a figure improves."""

    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True, kw_only=True)
class Target:
    """What Holdfast's figure divided by another subject's must reach."""

    factor: float
    against: Subject = Subject.CODEX


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One row of the table."""

    key: str
    title: str
    unit: str
    better: Better = Better.LOWER
    client: Acks | None = None
    """None where no client is part of what is measured."""

    target: Target | None = None

    def best(self, values: Sequence[float]) -> float:
        """Return the best of the rounds, the one least disturbed by the machine's other work."""
        return min(values) if self.better is Better.LOWER else max(values)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much work one run of each benchmark does."""

    rpc_calls: int
    pipelined_calls: int
    pipelined_window: int
    """Requests in flight: some thousands can wedge the real server (spec 3)."""

    starts: int
    burst: int
    pipe_bytes: int
    terminal_bytes: int
    echoes: int
    idle_processes: int
    launches: int


MIB = 1024 * 1024

FULL = Sizes(
    rpc_calls=4000,
    pipelined_calls=10_000,
    pipelined_window=250,
    starts=100,
    burst=150,
    pipe_bytes=192 * MIB,
    terminal_bytes=32 * MIB,
    echoes=200,
    idle_processes=100,
    launches=3,
)
"""Enough for figures that repeat within a few percent on a quiet machine."""

QUICK = Sizes(
    rpc_calls=200,
    pipelined_calls=400,
    pipelined_window=100,
    starts=5,
    burst=10,
    pipe_bytes=8 * MIB,
    terminal_bytes=MIB,
    echoes=5,
    idle_processes=5,
    launches=1,
)
"""Enough to see that every measurement works; the figures mean little."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What one run of one benchmark for one subject is given."""

    sizes: Sizes
    command: ServerCommand | None
    """How the subject's server is started; None for the bare system calls."""


Runner = Callable[[Context], Awaitable[Mapping[str, float]]]
"""Measures once; returns values by the key of their figure."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Figures that come out of the same run, and how to run each subject."""

    name: str
    figures: tuple[Figure, ...]
    runners: Mapping[Subject, Runner]


@dataclass(kw_only=True)
class Measurements:
    """Everything seen in all rounds."""

    values: dict[tuple[str, Subject], list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """What broke, as sentences."""

    missing: list[str] = field(default_factory=list)
    """What could not be measured on this machine, as sentences."""

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
        """Tell whether the target was reached; None without a target or a ratio."""
        if figure.target is None:
            return None
        ratio = self.ratio(figure, figure.target.against)
        if ratio is None:
            return None
        if figure.better is Better.LOWER:
            return ratio <= figure.target.factor
        return ratio >= figure.target.factor
