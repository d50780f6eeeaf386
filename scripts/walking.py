"""
Counts the steps that a reader of the source has to follow: `python -m scripts.walking`.

A walk is one use of Holdfast, such as an output byte on its way to a caller. All of it happens in
this process: client, server and engine. It is run a few times before it is counted, so that modules
are imported, connections are open and caches are warm.
"""

import argparse
import asyncio
import inspect
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import holdfast
from holdfast.agent.unified_exec import UnifiedExec
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.remote import RemoteEnvironment
from holdfast.front.mcp.mcp_options import ServerOptions
from holdfast.front.mcp.mcp_server import McpServer
from holdfast.server.app import Server
from holdfast.wire.transports.memory import connect_memory
from holdfast.wire.transports.transport import Receiver, Transport

__all__ = ["WALKS", "Steps", "Tally", "count"]

# Runs of a walk before the counted one.
_WARM_UP = 3

# Seconds after which a walk has failed.
_LIMIT = 20.0

_SOURCE = str(Path(holdfast.__file__).parent) + os.sep

_MAY_PAUSE = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR

Walk = Callable[[], Awaitable[object]]


class Step(NamedTuple):
    """One call of a function of Holdfast."""

    module: str
    function: str
    caller: str | None
    """The module of the nearest caller that is Holdfast's, if any."""


def room(module: str) -> str:
    """Return the room of a module: its package below `holdfast`, or below `holdfast.engine`."""
    _, *inside = module.split(".")
    # Each engine is a room, so that crossings between processes, sandboxes and files count.
    depth = 2 if inside[:1] == ["engine"] else 1
    return ".".join(inside[:depth]) or module


class Tally(NamedTuple):
    """The figures of one walk."""

    calls: int
    functions: int
    modules: int
    crossings: int
    """Calls from one room into another."""

    @classmethod
    def of(cls, steps: list[Step]) -> "Tally":
        """Return the figures of these calls."""
        return cls(
            len(steps),
            len({(step.module, step.function) for step in steps}),
            len({step.module for step in steps}),
            sum(crossings(steps).values()),
        )


def crossings(steps: list[Step]) -> Counter[tuple[str, str]]:
    """Return the number of calls from one room into another, by the two rooms."""
    return Counter(
        (room(step.caller), room(step.module))
        for step in steps
        if step.caller is not None and room(step.caller) != room(step.module)
    )


class Steps:
    """Recorder of the calls of functions of Holdfast, in all threads that start later."""

    def __init__(self) -> None:
        self.taken: list[Step] = []
        """The calls, in order."""
        self._recording = False
        # The module and the function of each code object; None outside Holdfast.
        self._names: dict[CodeType, tuple[str, str] | None] = {}
        # Frames that were entered before: resuming a coroutine is not a call.
        self._entered: set[FrameType] = set()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to the calls of this thread and of new ones; see `recording`."""
        sys.setprofile(self._event)
        threading.setprofile(self._event)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the calls in the block."""
        self._recording = True
        try:
            yield
        finally:
            self._recording = False
            self._entered.clear()

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_flags & _MAY_PAUSE:
            # Noted even before the recording: a task that waits by then has already been entered.
            if frame in self._entered:
                return
            self._entered.add(frame)
        name = self._name(code) if self._recording else None
        if name is not None:
            self.taken.append(Step(*name, self._caller(frame)))

    def _caller(self, frame: FrameType) -> str | None:
        caller = frame.f_back
        while caller is not None:
            name = self._name(caller.f_code)
            if name is not None:
                return name[0]
            caller = caller.f_back
        return None

    def _name(self, code: CodeType) -> tuple[str, str] | None:
        if code not in self._names:
            path = code.co_filename
            found = None
            # Comprehensions are part of their function.
            if path.startswith(_SOURCE) and not code.co_name.endswith("comp>"):
                inner = path.removeprefix(_SOURCE).removesuffix(".py").removesuffix("/__init__")
                found = "holdfast." + inner.replace(os.sep, "."), code.co_qualname
            self._names[code] = found
        return self._names[code]


# -- the walks; each yields the function that is run repeatedly


