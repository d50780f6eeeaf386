"""
The fast paths of Holdfast, and how to switch each off to measure its gain.

A fast path gives the same results as the general path next to it, only sooner. It stays while it
gains at least 5 % in its own benchmark: `scripts/bench --without NAME` measures that, with and
without it in turn. `bench/switched_off` replaces its parts in each process that is measured.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.figures import Benchmark, Context, Runner, Subject

__all__ = ["FAST_PATHS", "FastPath", "without"]

_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class FastPath:
    """A fast path and its benchmark."""

    about: str
    benchmark: str
    """The name of the benchmark that shows its gain."""
    parts: tuple[str, ...]
    """The names to replace by those of `general_paths`, as `package.module:name`."""


FAST_PATHS: Mapping[str, FastPath] = {
    "plain-arguments": FastPath(
        about="arguments of a model that msgspec decodes without a fault",
        benchmark="unified-exec",
        parts=("holdfast.agent.unified_exec.arguments.tool_arguments:read_plain",),
    ),
    "sound-messages": FastPath(
        about="small nested messages that are checked by encoding them again",
        benchmark="sandbox-files",
        parts=("holdfast.wire.rpc.decode:_is_plainly_sound",),
    ),
    "light-messages": FastPath(
        about="messages with few values that are decoded in the event loop",
        benchmark="rpc",
        parts=(
            "holdfast.wire.connection:may_have_many_values",
            "holdfast.wire.connection:LARGEST_UNCOUNTED",
        ),
    ),
    "taken-output": FastPath(
        about="output that a client takes without decoding its message",
        benchmark="unified-exec",
        parts=("holdfast.client.client_connection:Link._take_output",),
    ),
    "encoded-output": FastPath(
        about="output that a server encodes around its base64",
        benchmark="stream-pipe",
        parts=("holdfast.wire.connection:encode_output",),
    ),
    "encoded-content": FastPath(
        about="content of files that a server sends without encoding its message",
        benchmark="read",
        parts=("holdfast.server.handlers.file_handlers:_content",),
    ),
    "cached-content": FastPath(
        about="small files that are read from the kernel's caches in the event loop",
        benchmark="sandbox-files",
        parts=(
            "holdfast.engine.files.local_files:cached_content",
            "holdfast.engine.files.local_files:cached_content_of_command",
        ),
    ),
    "cached-metadata": FastPath(
        about="metadata that is read from the kernel's caches in the event loop",
        benchmark="metadata",
        parts=("holdfast.engine.files.local_files:cached_metadata",),
    ),
    "recent-content": FastPath(
        about="files that a sandboxed command could read a moment ago",
        benchmark="sandbox-files",
        parts=("holdfast.engine.files.nowait:_MOMENT",),
    ),
    "session-tables": FastPath(
        about="processes of this machine in the session's own table, without a task for each",
        benchmark="start-pipes",
        parts=("holdfast.server.app:LocalSessions",),
    ),
    "start-in-loop": FastPath(
        about="starts in the event loop when the kernel has their files cached",
        benchmark="start-pipes",
        parts=("holdfast.engine.process.admission:can_start_without_waiting",),
    ),
    "start-again": FastPath(
        about="starts of a program recently found in the kernel's caches",
        benchmark="burst",
        parts=("holdfast.engine.process.reachable:_CACHED_STILL",),
    ),
    "shared-epoll": FastPath(
        about="one epoll instance for the descriptors of all short commands",
        benchmark="burst",
        parts=(
            "holdfast.engine.process.io.output_reader:readers_of",
            "holdfast.engine.process.process:readers_of",
        ),
    ),
    "watched-by-loop": FastPath(
        about="descriptors of longer commands that the event loop watches itself",
        benchmark="echo",
        parts=("holdfast.engine.process.io.output_reader:_SHORT_COMMAND",),
    ),
    "large-pipe": FastPath(
        about="a pipe of 1 MiB for a command that writes much",
        benchmark="stream-pipe",
        parts=("holdfast.engine.process.io.output_reader:_BULK_PIPE",),
    ),
    "simple-scripts": FastPath(
        about="scripts of simple commands that are split by one regular expression",
        benchmark="mcp",
        parts=("holdfast.agent.approvals.split.simple_command:simple_commands",),
    ),
    "kept-memory": FastPath(
        about="memory that a server keeps for the next block of a file",
        benchmark="write",
        parts=("holdfast.server.operate.run_server:_keep_freed_memory",),
    ),
}


def without(name: str, benchmark: Benchmark) -> Benchmark:
    """Return a benchmark that compares Holdfast with and without a fast path."""
    runner = benchmark.runners[Subject.HOLDFAST]
    figures = tuple(
        replace(figure, others=(Subject.WITHOUT,), targets=()) for figure in benchmark.figures
    )
    return replace(
        benchmark,
        figures=figures,
        runners={Subject.HOLDFAST: runner, Subject.WITHOUT: _switched_off(name, runner)},
    )


def _switched_off(name: str, runner: Runner) -> Runner:
    async def run(context: Context) -> Mapping[str, float]:
        with _inherited_switch(name):
            return await runner(context)

    return run


@contextmanager
def _inherited_switch(name: str) -> Iterator[None]:
    """Switch off a fast path in every process that is started in the block."""
    inherited = os.environ.get("PYTHONPATH")
    added = {
        "PYTHONPATH": os.pathsep.join(
            [str(_ROOT / "bench" / "switched_off"), str(_ROOT), *([inherited] if inherited else [])]
        ),
        "HOLDFAST_BENCH_WITHOUT": " ".join(FAST_PATHS[name].parts),
    }
    before = {variable: os.environ.get(variable) for variable in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                del os.environ[variable]
            else:
                os.environ[variable] = value
