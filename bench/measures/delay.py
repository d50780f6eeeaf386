"""Delay of a process's output while a server is busy with files."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.figures import (
    Acks,
    Benchmark,
    Better,
    Context,
    Figure,
    Subject,
    Target,
    both_clients,
    through_both,
)
from bench.load import busy
from bench.measures.echo import Echoes, start_cat
from bench.measures.files import make_tree
from bench.servers import talking

__all__ = ["DELAY"]

_FOLDERS = 10
"""Directories of the tree to walk: a thousand entries, like a small project."""

_FILE_BYTES = 256 * 1024
"""Size of the file to read."""


@contextmanager
def _files() -> Iterator[tuple[Path, Path]]:
    """Create the tree to walk and the file to read."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        file, tree = Path(folder, "file"), Path(folder, "tree")
        file.write_bytes(os.urandom(_FILE_BYTES))
        tree.mkdir()
        make_tree(tree, _FOLDERS)
        yield tree, file


async def _delay(context: Context, acks: Acks) -> Mapping[str, float]:
    times = context.sizes.delay_echoes
    with _files() as (tree, file):
        async with talking(context.command, acks) as (server, client):
            first = await start_cat(client)
            idle = statistics.median(await Echoes(client, first, times).run())
            async with busy(server.url, tree, file, context.sizes.delay_requests) as load:
                late = statistics.median(await Echoes(client, first + times, times).run())
    return {
        "delay_idle": idle * 1e3,
        "delay": late * 1e3,
        "delay_ratio": late / idle,
        "delay_load": load.rate,
    }


DELAY = Benchmark(
    name="delay",
    figures=both_clients(
        Figure(key="delay_idle", title="stdin echo of a line, idle server, median", unit="ms"),
        Figure(
            key="delay",
            title="stdin echo of a line during 100 walks and reads, median",
            unit="ms",
            targets=(Target(factor=1.0),),
        ),
        Figure(key="delay_ratio", title="the same divided by that of the idle server", unit="×"),
        Figure(
            key="delay_load",
            title="walks (1,000 entries) and reads (256 KiB) done meanwhile",
            unit="calls/s",
            better=Better.HIGHER,
        ),
    ),
    runners=dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), through_both(_delay)),
)
