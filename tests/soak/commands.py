"""
Thousands of commands of the tools leave nothing: no process, task, descriptor, id or listener.

    python -m tests.soak.commands --commands 5000 --sessions 500 --background 200

Runs them on this machine and on a Holdfast server, or on one of the two. Exits 1 with what is
left. Of the commands one in ten cannot be started and one in ten is cancelled. Of the sessions
one third ends by itself, one third by an interrupt and one third by `terminate`.
"""

import argparse
import asyncio
import gc
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import NamedTuple

import holdfast
from holdfast.agent.unified_exec import ExecResult, Options, ToolError, UnifiedExec
from tests.e2e.measured import Measured, measured

MIB = 1 << 20
MOST_GROWTH = 5 * MIB
"""Bytes that this process, or the server, may have more at the end."""

AT_ONCE = 16
"""Calls under way; sessions stay below the number from which on old ones are ended."""

MARK = "HOLDFAST_SOAK"
"""The variable by which every process that a command started is found."""

RETENTION = 1.0
"""
Seconds that the server keeps a closed process: all is to be gone when it is looked at.

But a call on a busy machine has to find its process when it ends what that left behind.
"""

SETTLE = 10.0
"""Seconds for the last processes to be gone."""


class Load(NamedTuple):
    """Numbers of commands, sessions and background processes."""

    commands: int
    sessions: int
    background: int


WARM_UP = Load(commands=1000, sessions=50, background=20)
"""
Commands that make what is made once, such as caches.

The server also keeps the memory of as many closed processes as it had at once, so these take
longer than it keeps one.
"""


class Held(NamedTuple):
    """Resources that the process which runs the tools holds."""

    descriptors: int
    tasks: int
    reserved_ids: int
    sessions: int
    entries: int
    listeners: int
    processes: int
    memory: int

    @classmethod
    def now(cls, tools: UnifiedExec, mark: str) -> "Held":
        gc.collect()
        return cls(
            descriptors=len(os.listdir("/proc/self/fd")),
            tasks=len(asyncio.all_tasks()),
            reserved_ids=len(tools._owner.store.reserved),
            sessions=len(tools._owner.store),
            entries=len(tools._owner.held),
            listeners=len(tools._listeners._listeners),
            processes=len(marked(mark)),
            memory=resident(),
        )


def marked(mark: str) -> list[int]:
    """Return the processes that have the mark in their environment; zombies have none."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if needle in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it has ended meanwhile, or is nobody's business
                continue
    return found


def resident() -> int:
    """Return the bytes that this process has in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel tells no VmRSS")


class Runner:
    """Runs a load through the tools and checks each answer."""

    def __init__(self, tools: UnifiedExec) -> None:
        self._tools = tools

    async def run(self, load: Load) -> None:
        """Run everything, and return when every call has its answer."""
        async with self._tools.listen() as listener:
            reading = asyncio.ensure_future(_read(listener))
            await _spread(load.commands, self._command)
            await _spread(load.sessions, self._session)
            await _spread(load.background, self._background)
            listener.close()
            await reading

    async def _exec(self, **arguments: object) -> ExecResult:
        result = await self._tools.call("exec_command", {"login": False, **arguments})
        assert isinstance(result, ExecResult), result
        return result

    async def _write(self, session: int, chars: str) -> ExecResult:
        result = await self._tools.call("write_stdin", {"session_id": session, "chars": chars})
        assert isinstance(result, ExecResult), result
        return result

    async def _command(self, number: int) -> None:
        if number % 10 == 3:
            missing = {"cmd": "true", "workdir": "/no/such/folder"}
            assert isinstance(await self._tools.call("exec_command", missing), ToolError)
        elif number % 10 == 7:
            # Cancelled somewhere: before the start, in it, or in the wait behind it.
            call = asyncio.ensure_future(self._exec(cmd="sleep 60"))
            await asyncio.sleep(number % 7 / 1000)
            call.cancel()
            await asyncio.wait([call])
            for info in self._tools.sessions():
                if info.script == "sleep 60":
                    self._tools.terminate(info.session_id)
        else:
            result = await self._exec(cmd=f"echo {number}; exit {number % 3}")
            assert (result.output, result.exit_code) == (f"{number}\n", number % 3)

    async def _session(self, number: int) -> None:
        begun = await self._exec(cmd="cat", tty=number % 2 == 0, yield_time_ms=250)
        if number % 2:  # without a terminal it reads the end of its input
            assert begun.exit_code == 0
            begun = await self._exec(cmd="sleep 60", yield_time_ms=250)
        session = begun.session_id
        assert session is not None
        if number % 2 == 0:
            echoed = await self._write(session, f"line {number}\n")
            assert echoed.output.count(f"line {number}") == 2  # the terminal's echo, and cat's
        match number % 3:
            case 0 if number % 2 == 0:
                assert (await self._write(session, "\x04")).exit_code == 0
            case 1:
                assert (await self._write(session, "\x03")).exit_code is not None
            case _:
                assert self._tools.terminate(session)

    async def _background(self, number: int) -> None:
        elsewhere = " >/dev/null 2>&1" if number % 2 else ""
        result = await self._exec(cmd=f"sleep 60{elsewhere} & sleep 60{elsewhere} & echo begun")
        assert (result.output, result.exit_code) == ("begun\n", 0)
        assert result.left_behind


