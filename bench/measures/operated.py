"""
The cost of operating a server for others: a token, the log at `info`, and the audit log.

A few percent are less than what a machine varies from one run to the next. So both servers
run at once, and the same client asks them in turn, in short slices.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from bench import wire
from bench.calls import InTurn
from bench.client import RawClient
from bench.figures import Acks, Benchmark, Context, Figure, Limit, Subject
from bench.measures.starts import ARGV, AtOnce, Starts
from bench.servers import ServerCommand, talking

__all__ = ["OPERATED"]

_TOKEN = "a token of the benchmark"

_SLICES = 15
"""Turns of each server; the median of the slices counts."""

Slice = Callable[[RawClient, str], Awaitable[float]]
"""Measures once, with ids that begin with a text; returns seconds."""


def _write_token(path: Path) -> None:
    path.write_text(_TOKEN)
    path.chmod(0o600)


@asynccontextmanager
async def _both(command: ServerCommand | None) -> AsyncIterator[tuple[RawClient, RawClient]]:
    """Start a server with nothing and one with everything, and connect to each."""
    assert command is not None, "only Holdfast has these options"
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        token = Path(folder, "token")
        _write_token(token)
        options = ("--ws-auth", "capability-token", "--ws-token-file", str(token))
        options += ("--log-level", "info", "--audit-log", str(Path(folder, "audit")))
        full = replace(command, argv=(*command.argv, *options), token=_TOKEN)
        async with talking(command, Acks.QUICK) as (_, one), talking(full, Acks.QUICK) as (_, two):
            yield one, two


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


async def _ratio(plain: RawClient, full: RawClient, name: str, measure: Slice) -> float:
    """Return how much longer the server with everything takes."""
    seconds: dict[RawClient, list[float]] = {plain: [], full: []}
    for number in range(_SLICES + 1):
        # Each goes first in turn: whoever is second finds the machine warmed up.
        for client in (plain, full) if number % 2 else (full, plain):
            taken = await measure(client, f"{name}{number}")
            if number:  # the first slice warms both up
                seconds[client].append(taken)
    return statistics.median(seconds[full]) / statistics.median(seconds[plain])


async def _operated(context: Context) -> Mapping[str, float]:
    sizes = context.sizes
    async with _both(context.command) as (plain, full):
        return {
            "operated_rpc": await _ratio(plain, full, "r", _rounds(sizes.rpc_calls // 20)),
            "operated_starts": await _ratio(plain, full, "s", _starts(sizes.starts // 5)),
            "operated_burst": await _ratio(plain, full, "b", _burst(sizes.burst)),
        }


def _figure(key: str, what: str) -> Figure:
    return Figure(
        key=key,
        title=f"with token, log and audit log ÷ without: {what}",
        unit="×",
        others=(),
        targets=(Limit(value=1.05),),
    )


OPERATED = Benchmark(
    name="operated",
    figures=(
        _figure("operated_rpc", "rpc round trip"),
        _figure("operated_starts", "start → closed of `/bin/true`, pipes"),
        _figure("operated_burst", "150 starts at once"),
    ),
    runners={Subject.HOLDFAST: _operated},
)
