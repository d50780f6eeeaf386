"""Commands and files in a sandbox: the cost of a start, and of reading a small file."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench import wire
from bench.calls import InTurn
from bench.client import RawClient
from bench.enclosed import bare_sandbox
from bench.figures import (
    Acks,
    Benchmark,
    Context,
    Figure,
    Subject,
    Target,
    both_clients,
    for_both,
    through_both,
)
from bench.measures.starts import ARGV, WARM_UP, Starts
from bench.processes import on_one_core
from bench.profiles import (
    DENYING,
    NARROW,
    READ_ONLY,
    WORKSPACE_WRITE,
    make_workspace,
    sandbox_context,
)
from bench.servers import talking

__all__ = ["FILES", "STARTS"]

_STARTED = {READ_ONLY: "sandbox_read_only", WORKSPACE_WRITE: "sandbox_workspace_write"}
_WITH_HELPER = {DENYING: "files_denying", NARROW: "files_narrow"}
_DIRECT = {
    None: "files_free",
    READ_ONLY: "files_read_only",
    WORKSPACE_WRITE: "files_workspace_write",
}


@contextmanager
def _workspace() -> Iterator[tuple[Path, Path]]:
    """Create a workspace and a small file in it."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        workspace = Path(folder).resolve()
        yield workspace, make_workspace(workspace)


# -- commands


async def _starts(context: Context, acks: Acks) -> Mapping[str, float]:
    found: dict[str, float] = {}
    with _workspace() as (workspace, _):
        async with talking(context.command, acks) as (_, client):
            for profile, key in _STARTED.items():
                await _start(client, profile, workspace, f"{key}-warm-up-", WARM_UP)
                count = context.sizes.sandboxed_starts
                found[key] = await _start(client, profile, workspace, f"{key}-", count)
    return found


async def _start(client: RawClient, profile: str, workspace: Path, name: str, count: int) -> float:
    """Return the milliseconds from the request to `closed`, on average."""
    sandbox = sandbox_context(profile, workspace)
    requests = [
        wire.start(n, f"{name}{n}", ARGV, cwd=workspace.as_uri(), sandbox=sandbox)
        for n in range(count)
    ]
    return await Starts(client, requests).run() * 1e3


async def _bare_starts(context: Context) -> Mapping[str, float]:
    found: dict[str, float] = {}
    count = context.sizes.sandboxed_starts
    with _workspace() as (workspace, _):
        for profile, key in _STARTED.items():
            sandbox = sandbox_context(profile, workspace)
            async with bare_sandbox(sandbox, ARGV, workspace, wire.ENVIRONMENT) as made:
                for _ in range(WARM_UP):
                    made.start()
                    made.clean()
                seconds = 0.0
                for _ in range(count):
                    begun = time.perf_counter()
                    made.start()
                    seconds += time.perf_counter() - begun
                    made.clean()  # so that the next one finds the same state
                found[key] = seconds / count * 1e3
    return for_both(found)


STARTS = Benchmark(
    name="sandbox",
    figures=both_clients(
        *(
            Figure(
                key=key,
                title=f"sandboxed start → closed of `/bin/true`, pipes, `{profile}`",
                unit="ms",
                targets=(Target(factor=0.2), Target(factor=1.4, against=Subject.BARE)),
            )
            for profile, key in _STARTED.items()
        )
    ),
    runners={
        **dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), through_both(_starts)),
        Subject.BARE: _bare_starts,
    },
)


# -- files


async def _files(context: Context, acks: Acks) -> Mapping[str, float]:
    sizes = context.sizes
    found: dict[str, float] = {}
    with _workspace() as (workspace, file):
        async with talking(context.command, acks) as (server, client):
            for profile, key in _WITH_HELPER.items():
                await _read(client, profile, workspace, file, WARM_UP)
                found[key] = await _read(client, profile, workspace, file, sizes.sandboxed_reads)
            with on_one_core(server.processes()):
                for direct, key in _DIRECT.items():
                    await _read(client, direct, workspace, file, WARM_UP)
                    found[key] = await _read(client, direct, workspace, file, sizes.direct_reads)
    return found


async def _read(
    client: RawClient, profile: str | None, workspace: Path, file: Path, count: int
) -> float:
    """Return the milliseconds of one `fs/readFile`, on average."""
    params: dict[str, object] = {"path": file.as_uri()}
    if profile is not None:
        params["sandbox"] = sandbox_context(profile, workspace)
    requests = [wire.request(number, "fs/readFile", params) for number in range(count)]
    return await InTurn(client, requests).run() / count * 1e3


_TITLE = "`fs/readFile` of a small file, in turn"

FILES = Benchmark(
    name="sandbox-files",
    figures=both_clients(
        Figure(
            key="files_denying",
            title=f"{_TITLE}, `workspace-write` with a denied directory",
            unit="ms",
            targets=(Target(factor=0.2),),
        ),
        Figure(
            key="files_narrow",
            title=f"{_TITLE}, workspace and system readable",
            unit="ms",
            targets=(Target(factor=0.2),),
        ),
        Figure(key="files_free", title=f"{_TITLE}, on one core, no sandbox", unit="ms"),
        Figure(key="files_read_only", title=f"{_TITLE}, on one core, `read-only`", unit="ms"),
        Figure(
            key="files_workspace_write",
            title=f"{_TITLE}, on one core, `workspace-write`",
            unit="ms",
        ),
    ),
    runners=dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), through_both(_files)),
)