async def _read(listener: object) -> None:
    async for _ in listener:  # type: ignore[attr-defined]  # events of all kinds
        pass


async def _spread(count: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Do it so many times, a few at once."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(worker())


async def settled(tools: UnifiedExec, mark: str) -> Held:
    """Return what is held once no process is left, or after a while."""
    deadline = time.monotonic() + SETTLE
    while marked(mark) or tools._owner.tasks._tasks:
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.05)  # nobody tells of a process that was left behind
    return Held.now(tools, mark)


def faults(before: Held, after: Held) -> list[str]:
    """Return what is left or has grown, in words; empty if all is well."""
    found = [
        f"{name}: {getattr(before, name)} before, {getattr(after, name)} after"
        for name in ("descriptors", "tasks")
        if getattr(after, name) > getattr(before, name)
    ]
    found += [
        f"{name}: {getattr(after, name)} are left"
        for name in ("reserved_ids", "sessions", "entries", "listeners", "processes")
        if getattr(after, name)
    ]
    if after.memory - before.memory >= MOST_GROWTH:
        found.append(f"memory: {(after.memory - before.memory) / MIB:.1f} MiB more")
    return found


async def soak(load: Load, server: Measured | None, warm_up: Load = WARM_UP) -> dict[str, object]:
    """
    Run a load and return the figures; `faults` among them is empty if nothing is left.

    Args:
        load: What to run.
        server: Where to run it; on this machine without.
        warm_up: What to run before the first look.
    """
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        url = None if server is None else server.url
        environment = await stack.enter_async_context(holdfast.connect(url))
        options = Options(env={MARK: mark})
        tools = await stack.enter_async_context(UnifiedExec(environment, options=options))
        runner = Runner(tools)
        await runner.run(warm_up)
        before = await settled(tools, mark)
        server_before = {} if server is None else await server.settled()
        await runner.run(load)
        after = await settled(tools, mark)
        server_after = {} if server is None else await server.settled()
    found = faults(before, after)
    grown = (server_after.get("kilobytes", 0) - server_before.get("kilobytes", 0)) * 1024
    found += [
        f"server {name}: {server_before[name]} before, {server_after[name]} after"
        for name in ("descriptors", "tasks", "children")
        if server is not None and server_after[name] > server_before[name]
    ]
    if grown >= MOST_GROWTH:
        found.append(f"server memory: {grown / MIB:.1f} MiB more")
    if len(asyncio.all_tasks()) > 1:
        found.append(f"tasks after the close: {asyncio.all_tasks()}")
    return {
        "where": "this machine" if server is None else "a Holdfast server",
        **load._asdict(),
        "seconds": round(time.monotonic() - began, 1),
        "growth": f"{(after.memory - before.memory) / MIB:.2f} MiB",
        **({} if server is None else {"server growth": f"{grown / MIB:.2f} MiB"}),
        "held": after._asdict(),
        "faults": found,
    }


def main() -> int:
    """Run it as a command; 1 if something is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", type=int, default=5000)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--background", type=int, default=200)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="uvloop")
    parser.add_argument("--where", choices=("local", "server", "both"), default="both")
    options = parser.parse_args()
    load = Load(options.commands, options.sessions, options.background)
    failed = False
    for where in ("local", "server") if options.where == "both" else (options.where,):
        with nullcontext() if where == "local" else measured(RETENTION) as server:
            run = asyncio.run
            if options.loop == "uvloop":
                import uvloop

                run = uvloop.run
            figures = run(soak(load, server))
        print(figures, flush=True)
        failed = failed or bool(figures["faults"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
