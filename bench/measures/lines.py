"""
The cost of storing and selecting output, compared with counting its lines.

No process takes part: 100 MB pass through in chunks of 64 KiB. *Bare* is `bytes.count` of the
newlines, the least that an exact count costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from bench.figures import Benchmark, Context, Figure, Subject
from holdfast.agent.unified_exec.output.kept_output import KeptOutput
from holdfast.agent.unified_exec.output.selection import Selection, Selector

__all__ = ["LINES"]

_CHUNK = 64 << 10

_TEXTS = {
    "text": b"2026-11-16 12:00:00 INFO worker-7: request took 12 ms, 200 OK\n",
    "short": b"1\n",
}

_OTHERS = (Subject.BARE,)


def _chunk(line: bytes) -> bytes:
    return (line * (_CHUNK // len(line) + 1))[:_CHUNK]


def _log() -> Callable[[int, bytes], object]:
    return KeptOutput().append


def _select(pattern: str) -> Callable[[int, bytes], object]:
    feed = Selector(Selection(grep=pattern, tail=40)).feed
    return lambda _, data: feed(data)


def _count() -> Callable[[int, bytes], object]:
    return lambda _, data: data.count(b"\n")


_CONSUMERS: Mapping[str, Callable[[], Callable[[int, bytes], object]]] = {
    "log": _log,
    "grep_none": partial(_select, "ERROR"),
    "grep_all": partial(_select, "[0-9]"),
}


async def _measure(subject: Subject, context: Context) -> Mapping[str, float]:
    chunks = max(1, context.sizes.run_bytes // _CHUNK)
    values: dict[str, float] = {}
    for kind, line in _TEXTS.items():
        data = _chunk(line)
        for key, consumer in _CONSUMERS.items():
            take = (_count if subject is Subject.BARE else consumer)()
            longest = 0.0
            begun = last = time.perf_counter()
            for seq in range(1, chunks + 1):
                take(seq, data)
                now = time.perf_counter()
                longest = max(longest, now - last)
                last = now
            values[f"lines_{key}_{kind}"] = (last - begun) * 1e3
            values[f"lines_{key}_{kind}_chunk"] = longest * 1e3
    return values


def _figures() -> tuple[Figure, ...]:
    whats = {"log": "kept in a log", "grep_none": "no line matches", "grep_all": "all lines match"}
    kinds = {"text": "lines of 62 bytes", "short": "lines of 2 bytes"}
    return tuple(
        Figure(key=f"lines_{key}_{kind}{suffix}", title=title, unit="ms", others=_OTHERS)
        for key, what in whats.items()
        for kind, lines in kinds.items()
        for suffix, title in (
            ("", f"100 MB in {lines}, {what}"),
            ("_chunk", f"the longest chunk of 64 KiB in {lines}, {what}"),
        )
    )


LINES = Benchmark(
    name="lines",
    figures=_figures(),
    runners={subject: partial(_measure, subject) for subject in (Subject.HOLDFAST, Subject.BARE)},
)
