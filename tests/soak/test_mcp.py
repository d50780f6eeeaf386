"""
Clients of the MCP server that do everything in turn and go away at any moment leave nothing.

`HOLDFAST_MCP_SOAK=2000` makes so many calls on each transport; 200 are made otherwise.
"""

import asyncio
import os
import random
import secrets
from functools import partial
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from holdfast.front.mcp.mcp_principals import Principal
from tests.e2e.mcp_clients import HANDSHAKE, MODERN, Kind, ServedMcp, serving
from tests.soak.leftovers import descriptors, left_running, until, until_nothing

COUNT = int(os.environ.get("HOLDFAST_MCP_SOAK", "200"))
AT_ONCE = 10
KEEP = 3.0
"""Seconds that the sessions of an HTTP client outlive it."""

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(60 + COUNT)]

ESCALATED = {"sandbox_permissions": "require_escalated"}
ASKING: dict[str, Any] = {"sandbox": "workspace-write", "ask_for_approval": "on-request"}

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("exec_command", {"cmd": "echo short"}),
    ("exec_command", {"cmd": "sleep 60", "yield_time_ms": 250}),
    ("exec_command", {"cmd": "cat", "tty": True, "yield_time_ms": 250}),
    ("exec_command", {"cmd": "trap '' INT; while :; do sleep 1; done", "yield_time_ms": 30_000}),
    ("exec_command", {"cmd": "yes", "yield_time_ms": 30_000}),
    ("exec_command", {"cmd": "sleep 60 & setsid sleep 60 & exit 3"}),
    ("exec_command", {"cmd": "echo asked", **ESCALATED}),
    ("exec_command", {"cmd": 5}),
    ("list_sessions", {}),
    ("write_file", {"path": "a/b.txt", "content": "x" * 100_000}),
    ("write_file", {"path": "/etc/holdfast", "content": "x"}),
    ("read_file", {"path": "a/b.txt"}),
    ("apply_patch", {"input": "*** Begin Patch\n*** Add File: c.txt\n+c\n*** End Patch\n"}),
    ("no_such_tool", {}),
]


async def answer(params: types.ElicitRequestFormParams) -> types.ElicitResult:
    """Accept, decline, cancel, or take longer than anybody waits."""
    match secrets.randbelow(4):
        case 0:
            await asyncio.sleep(60)
        case 1:
            return types.ElicitResult(action="accept", content={"decision": "accept"})
        case 2:
            return types.ElicitResult(action="decline")
    return types.ElicitResult(action="cancel")


async def one_call(client: Client, made: random.Random) -> None:
    """Make a call, and go on with the session that it leads to in some way."""
    name, arguments = made.choice(CALLS)
    if name == "exec_command":
        arguments = {"login": False, **arguments}
    result = await client.call_tool(name, arguments, progress_callback=_hear)
    session = (result.structured_content or {}).get("session_id")
    if session is None:
        return
    match made.randrange(4):
        case 0:
            await client.call_tool("kill_session", {"session_id": session})
        case 1:
            line = {"session_id": session, "chars": "\x03", "yield_time_ms": 250}
            await client.call_tool("write_stdin", line)
        case 2:
            await client.read_resource(f"holdfast://sessions/{session}")


async def _hear(progress: float, total: float | None, message: str | None) -> None:
    """Take what is told."""


async def visit(served: ServedMcp, made: random.Random) -> None:
    """Be a client that makes some calls, cancels some and leaves while others are under way."""

    async def cancelled(call: "asyncio.Task[None]") -> None:
        await asyncio.sleep(made.uniform(0, 0.3))
        call.cancel()

    async with served.client(answer) as client, asyncio.TaskGroup() as others:
        calls = [asyncio.ensure_future(one_call(client, made)) for _ in range(AT_ONCE)]
        for call in made.sample(calls, AT_ONCE // 3):
            others.create_task(cancelled(call))
        await asyncio.wait(calls, timeout=made.uniform(0.1, 1.0))
        for call in calls:
            call.cancel()
        for end in await asyncio.gather(*calls, return_exceptions=True):
            # A session may be gone when it is read.
            assert end is None or isinstance(end, asyncio.CancelledError | MCPError), end


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A variable of every process that a command starts here."""
    found = secrets.token_hex(16)
    monkeypatch.setenv("HOLDFAST_TEST_MARK", found)
    return found


@pytest.mark.parametrize("kind", ["stdio", "http"])
@pytest.mark.parametrize("mode", [HANDSHAKE, MODERN])
async def test_clients_that_go_away_leave_nothing(
    kind: Kind, mode: str, tmp_path: Path, mark: str
) -> None:
    made = random.Random(0)
    before = descriptors()
    async with serving(kind, mode, tmp_path, keep=KEEP, **ASKING) as served:
        for _ in range(COUNT // AT_ONCE):
            await visit(served, made)
            if kind == "stdio":
                # On standard streams there is one client for the life of the server.
                principal = await the_principal(served)
                principal.tools.clean()
                await until(partial(is_idle, principal))
        await asyncio.to_thread(until_nothing, lambda: left_running(mark))
        if kind == "http":
            handlers = await served.server._handlers()
            await until(lambda: not handlers.principals._principals)
    assert not left_running(mark)
    await until(lambda: len(tasks()) == 1)
    await until(lambda: descriptors() <= before + 2)  # of the loop's own


def tasks() -> list["asyncio.Task[object]"]:
    """Return all tasks, but the one that the SDK's library for streams keeps in each loop."""
    return [each for each in asyncio.all_tasks() if "_shutdown_watcher" not in repr(each)]


def is_idle(principal: Principal) -> bool:
    """Return True if no call is under way but those whose question waits for a second round."""
    return principal._calls.keys() == principal._waiting.keys()


async def the_principal(served: ServedMcp) -> Principal:
    """Return the one client of a server on standard streams."""
    handlers = await served.server._handlers()
    (found,) = handlers.principals._principals.values()
    return found
