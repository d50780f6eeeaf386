"""The tools as clients see them: names, schemas, and what they may do to the world."""

from typing import Any, Final

from mcp_types import Tool, ToolAnnotations

from holdfast.agent.unified_exec.tools import UnifiedExec
from holdfast.front.mcp.mcp_options import ServerOptions

__all__ = ["NAMES", "described_tools"]

NAMES: Final = (
    "exec_command",
    "write_stdin",
    "read_output",
    "list_sessions",
    "kill_session",
    "read_file",
    "view_image",
    "write_file",
    "apply_patch",
)
"""All tools, in the order in which they are listed."""

_TITLES: Final = {
    "exec_command": "Run a command",
    "write_stdin": "Send input to a command, or poll it",
    "read_output": "Read output of a command",
    "list_sessions": "List running commands",
    "kill_session": "Kill a command",
    "read_file": "Read a file",
    "view_image": "Look at an image",
    "write_file": "Write a file",
    "apply_patch": "Change files by a patch",
}


def described_tools(options: ServerOptions, tools: UnifiedExec, *, ruled: bool) -> list[Tool]:
    """
    Return all tools, for `tools/list`.

    Args:
        options: What commands may do.
        tools: Those of any principal.
        ruled: True if there are rules, which may let commands out of their sandbox.
    """
    described: dict[str, dict[str, Any]] = {
        str(each["name"]): each for each in tools.schemas("mcp")
    }
    described |= {each["name"]: each for each in _OWN}
    for name in ("exec_command", "write_stdin"):
        described[name] = _with_notes(described[name])
    return [
        Tool.model_validate(
            {
                **described[name],
                "title": _TITLES[name],
                "annotations": _annotations(name, options, ruled).model_dump(by_alias=True),
            }
        )
        for name in NAMES
        if name in described
    ]


def _with_notes(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool whose result has notes in addition to what the contract has."""
    note = _object(
        ["kind", "text"],
        kind=_text("Its subject, such as `denied`, `network`, `limit` or `cut`."),
        text=_text("What happened, and what to do about it."),
    )
    notes = {"type": "array", "items": note, "description": "Notes on the result."}
    result = tool["outputSchema"]
    return {
        **tool,
        "outputSchema": {**result, "properties": {**result["properties"], "notes": notes}},
    }


def _annotations(name: str, options: ServerOptions, ruled: bool) -> ToolAnnotations:
    """Return what a tool may do at worst: clients decide by it whether to ask."""
    if name in ("read_output", "list_sessions", "read_file", "view_image"):
        return ToolAnnotations(
            read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        )
    if name in ("write_file", "kill_session", "apply_patch"):
        return ToolAnnotations(
            read_only_hint=False,
            destructive_hint=True,
            idempotent_hint=name != "apply_patch",
            open_world_hint=False,
        )
    # A command can do what its sandbox lets it do, and what somebody may let it do besides.
    locked = options.asks_nobody and not ruled
    harmless = locked and options.sandbox == "read-only"
    offline = locked and options.sandbox in ("read-only", "workspace-write")
    return ToolAnnotations(
        read_only_hint=harmless,
        destructive_hint=not harmless,
        idempotent_hint=False,
        open_world_hint=not offline,
    )


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "integer", "description": description, **more}


_SESSION: Final = _object(
    ["session_id", "command", "cwd", "tty", "environment_id"],
    session_id=_number("Number of the session."),
    command=_text("The script that it runs."),
    cwd=_text("Its folder."),
    tty={"type": "boolean", "description": "Whether it has a terminal."},
    environment_id=_text("Where it runs."),
    pid=_number("Its process id there."),
)

_APPLY_PATCH: Final = """\
Add, change, rename and delete text files by a patch: all of it is applied, or nothing.

The patch begins with the line `*** Begin Patch` and ends with `*** End Patch`. Between them, for\
 each file one of
`*** Add File: PATH` and its lines, each behind a `+`;
`*** Delete File: PATH`;
`*** Update File: PATH`, possibly `*** Move to: PATH`, and chunks: `@@` with a line to look for\
 first, if that is needed, then lines of context behind a blank, removed ones behind a `-`, and\
 new ones behind a `+`.\
"""

_OWN: Final[list[dict[str, Any]]] = [
    {
        "name": "list_sessions",
        "description": "List the commands that still run, with the numbers of their sessions.",
        "inputSchema": _object([]),
        "outputSchema": _object(["sessions"], sessions={"type": "array", "items": _SESSION}),
    },
    {
        "name": "kill_session",
        "description": "Kill a running command and everything that it started.",
        "inputSchema": _object(["session_id"], session_id=_number("Number of the session.")),
        "outputSchema": _object(["session_id"], session_id=_number("Number of the session.")),
    },
    {
        "name": "read_file",
        "description": "Read a text file, as a whole or some of its lines.",
        "inputSchema": _object(
            ["path"],
            path=_text("The file, absolute or relative to the default folder."),
            offset=_number("First line to read, counted from 1. Default: 1.", minimum=1),
            limit=_number("Lines to read at most. Default: all.", minimum=1),
        ),
        "outputSchema": _object(
            ["path", "content", "total_lines", "total_bytes"],
            path=_text("The file, as it was asked for."),
            content=_text("The lines that were asked for."),
            total_lines=_number("Lines of the whole file."),
            total_bytes=_number("Bytes of the whole file."),
            next_line=_number("The line to go on with, if there is more."),
            line_cut={"type": "boolean", "description": "True if the line is too long to show."},
        ),
    },
    {
        "name": "write_file",
        "description": (
            "Write a text file as a whole: it is replaced in one step, or made together with the"
            " folders above it."
        ),
        "inputSchema": _object(
            ["path", "content"],
            path=_text("The file, absolute or relative to the default folder."),
            content=_text("All of its content."),
        ),
        "outputSchema": _object(
            ["path", "bytes_written"],
            path=_text("The file, as it was asked for."),
            bytes_written=_number("Bytes of its content."),
        ),
    },
    {
        "name": "apply_patch",
        "description": _APPLY_PATCH,
        "inputSchema": _object(
            ["input"],
            input=_text("The patch, from `*** Begin Patch` to `*** End Patch`."),
            workdir=_text(
                "Where relative paths start, absolute or relative to the default folder."
                " Default: the default folder."
            ),
        ),
        "outputSchema": _object(
            ["changes"],
            changes={
                "type": "array",
                "items": _object(
                    ["kind", "path"],
                    kind={"type": "string", "enum": ["add", "update", "delete"]},
                    path=_text("The file, absolute."),
                    move_to=_text("What it was renamed to."),
                ),
            },
        ),
    },
]
