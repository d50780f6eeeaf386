"""Time until a server, or the library, is ready for use."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Mapping

from bench.errors import NotAvailable
from bench.figures import Benchmark, Context, Figure, Subject
from bench.servers import running

__all__ = ["IMPORT", "SERVER"]

_INTERPRETER_SECONDS = 30.0
"""Longest time that an interpreter may run."""


async def _server(context: Context) -> Mapping[str, float]:
    assert context.command is not None, "only servers are launched"
    seconds = 0.0
    for _ in range(context.sizes.launches):
        with running(context.command) as server:
            seconds += server.launch_seconds
    return {"launch": seconds / context.sizes.launches * 1e3}


async def _import(context: Context) -> Mapping[str, float]:
    # The first run writes the byte code, as an installation would.
    times = [_import_seconds() for _ in range(context.sizes.launches + 1)]
    return {"import": statistics.mean(times[1:]) * 1e3}


def _import_seconds() -> float:
    """
    Return the duration of the import in a fresh interpreter, without its own start.

    Raises:
        NotAvailable: The import does not work.
    """
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import holdfast"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_INTERPRETER_SECONDS,
        check=False,
    )
    # import time: SELF | CUMULATIVE | NAME, in microseconds, indented for imports of imports
    for line in ended.stderr.splitlines():
        fields = line.partition("import time:")[2].split("|")
        if len(fields) == 3 and fields[2].strip() == "holdfast":
            return int(fields[1]) / 1e6
    raise NotAvailable("`import holdfast` does not work in this environment")


SERVER = Benchmark(
    name="launch",
    figures=(Figure(key="launch", title="start of the server to its URL", unit="ms"),),
    runners=dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), _server),
)

IMPORT = Benchmark(
    name="import",
    figures=(Figure(key="import", title="`import holdfast` in a fresh interpreter", unit="ms"),),
    runners={Subject.HOLDFAST: _import},
)
