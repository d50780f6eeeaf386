"""
`holdfast mcp` next to a server on the same SDK with one empty tool.

The client writes and reads lines, so that only the server is measured.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.errors import BenchError
from bench.figures import Benchmark, Context, Figure, Limit, Subject, Target
from bench.measures.run import run_program
from bench.pipes import PipeClient
from bench.processes import memory, tree

__all__ = ["MCP"]

_MIB = 1024 * 1024
_WARM_UP = 5
_EMPTY = (sys.executable, "-m", "bench.subjects.mcp_empty")
_FULL = ("--sandbox", "danger-full-access", "--ask-for-approval", "never")

_HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


class _Client(PipeClient):
    def request(self, method: str, params: object) -> bytes:
        """Send a request and return the line of its answer."""
        self.send(method, params, jsonrpc="2.0")
        answer = self.stdout.readline()
        if b'"result"' not in answer:
            raise BenchError(f"an unexpected answer to {method}: {answer[:200]!r}")
        return answer

    def call(self, name: str, arguments: Mapping[str, object]) -> float:
        """Call a tool and return the seconds it took."""
        begun = time.perf_counter()
        self.request("tools/call", {"name": name, "arguments": arguments})
        return time.perf_counter() - begun


@contextmanager
def _started(argv: Sequence[str]) -> Iterator[_Client]:
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield _Client(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def _first_answer(argv: Sequence[str]) -> float:
    begun = time.perf_counter()
    with _started(argv) as client:
        client.request("initialize", _HELLO)
        return time.perf_counter() - begun


def _measured(argv: Sequence[str], tool: str, context: Context) -> dict[str, float]:
    """Return the figures that both servers share."""
    first = min(_first_answer(argv) for _ in range(context.sizes.launches))
    arguments = {"cmd": "true", "login": False, "shell": "bash"} if tool != "empty" else {}
    with _started(argv) as client:
        client.request("initialize", _HELLO)
        client.request("tools/list", {})
        for _ in range(_WARM_UP):
            client.call(tool, arguments)
        spent = [client.call(tool, arguments) for _ in range(context.sizes.runs)]
        held = memory(ref.pid for ref in tree(client.pid)).alone
    return {
        "mcp_first": first * 1e3,
        "mcp_true": statistics.median(spent) * 1e3,
        "mcp_memory": held / _MIB,
    }


async def _holdfast(context: Context) -> Mapping[str, float]:
    argv = (str(Path(sys.prefix) / "bin" / "holdfast"), "mcp", *_FULL)
    values = await asyncio.to_thread(_measured, argv, "exec_command", context)
    module, size = "bench.subjects.holdfast_mcp", str(context.sizes.run_bytes)
    found = await run_program(sys.executable, module, "text", size)
    return {**values, "mcp_on_core": found["text_on_core"]}


async def _bare(context: Context) -> Mapping[str, float]:
    values = await asyncio.to_thread(_measured, _EMPTY, "empty", context)
    # The lower bounds of a call of `true`: the tool in process, and an empty call.
    module, count = "bench.subjects.holdfast_tools", str(context.sizes.runs)
    found = await run_program(sys.executable, module, "true", count)
    return {**values, "mcp_true": values["mcp_true"] + found["true"]}


def _figure(key: str, title: str, unit: str, factor: float) -> Figure:
    return Figure(
        key=key,
        title=title,
        unit=unit,
        others=(Subject.BARE,),
        targets=(Target(factor=factor, against=Subject.BARE),),
    )


MCP = Benchmark(
    name="mcp",
    figures=(
        _figure("mcp_first", "`holdfast mcp`: from its start to its first answer", "ms", 1.25),
        _figure("mcp_true", "a call of `true`; beside it in process, and an empty call", "ms", 1.5),
        _figure("mcp_memory", "memory of all its processes, after calls", "MiB", 1.3),
        Figure(
            key="mcp_on_core",
            title="100 MB behind one call: longest time the loop was held, on core",
            unit="ms",
            others=(Subject.BARE,),
            targets=(Limit(value=20.0),),
        ),
    ),
    runners={Subject.HOLDFAST: _holdfast, Subject.BARE: _bare},
)
