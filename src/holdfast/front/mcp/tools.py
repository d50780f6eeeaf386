"""All tools of the MCP server, in the order of the list."""

import sys
from typing import Any, Final

from mcp_types import CallToolResult, ImageContent, Tool, ToolAnnotations

from holdfast.agent.approvals.shown_text import shortened
from holdfast.agent.unified_exec.result import ExecResult, ImageResult, ToolError
from holdfast.agent.unified_exec.tools import UnifiedExec
from holdfast.front.mcp.file_tools import APPLY_PATCH, READ_FILE, WRITE_FILE
from holdfast.front.mcp.mcp_options import ServerOptions
from holdfast.front.mcp.mcp_tool import (
    Effect,
    McpTool,
    ToolFailed,
    ToolRequest,
    failure,
    object_of,
    success,
    text,
)
from holdfast.front.mcp.session_tools import KILL_SESSION, LIST_SESSIONS

__all__ = ["TOOLS", "call_tool", "described_tools"]


# Maximum characters of a string argument. A longer one cannot be a path or a number; errors and
# questions would quote it, and delay other clients.
_LONGEST_TEXT: Final = 16_384

# Arguments that may be longer. A command is one argument of a shell (MAX_ARG_STRLEN), the others
# are content, and may be as long as a request.
_LONGER: Final = {
    "cmd": 131_071,
    "chars": sys.maxsize,
    "content": sys.maxsize,
    "input": sys.maxsize,
}


async def _unified_exec(request: ToolRequest) -> CallToolResult:
    """Call a tool of unified exec."""
    result = await request.principal.tools.call(
        request.name, request.arguments, call_id=request.call_id
    )
    if isinstance(result, ToolError):
        return failure(result.text())
    if isinstance(result, ImageResult):
        image = ImageContent.model_validate(*result.content("mcp"))
        return CallToolResult(content=[image], is_error=False)
    structured = result.object()
    if isinstance(result, ExecResult):
        # Cut as in the text: some clients give this object to their model instead, and over
        # HTTP they accept at most 1 MiB per event.
        structured["output"] = result.output
        if result.notes:
            structured["notes"] = [
                {"kind": note.kind.value, "text": note.text} for note in result.notes
            ]
    return success(result.text(), structured)


TOOLS: Final = {
    tool.name: tool
    for tool in (
        McpTool(name="exec_command", title="Run a command", effect=Effect.RUNS, call=_unified_exec),
        McpTool(
            name="write_stdin",
            title="Send input to a command, or poll it",
            effect=Effect.RUNS,
            call=_unified_exec,
        ),
        McpTool(
            name="read_output",
            title="Read output of a command",
            effect=Effect.READS,
            call=_unified_exec,
        ),
        LIST_SESSIONS,
        KILL_SESSION,
        READ_FILE,
        McpTool(
            name="view_image", title="Look at an image", effect=Effect.READS, call=_unified_exec
        ),
        WRITE_FILE,
        APPLY_PATCH,
    )
}
"""All tools, by name."""


async def call_tool(request: ToolRequest) -> CallToolResult:
    """
    Run the tool of a call. Unified exec refuses names of tools that do not exist.

    Raises:
        ToolFailed: The call failed; the message is for the model.
    """
    for name, value in request.arguments.items():
        most = _LONGER.get(name, _LONGEST_TEXT)
        if len(name) > _LONGEST_TEXT or (isinstance(value, str) and len(value) > most):
            raise ToolFailed(
                f"`{shortened(name, 64)}` of {shortened(request.name, 64)} is too long:"
                f" the limit is {most:,} characters"
            )
    tool = TOOLS.get(request.name)
    return await (_unified_exec(request) if tool is None else tool.call(request))


def described_tools(options: ServerOptions, tools: UnifiedExec, *, ruled: bool) -> list[Tool]:
    """
    Return all tools, for `tools/list`.

    Args:
        options: Options of the server.
        tools: Tools of any principal.
        ruled: True if there are rules, which may let commands out of their sandbox.
    """
    theirs: dict[str, dict[str, Any]] = {str(each["name"]): each for each in tools.schemas("mcp")}
    for name in ("exec_command", "write_stdin"):
        theirs[name] = _with_notes(theirs[name])
    return [
        Tool.model_validate(
            {
                **(theirs[tool.name] if tool.arguments is None else _described(tool)),
                "title": tool.title,
                "annotations": _annotations(tool.effect, options, ruled).model_dump(by_alias=True),
            }
        )
        for tool in TOOLS.values()
        if tool.arguments is not None or tool.name in theirs
    ]


def _described(tool: McpTool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.arguments,
        "outputSchema": tool.result,
    }


def _with_notes(tool: dict[str, Any]) -> dict[str, Any]:
    """Add notes to the result schema of a tool."""
    note = object_of(
        ["kind", "text"],
        kind=text("Its subject, such as `denied`, `network`, `limit` or `cut`."),
        text=text("What happened, and what to do about it."),
    )
    notes = {"type": "array", "items": note, "description": "Notes on the result."}
    result = tool["outputSchema"]
    return {
        **tool,
        "outputSchema": {**result, "properties": {**result["properties"], "notes": notes}},
    }


def _annotations(effect: Effect, options: ServerOptions, ruled: bool) -> ToolAnnotations:
    if effect is not Effect.RUNS:
        reads = effect is Effect.READS
        return ToolAnnotations(
            read_only_hint=reads,
            destructive_hint=not reads,
            idempotent_hint=effect is not Effect.CHANGES,
            open_world_hint=False,
        )
    locked = options.asks_nobody and not ruled
    harmless = locked and options.sandbox == "read-only"
    offline = locked and options.sandbox in ("read-only", "workspace-write")
    return ToolAnnotations(
        read_only_hint=harmless,
        destructive_hint=not harmless,
        idempotent_hint=False,
        open_world_hint=not offline,
    )