@asynccontextmanager
async def _remote() -> AsyncIterator[RemoteEnvironment]:
    """Yield a server's environment; both are in this process, with a socket between them."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = await stack.enter_async_context(Server())
        url = await server.listen(f"unix://{folder}/server")
        yield await stack.enter_async_context(RemoteEnvironment("server", url))


@asynccontextmanager
async def _output() -> AsyncIterator[Walk]:
    """From a readable pipe to the next chunk of a remote caller's `output()`."""
    async with AsyncExitStack() as stack:
        environment = await stack.enter_async_context(_remote())
        pipe = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "pipe")
        os.mkfifo(pipe)
        # Opened in both directions, which does not wait for the other end.
        fd = os.open(pipe, os.O_RDWR)
        stack.callback(os.close, fd)
        running = await stack.enter_async_context(environment.start(["cat", pipe]))
        chunks = running.output()

        async def byte() -> object:
            os.write(fd, b".")
            return await anext(chunks)

        yield byte


@asynccontextmanager
async def _exec_command() -> AsyncIterator[Walk]:
    """A call of `exec_command` on this machine."""
    async with LocalEnvironment() as environment, UnifiedExec(environment) as tools:
        yield lambda: tools.call("exec_command", '{"cmd": "true", "login": false}')


@asynccontextmanager
async def _sandbox() -> AsyncIterator[Walk]:
    """A command in a sandbox on this machine, from `run` to its result."""
    # Its own directory: a sandbox makes code that is imported from its workspace read-only.
    with tempfile.TemporaryDirectory() as folder:
        async with LocalEnvironment() as environment:
            yield lambda: environment.run(["true"], cwd=folder, sandbox="workspace-write")


class _McpClient(Receiver):
    """A client of an MCP server in this process, which makes one call at a time."""

    def __init__(self, server: McpServer) -> None:
        self._answered = asyncio.Event()
        self._transport: Transport = connect_memory(lambda _: self, server.accept)

    def notify(self, method: str) -> None:
        self._send({"method": method})

    async def call(self, method: str, params: object) -> None:
        self._answered.clear()
        self._send({"id": 1, "method": method, "params": params})
        await self._answered.wait()

    def _send(self, message: dict[str, object]) -> None:
        self._transport.send(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def received(self, message: bytes) -> None:
        answer = json.loads(message)
        if "id" in answer:
            assert "result" in answer, message
            self._answered.set()

    def lost(self, reason: str) -> None:
        pass

    def pause_sending(self) -> None:
        pass

    def resume_sending(self) -> None:
        pass

    def close(self) -> None:
        self._transport.close()


@asynccontextmanager
async def _mcp() -> AsyncIterator[Walk]:
    """A call of `exec_command` by a client of the MCP server."""
    options = ServerOptions(sandbox="danger-full-access", ask_for_approval="never")
    async with McpServer(options) as server:
        client = _McpClient(server)
        info = {"name": "walk", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        await client.call("initialize", params)
        client.notify("notifications/initialized")
        await client.call("tools/list", {})
        arguments = {"cmd": "true", "login": False}
        yield lambda: client.call("tools/call", {"name": "exec_command", "arguments": arguments})
        client.close()


@asynccontextmanager
async def _read() -> AsyncIterator[Walk]:
    """`files.read_text` of a small file on a server."""
    async with _remote() as environment:
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"text")
            file.flush()
            yield lambda: environment.files.read_text(file.name)


WALKS = {
    "output": _output,
    "exec_command": _exec_command,
    "sandbox": _sandbox,
    "mcp": _mcp,
    "read": _read,
}
"""The walks by name."""


async def count(name: str) -> list[Step]:
    """Run a walk and return its calls."""
    steps = Steps()
    with steps.listening():
        async with asyncio.timeout(_LIMIT), WALKS[name]() as walk:
            for _ in range(_WARM_UP):
                await walk()
            # Let pending work of the last run finish before the next.
            await asyncio.sleep(0.1)
            with steps.recording():
                await walk()
    return steps.taken


def _main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/walks", description=__doc__)
    parser.add_argument("walks", nargs="*", metavar="WALK", help=f"some of {', '.join(WALKS)}")
    parser.add_argument("--rooms", action="store_true", help="also show which rooms call which")
    parser.add_argument("--calls", action="store_true", help="also show every call, in order")
    chosen = parser.parse_args()
    unknown = set(chosen.walks).difference(WALKS)
    if unknown:
        parser.error(f"there is no walk {min(unknown)}")
    print("| walk | calls | functions | modules | crossings |\n|---|--:|--:|--:|--:|")
    for name in chosen.walks or WALKS:
        steps = asyncio.run(count(name))
        print("|", " | ".join(map(str, (name, *Tally.of(steps)))), "|")
        if chosen.rooms:
            for (caller, callee), times in crossings(steps).most_common():
                print(f"  {times:4} {caller} -> {callee}")
        if chosen.calls:
            for number, step in enumerate(steps, 1):
                print(f"  {number:4} {step.module} {step.function}")


if __name__ == "__main__":
    _main()
