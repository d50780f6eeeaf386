"""
The tool `exec_command`: its cost in addition to the command that it runs, and its memory.

Each task is a fresh process that measures itself from inside. On this machine Holdfast is compared
with `exec_command` of openai-agents. On a server, Holdfast's tools are the client of both servers,
so that the rows show the cost of the servers and the connections to them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial

from bench.errors import NotAvailable
from bench.figures import Benchmark, Context, Figure, Limit, Subject, Target
from bench.measures.run import run_program
from bench.processes import peak_memory, reset_peaks
from bench.servers import running

__all__ = ["UNIFIED_EXEC"]

_MIB = 1024 * 1024
_HOLDFAST = "bench.subjects.holdfast_tools"
_AGENTS = "bench.subjects.openai_agents_tools"
_KINDS = ("text", "random", "multibyte")


def _tasks(context: Context) -> dict[str, int]:
    """Return the amount of work of each task."""
    sizes = context.sizes
    return {
        "true": sizes.runs,
        "burst": sizes.bursts,
        "idle": sizes.idle_seconds,
        "wrote": sizes.writer_bytes,
        **dict.fromkeys(_KINDS, sizes.run_bytes),
    }


async def _here(python: str, module: str, context: Context) -> Mapping[str, float]:
    values: dict[str, float] = {}
    for task, amount in _tasks(context).items():
        found = await run_program(python, module, task, str(amount))
        values |= {f"exec_{name}": value for name, value in found.items()}
    return values


async def _agents(context: Context) -> Mapping[str, float]:
    if context.peers is None:
        raise NotAvailable("openai-agents: its packages are not installed, see `--peers`")
    return await _here(context.peers, _AGENTS, context)


async def _on_server(context: Context, tasks: tuple[str, ...]) -> Mapping[str, float]:
    values: dict[str, float] = {}
    assert context.command is not None, "it has a server"
    amounts = _tasks(context)
    with running(context.command) as server:
        for task in tasks:
            reset_peaks(server.pid)
            before = peak_memory(server.pid)
            argv = (_HOLDFAST, task, str(amounts[task]), "--url", server.url)
            found = await run_program(sys.executable, *argv)
            values |= {f"exec_server_{name}": value for name, value in found.items()}
            if task in _KINDS:
                grown = (peak_memory(server.pid) - before) / _MIB
                values[f"exec_server_{task}_server_growth"] = grown
    return values


async def _holdfast(context: Context) -> Mapping[str, float]:
    here = await _here(sys.executable, _HOLDFAST, context)
    return {**here, **await _on_server(context, ("true", "burst", "idle", "wrote", *_KINDS))}


_BESIDE = (Subject.OPENAI_AGENTS,)
_AHEAD = Target(factor=1.0, against=Subject.OPENAI_AGENTS)
_SERVERS = (Subject.CODEX,)


def _flood(kind: str, shown: str) -> tuple[Figure, ...]:
    here = partial(Figure, others=_BESIDE)
    there = partial(Figure, others=_SERVERS)
    key, remote = f"exec_{kind}", f"exec_server_{kind}"
    return (
        here(
            key=f"{key}_on_core",
            title=f"100 MB of {shown}: longest time the loop was held, on core",
            unit="ms",
            targets=(Limit(value=20.0), _AHEAD),
        ),
        here(key=f"{key}_held", title="the same with waiting for a core", unit="ms"),
        here(
            key=f"{key}_growth",
            title=f"100 MB of {shown}: growth of memory",
            unit="MiB",
            targets=(Limit(value=24.0), _AHEAD),
        ),
        here(key=f"{key}_time", title="the time it took", unit="ms", targets=(_AHEAD,)),
        there(
            key=f"{remote}_on_core",
            title=f"server: 100 MB of {shown}: longest time the loop was held, on core",
            unit="ms",
            targets=(Limit(value=20.0),),
        ),
        there(
            key=f"{remote}_growth",
            title=f"server: 100 MB of {shown}: growth of the client's memory",
            unit="MiB",
            targets=(Limit(value=40.0),),
        ),
        there(
            key=f"{remote}_server_growth",
            title=f"server: 100 MB of {shown}: growth of the server's memory",
            unit="MiB",
        ),
        there(key=f"{remote}_time", title="server: the time it took", unit="ms"),
    )


UNIFIED_EXEC = Benchmark(
    name="unified-exec",
    figures=(
        Figure(
            key="exec_true",
            title="`exec_command` of `true`, in turn",
            unit="ms",
            others=_BESIDE,
            targets=(_AHEAD,),
        ),
        Figure(
            key="exec_true_ratio",
            title="the same divided by `env.run` of its argv",
            unit="×",
            others=_BESIDE,
            targets=(Limit(value=1.1),),
        ),
        Figure(
            key="exec_burst",
            title="61 `exec_command`s of `true` at once",
            unit="ms",
            others=_BESIDE,
            targets=(_AHEAD,),
        ),
        Figure(
            key="exec_burst_ratio",
            title="the same divided by 61 `env.run`",
            unit="×",
            others=_BESIDE,
            targets=(Limit(value=1.1),),
        ),
        Figure(
            key="exec_idle_growth",
            title="60 idle sessions: growth of memory",
            unit="MiB",
            others=_BESIDE,
            targets=(Limit(value=2.0), _AHEAD),
        ),
        Figure(
            key="exec_idle_cpu",
            title="60 idle sessions: share of a core",
            unit="%",
            others=_BESIDE,
            targets=(Limit(value=0.1),),
        ),
        Figure(
            key="exec_wrote",
            title="64 sessions that wrote 6 MB: memory of each",
            unit="MiB",
            others=_BESIDE,
            targets=(Limit(value=2.5), _AHEAD),
        ),
        Figure(
            key="exec_server_true",
            title="server: `exec_command` of `true`, in turn",
            unit="ms",
            others=_SERVERS,
            targets=(Target(factor=0.3),),
        ),
        Figure(
            key="exec_server_true_ratio",
            title="server: the same divided by `env.run` of its argv",
            unit="×",
            others=_SERVERS,
            targets=(Limit(value=1.1),),
        ),
        Figure(
            key="exec_server_burst",
            title="server: 61 `exec_command`s of `true` at once",
            unit="ms",
            others=_SERVERS,
        ),
        Figure(
            key="exec_server_burst_ratio",
            title="server: the same divided by 61 `env.run`",
            unit="×",
            others=_SERVERS,
            targets=(Limit(value=1.1),),
        ),
        Figure(
            key="exec_server_idle_growth",
            title="server: 60 idle sessions: growth of the client's memory",
            unit="MiB",
            others=_SERVERS,
            targets=(Limit(value=2.0),),
        ),
        Figure(
            key="exec_server_idle_cpu",
            title="server: 60 idle sessions: share of a core of the client",
            unit="%",
            others=_SERVERS,
            targets=(Limit(value=0.1),),
        ),
        Figure(
            key="exec_server_wrote",
            title="server: 64 sessions that wrote 6 MB: the client's memory of each",
            unit="MiB",
            others=_SERVERS,
            targets=(Limit(value=2.5),),
        ),
        *_flood("text", "text"),
        *_flood("random", "random bytes"),
        *_flood("multibyte", "multi-byte text"),
    ),
    runners={
        Subject.HOLDFAST: _holdfast,
        Subject.CODEX: partial(_on_server, tasks=("true", "burst")),
        Subject.OPENAI_AGENTS: _agents,
    },
)
