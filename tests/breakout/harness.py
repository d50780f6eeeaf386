"""Runs attempts through the seam, and reads what became of them."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.backends import ExecBackend
from holdfast.base.errors import Refused
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import OutputChunk, StartParams
from holdfast.wire.protocol.sandbox import SandboxContext
from tests.breakout.ground import PYTHON, Prepared
from tests.breakout.table import Attempt

__all__ = [
    "REFUSED",
    "THROUGH",
    "Outsider",
    "beside",
    "make_attempt",
    "outcome",
    "params",
    "printed",
    "settled",
    "verdict",
]

THROUGH = "THROUGH"
REFUSED = "refused"

LIMIT = 10.0 * float(os.environ.get("HOLDFAST_TEST_PATIENCE", "1"))
"""Seconds that an attempt may take; it needs a tenth of one, or of many where it is emulated."""

_LOOKS = 200
"""How often it is looked, a hundredth of a second apart, whether a change is gone."""

PATH = "/usr/local/bin:/usr/bin:/bin"

_numbers = count(1)


@dataclass(frozen=True)
class Outsider:
    """The process beside (outsider.py)."""

    process: subprocess.Popen[str]
    about: Mapping[str, Any]

    def state(self) -> Mapping[str, Any]:
        """All that has reached it up to now."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        state: Mapping[str, Any] = json.loads(self.process.stdout.readline())
        return state


@contextmanager
def beside(folder: Path) -> Iterator[Outsider]:
    """Have it run."""
    program = Path(__file__).with_name("outsider.py")
    process = subprocess.Popen(
        [PYTHON, "-I", "-S", str(program), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Outsider(process, json.loads(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.wait(LIMIT)
        process.stdout.close()


def params(
    ground: Prepared,
    *argv: str,
    sandbox: SandboxContext | None,
    env: Mapping[str, str] | None = None,
    tty: bool = False,
) -> StartParams:
    """A start in the workspace."""
    paths = {name: path for name, path in ground.paths.items() if isinstance(path, str)}
    given = {name: value.format(**paths) for name, value in (env or {}).items()}
    return StartParams(
        process_id=f"attempt-{next(_numbers)}",
        argv=list(argv),
        cwd=PathUri.from_path(ground.path("work")),
        env={"PATH": PATH, "HOME": ground.paths["work"], **given},
        tty=tty,
        sandbox=sandbox,
    )


async def outcome(backend: ExecBackend, start: StartParams) -> str:
    """
    The verdict that a program printed: `THROUGH`, or the word for what stopped it.

    `REFUSED` if it was not started; all there is to say of it if it gave no verdict.
    """
    async with asyncio.timeout(LIMIT):
        try:
            process = await backend.start(start)
        except Refused:
            return REFUSED
        events = [event async for event in process.events()]
    chunks = [event for event in events if isinstance(event, OutputChunk)]
    if found := verdict(_text(chunk for chunk in chunks if chunk.stream != "stderr")):
        return found
    return f"no verdict: {_text(chunks)!r} and {await process.wait()}"


async def printed(backend: ExecBackend, start: StartParams, *, limit: float) -> str:
    """Return the output of a program; nothing if it was not started."""
    async with asyncio.timeout(limit):
        try:
            process = await backend.start(start)
        except Refused:
            return ""
        events = [event async for event in process.events()]
    chunks = (event for event in events if isinstance(event, OutputChunk))
    return _text(chunk for chunk in chunks if chunk.stream != "stderr")


def verdict(output: str) -> str:
    """The last verdict in an output; an empty text if there is none."""
    for line in reversed(output.splitlines()):
        if line == THROUGH or line.startswith("BLOCKED "):
            return line.removeprefix("BLOCKED ")
    return ""


def _text(chunks: Iterable[OutputChunk]) -> str:
    return b"".join(chunk.chunk for chunk in chunks).decode(errors="replace")


async def make_attempt(
    backend: ExecBackend, attempt: Attempt, ground: Prepared, sandbox: SandboxContext | None
) -> str:
    """Run an attempt; see `outcome`."""
    argv = (PYTHON, "-I", "-S", "-c", attempt.program, repr(dict(ground.paths)))
    return await outcome(
        backend, params(ground, *argv, sandbox=sandbox, env=attempt.env, tty=attempt.tty)
    )


async def settled(ground: Prepared, before: Mapping[str, object]) -> None:
    """
    Check that all is as it was.

    On a busy machine, what a sandbox needed on the disk is removed a moment after its
    last process is gone.
    """
    for _ in range(_LOOKS):
        if ground.state() == before:
            return
        await asyncio.sleep(0.01)
    assert ground.state() == before
