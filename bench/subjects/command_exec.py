"""
`holdfast.front.app_server.command_exec` next to `Environment.run`, on the local environment.

`python -m bench.subjects.command_exec 200` runs 200 echoes of each kind in turn, so that both see
the same state of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import holdfast
from holdfast.front.app_server.command_exec import CommandExec

_WARM_UP = 10
_ECHO = ("echo", "a line of thirty-two characters")
_WRITTEN = b"a line of thirty-two characters\n"


async def _measure(count: int) -> dict[str, float]:
    async with holdfast.connect() as environment, CommandExec(environment) as commands:

        async def run() -> bytes:
            return (await environment.run(_ECHO)).stdout_bytes

        async def command() -> bytes:
            started = await commands.start(_ECHO)
            return (await started.wait()).stdout

        for _ in range(_WARM_UP):
            await _timed(run)
            await _timed(command)
        times = [(await _timed(run), await _timed(command)) for _ in range(count)]
    # The median: other work of the machine disturbs a few of them.
    plain, buffered = (statistics.median(column) for column in zip(*times, strict=True))
    return {
        "command_run": plain * 1e3,
        "command_echo": buffered * 1e3,
        "command_ratio": buffered / plain,
    }


async def _timed(work: Callable[[], Awaitable[bytes]]) -> float:
    begun = time.perf_counter()
    written = await work()
    seconds = time.perf_counter() - begun
    if written != _WRITTEN:
        raise RuntimeError(f"the echo was {written!r}")
    return seconds


def main() -> None:
    """Measure as the arguments say, and print the values by the key of their figure as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int, help="echoes of each kind")
    parser.add_argument("--uvloop", action="store_true", help="instead of asyncio's own loop")
    options = parser.parse_args()
    factory = None
    if options.uvloop:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        values = runner.run(_measure(options.count))
    sys.stdout.write("\n" + json.dumps(values) + "\n")


if __name__ == "__main__":
    main()
