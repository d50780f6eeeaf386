"""
The cost of operating a server for others: a token, the log at `info`, and the audit log.

A few percent are less than the variation of a machine from run to run. So both servers run at once,
and the same client uses them in turn, in short slices.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench import wire
from bench.calls import InTurn
from bench.client import RawClient
from bench.figures import Acks, Benchmark, Context, Figure, Limit, Subject
from bench.measures.starts import ARGV, AtOnce, Starts
from bench.processes import cpu_seconds, on_one_core
from bench.servers import RunningServer, ServerCommand, talking

__all__ = ["OPERATED"]

_TOKEN = "a-token-of-the-benchmark"

_SLICES = 30
"""Turns of each server; the least disturbed one counts."""

Slice = Callable[[RawClient, str], Awaitable[float]]
"""Measures once, with ids that begin with a string; returns seconds."""


@dataclass(frozen=True, eq=False)
class _Talk:
    """A server, and a connection to it."""

    server: RunningServer
    client: RawClient

    def cpu_seconds(self) -> float:
        """Return the processor time of the server so far, without its children."""
        return cpu_seconds(self.server.processes(command=ARGV))


def _write_token(path: Path) -> None:
    path.write_text(_TOKEN)
    path.chmod(0o600)


@asynccontextmanager
async def _both(command: ServerCommand | None) -> AsyncIterator[tuple[_Talk, _Talk]]:
    """Start a server with no option and one with all, and connect to each."""
    assert command is not None, "only Holdfast has these options"
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        token = Path(folder, "token")
        _write_token(token)
        auth = ("--token-file", str(token))
        logs = ("--log-level", "info", "--audit-log", str(Path(folder, "audit")))
        full = replace(command, argv=(*command.argv, *auth, *logs), token=_TOKEN)
        async with talking(command, Acks.QUICK) as one, talking(full, Acks.QUICK) as two:
            yield _Talk(*one), _Talk(*two)


def _rounds(count: int) -> Slice:
    async def measure(client: RawClient, name: str) -> float:
        requests = [wire.request(number, "environment/status") for number in range(count)]
        return await InTurn(client, requests).run()

    return measure


def _starts(count: int) -> Slice:
    async def measure(client: RawClient, name: str) -> float:
        requests = [wire.start(n, f"{name}-{n}", ARGV) for n in range(count)]
        return await Starts(client, requests).run()

    return measure


def _burst(count: int) -> Slice:
    async def measure(client: RawClient, name: str) -> float:
        begun = time.perf_counter()
        await AtOnce(client, f"{name}-", count).run()
        return time.perf_counter() - begun

    return measure


async def _ratios(plain: _Talk, full: _Talk, name: str, measure: Slice) -> tuple[float, float]:
    """Return the ratios of time and of processor time of the server with all options."""
    seconds: dict[_Talk, list[float]] = {plain: [], full: []}
    computed = {plain: 0.0, full: 0.0}
    for number in range(_SLICES + 1):
        # They take turns at going first: the second finds the machine warmed up.
        for talk in (plain, full) if number % 2 else (full, plain):
            before = talk.cpu_seconds()
            taken = await measure(talk.client, f"{name}{number}")
            if number:  # the first slice warms both up
                seconds[talk].append(taken)
                computed[talk] += talk.cpu_seconds() - before
    return min(seconds[full]) / min(seconds[plain]), computed[full] / computed[plain]


async def _operated(context: Context) -> Mapping[str, float]:
    sizes = context.sizes
    async with _both(context.command) as (plain, full):
        starts, computed = await _ratios(plain, full, "s", _starts(sizes.starts // 10 or 1))
        burst, _ = await _ratios(plain, full, "b", _burst(sizes.burst))
        # As for the plain round trip: across cores it mostly shows the time in which an idle core
        # wakes up, which differs between the two by chance. Last: the servers stay on that core.
        with on_one_core([*plain.server.processes(), *full.server.processes()]):
            rpc, _ = await _ratios(plain, full, "r", _rounds(sizes.rpc_calls // 20))
    return {
        "operated_rpc": rpc,
        "operated_starts": starts,
        "operated_cpu": computed,
        "operated_burst": burst,
    }


def _figure(key: str, what: str, *, limit: float | None = 1.05) -> Figure:
    return Figure(
        key=key,
        title=f"with token, log and audit log ÷ without: {what}",
        unit="×",
        others=(),
        compares=True,
        targets=() if limit is None else (Limit(value=limit),),
    )


OPERATED = Benchmark(
    name="operated",
    figures=(
        _figure("operated_rpc", "rpc round trip, client and server on one core"),
        _figure("operated_starts", "start → closed of `/bin/true`, pipes"),
        _figure("operated_cpu", "processor time of the server for that", limit=None),
        _figure("operated_burst", "150 starts at once"),
    ),
    runners={Subject.HOLDFAST: _operated},
)
