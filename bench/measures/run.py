"""
Commands run on this machine from Python, through Holdfast and through its peers.

No server takes part. Each subject is a program of `bench.subjects`, started for each task by the
interpreter that has its packages, and measures itself from inside.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from bench.errors import BenchError, NotAvailable
from bench.figures import Benchmark, Context, Figure, Limit, Runner, Subject, Target

__all__ = ["RUN", "run_program"]

_ROOT = Path(__file__).parents[2]

_MODULES = {
    Subject.HOLDFAST: "holdfast",
    Subject.BARE: "bare",
    Subject.SWE_REX: "swe_rex",
    Subject.OPENAI_AGENTS: "openai_agents",
}
_PEERS = (Subject.SWE_REX, Subject.OPENAI_AGENTS)
_OTHERS = (Subject.BARE, *_PEERS)

_decode = msgspec.json.Decoder(dict[str, float]).decode


async def _measure(subject: Subject, context: Context) -> Mapping[str, float]:
    sizes = context.sizes
    values = dict(await _program(subject, context, "true", sizes.runs))
    values |= await _program(subject, context, "output", sizes.run_bytes)
    if subject not in _PEERS:  # they have no uvloop
        on_uvloop = await _program(subject, context, "true", sizes.runs, "--uvloop")
        values["run_uvloop"] = on_uvloop["run"]
    return values


async def _program(
    subject: Subject, context: Context, task: str, amount: int, *options: str
) -> Mapping[str, float]:
    """
    Run one task of a subject's program; return the values it prints.

    Raises:
        NotAvailable: There is no interpreter with its packages.
        BenchError: The program failed.
    """
    if subject not in _PEERS:
        python = sys.executable
    elif context.peers is not None:
        python = context.peers
    else:
        raise NotAvailable(f"{subject.value}: its packages are not installed, see `--peers`")
    return await run_program(
        python, f"bench.subjects.{_MODULES[subject]}", task, str(amount), *options
    )


async def run_program(python: str, module: str, *arguments: str) -> Mapping[str, float]:
    """
    Run a program of `bench.subjects`; return the values it prints.

    Raises:
        BenchError: The program failed.
    """
    child = await asyncio.create_subprocess_exec(
        python,
        "-m",
        module,
        *arguments,
        cwd=_ROOT,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        stdout, stderr = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode != 0:
        lines = stderr.decode(errors="replace").strip().splitlines() or ["nothing on stderr"]
        name = f"{module} {arguments[0]}"
        raise BenchError(f"{name} ended with {child.returncode}: {lines[-1]}")
    return _decode(stdout.strip().rpartition(b"\n")[2])


def _runner(subject: Subject) -> Runner:
    return partial(_measure, subject)


RUN = Benchmark(
    name="run",
    figures=(
        Figure(
            key="run",
            title="run `true`, in turn, on asyncio's own loop",
            unit="ms",
            others=_OTHERS,
            targets=(Target(factor=2.0, against=Subject.BARE),),
        ),
        Figure(
            key="run_uvloop",
            title="run `true`, in turn, on uvloop",
            unit="ms",
            others=_OTHERS,
        ),
        Figure(
            key="run_growth",
            title="run a command that writes 100 MB, cap 1 MiB: growth of memory",
            unit="MiB",
            others=_OTHERS,
            targets=(Limit(value=40.0),),
        ),
        Figure(
            key="run_held",
            title="the longest time that run held the loop",
            unit="ms",
            others=_OTHERS,
            targets=(Limit(value=20.0),),
        ),
        Figure(
            key="run_on_core",
            title="the same without what its thread waited for a core",
            unit="ms",
            others=_OTHERS,
        ),
        Figure(
            key="run_output",
            title="the time that run took",
            unit="ms",
            others=_OTHERS,
        ),
    ),
    runners={subject: _runner(subject) for subject in _MODULES},
)
