"""The tools `list_sessions` and `kill_session`."""

from typing import Any

import msgspec
from mcp_types import CallToolResult

from holdfast.agent.unified_exec.tool_errors import UnknownProcessId, write_failure_text
from holdfast.front.mcp.mcp_tool import (
    Effect,
    McpTool,
    ToolFailed,
    ToolRequest,
    convert,
    number,
    object_of,
    success,
    text,
)

__all__ = ["KILL_SESSION", "LIST_SESSIONS"]


async def _list(request: ToolRequest) -> CallToolResult:
    found: list[dict[str, Any]] = []
    lines = []
    for info in request.principal.tools.sessions():
        session = {
            "session_id": info.session_id,
            "command": info.script,
            "cwd": info.cwd,
            "tty": info.tty,
            "environment_id": info.environment_id,
        }
        if info.pid is not None:
            session["pid"] = info.pid
        found.append(session)
        lines.append(f"{info.session_id}: {info.script}")
    return success("\n".join(lines) or "No command is running.", {"sessions": found})


class _KillSession(msgspec.Struct, frozen=True, kw_only=True):
    session_id: int


async def _kill(request: ToolRequest) -> CallToolResult:
    session_id = convert(request.arguments, _KillSession).session_id
    if not request.principal.tools.terminate(session_id):
        raise ToolFailed(write_failure_text(UnknownProcessId(session_id)))
    return success(f"Session {session_id} was killed.", {"session_id": session_id})


_SESSION = object_of(
    ["session_id", "command", "cwd", "tty", "environment_id"],
    session_id=number("Number of the session."),
    command=text("The script that it runs."),
    cwd=text("Its directory."),
    tty={"type": "boolean", "description": "True if it has a terminal."},
    environment_id=text("Where it runs."),
    pid=number("Its process id there."),
)

LIST_SESSIONS = McpTool(
    name="list_sessions",
    title="List running commands",
    effect=Effect.READS,
    call=_list,
    description="List the running commands with their session numbers.",
    arguments=object_of([]),
    result=object_of(["sessions"], sessions={"type": "array", "items": _SESSION}),
)

KILL_SESSION = McpTool(
    name="kill_session",
    title="Kill a command",
    effect=Effect.REPLACES,
    call=_kill,
    description="Kill a running command and everything that it started.",
    arguments=object_of(["session_id"], session_id=number("Number of the session.")),
    result=object_of(["session_id"], session_id=number("Number of the session.")),
)
