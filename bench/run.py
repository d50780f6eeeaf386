"""The rounds: every benchmark for every subject, one after the other, several times."""

from __future__ import annotations

import asyncio
import gc
import subprocess
from collections.abc import Callable, Mapping, Sequence

from bench.errors import BenchError, NotAvailable
from bench.figures import Benchmark, Context, Measurements, Sizes, Subject
from bench.servers import ServerCommand

__all__ = ["run_rounds"]

_LIMIT_SECONDS = 120.0
"""Limit of one run of one benchmark for one subject; the longest takes about ten."""


async def run_rounds(
    benchmarks: Sequence[Benchmark],
    commands: Mapping[Subject, ServerCommand],
    *,
    peers: str | None,
    rounds: int,
    sizes: Sizes,
    progress: Callable[[str], None],
) -> Measurements:
    """
    Measure all subjects in turn, so that disturbances of the machine affect each.

    Within a benchmark the subjects follow each other directly, and each round begins with another
    one. A subject that fails is reported and tried again in the next round.

    Args:
        commands: The servers there are; only Holdfast and Codex have one.
        peers: The interpreter that has the packages of Holdfast's peers.
        progress: Called with a line about each measurement.
    """
    seen = Measurements()
    for number in range(rounds):
        for benchmark in benchmarks:
            subjects = [
                subject
                for subject in benchmark.runners
                if subject is not Subject.CODEX or subject in commands
            ]
            turn = number % max(1, len(subjects))
            for subject in subjects[turn:] + subjects[:turn]:
                where = f"round {number + 1}/{rounds}, {benchmark.name}, {subject.value}"
                context = Context(sizes=sizes, command=commands.get(subject), peers=peers)
                await _run(benchmark, subject, context, seen, where=where, progress=progress)
    return seen


async def _run(
    benchmark: Benchmark,
    subject: Subject,
    context: Context,
    seen: Measurements,
    *,
    where: str,
    progress: Callable[[str], None],
) -> None:
    # No subject pays for the garbage of the previous one.
    gc.collect()
    gc.disable()
    try:
        async with asyncio.timeout(_LIMIT_SECONDS):
            values = await benchmark.runners[subject](context)
    except NotAvailable as reason:
        if str(reason) not in seen.missing:
            seen.missing.append(str(reason))
        seen.unavailable.update((figure.key, subject) for figure in benchmark.figures)
        progress(f"{where}: not available, {reason}")
        return
    except TimeoutError:
        seen.failures.append(f"{where}: took more than {_LIMIT_SECONDS:.0f} s")
        progress(seen.failures[-1])
        return
    except (BenchError, OSError, subprocess.SubprocessError) as error:
        seen.failures.append(f"{where}: {error}")
        progress(seen.failures[-1])
        return
    finally:
        gc.enable()
    for key, value in values.items():
        seen.add(key, subject, value)
    progress(f"{where}: " + ", ".join(f"{key} {value:.4g}" for key, value in values.items()))
