"""The tools `read_file`, `write_file` and `apply_patch`, on the files of an environment."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from mcp_types import CallToolResult

from holdfast.agent.unified_exec.tools import UnifiedExec
from holdfast.base.errors import HoldfastError
from holdfast.environments.environment import Environment
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

__all__ = [
    "APPLY_PATCH",
    "READ_FILE",
    "WRITE_FILE",
    "ApplyPatch",
    "ReadFileArguments",
    "WriteFile",
    "apply_patch",
    "read_file",
    "write_file",
]

# Bytes of a file that is read; of a larger one, commands show parts.
LARGEST: Final = 32 << 20

# Bytes of a file that is looked through at once.
_SMALL: Final = 1 << 20

# Characters of a path: `PATH_MAX` of the kernel, in bytes.
PATH_MAX: Final = 4_096

# Characters of one answer; what is behind them is read by its line numbers.
PAGE: Final = 100_000


class ReadFileArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `read_file`."""

    path: str
    offset: Annotated[int, msgspec.Meta(ge=1)] = 1
    """The first line, from 1."""
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Lines at most."""


class ApplyPatch(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `apply_patch`."""

    input: str
    """The patch."""
    workdir: str | None = None


class WriteFile(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `write_file`."""

    path: str
    content: str


async def apply_patch(tools: UnifiedExec, wanted: ApplyPatch, call_id: str) -> dict[str, Any]:
    """
    Apply a patch, all of it or nothing.

    Raises:
        ToolFailed: It was not applied.
    """
    try:
        result = await tools.apply_patch(wanted.input, workdir=wanted.workdir, call_id=call_id)
    except HoldfastError as error:
        raise ToolFailed(str(error)) from error
    # Set, since the patch was applied.
    assert result.patch is not None
    changes = []
    for change in result.patch.changes:
        changes.append({"kind": change.kind, "path": change.path.native})
        if change.move_to is not None:
            changes[-1]["move_to"] = change.move_to.native
    return {"output": result.output, "changes": changes}


async def read_file(files: Environment, wanted: ReadFileArguments) -> dict[str, Any]:
    """
    Return the text of a file, or the lines that were asked for.

    Raises:
        ToolFailed: It cannot be read, is too large, or is no text.
    """
    _check_path(wanted.path)
    try:
        size = (await files.files.stat(wanted.path)).size
        if size > LARGEST:
            raise ToolFailed(
                f"{wanted.path} has {size} bytes, more than the {LARGEST} that read_file takes:"
                " use exec_command to look at a part of it"
            )
        data = await files.files.read_bytes(wanted.path)
        # The file has grown, or is one without a known size, such as in `/proc`.
        if len(data) > LARGEST:
            raise ToolFailed(
                f"{wanted.path} has more than the {LARGEST} bytes that read_file takes"
            )
    except ToolFailed:
        raise
    except HoldfastError as error:
        raise _refused("read", wanted.path, error) from error
    try:
        content = data.decode()
    except UnicodeDecodeError as error:
        raise ToolFailed(
            f"{wanted.path} is no text: byte {error.start} is not UTF-8; it has {len(data)} bytes"
        ) from error
    # Other requests go on while a large file is looked through.
    work = asyncio.to_thread if len(data) > _SMALL else _at_once
    found: dict[str, Any] = await work(_page, content, wanted)
    return {"path": wanted.path, **found, "total_bytes": len(data)}


async def _at_once(function: Callable[..., dict[str, Any]], *arguments: object) -> dict[str, Any]:
    return function(*arguments)


def _page(whole: str, wanted: ReadFileArguments) -> dict[str, Any]:
    """Return the lines that were asked for, as many as fit into one answer."""
    # Not `splitlines`: a line ends with a newline, for editors and compilers.
    lines = whole.split("\n")
    if not lines[-1]:
        lines.pop()
    first = wanted.offset - 1
    last = len(lines) if wanted.limit is None else min(first + wanted.limit, len(lines))
    shown: list[str] = []
    room = PAGE
    for line in lines[first:last]:
        if len(line) >= room and shown:
            break
        shown.append(line[:room])
        room -= len(line) + 1
    end = first + len(shown)
    content = "\n".join(shown)
    if shown and (end < len(lines) or whole.endswith("\n")) and room >= 0:
        content += "\n"
    found: dict[str, Any] = {"content": content, "total_lines": len(lines)}
    if room < 0:
        found["line_cut"] = True
    if end < len(lines):
        found["next_line"] = end + 1
    return found


async def write_file(files: Environment, wanted: WriteFile) -> dict[str, Any]:
    """
    Replace a file as a whole, or make it and the directories above it.

    Raises:
        ToolFailed: It cannot be written; it is as it was.
    """
    _check_path(wanted.path)
    try:
        data = wanted.content.encode()
    except UnicodeEncodeError as error:
        raise ToolFailed(f"content is no text: half a character at {error.start}") from error
    try:
        await files.files.write(wanted.path, data, parents=True)
    except HoldfastError as error:
        raise _refused("write", wanted.path, error) from error
    return {"path": wanted.path, "bytes_written": len(data)}


def _check_path(path: str) -> None:
    if not path:
        raise ToolFailed("path is empty")
    # The kernel takes no longer one. A path of megabytes would be worked on for seconds.
    if len(path) > PATH_MAX:
        raise ToolFailed(f"path has {len(path)} characters, more than the {PATH_MAX} of a path")
    if "\0" in path:
        raise ToolFailed("path has a NUL character, which no file name has")


def _refused(verb: str, path: str, error: HoldfastError) -> ToolFailed:
    """Return the error for the model, which names the file once."""
    reason = str(error)
    for inner in ("look at", "read", "write"):
        # The environment names it as well, by the operation of its own.
        reason = reason.removeprefix(f"cannot {inner} {path}: ")
    return ToolFailed(f"cannot {verb} {path}: {reason}")


# -- the rows


async def _read(request: ToolRequest) -> CallToolResult:
    wanted = convert(request.arguments, ReadFileArguments)
    found = await read_file(request.principal.environment, wanted)
    return success(found["content"], found)


async def _write(request: ToolRequest) -> CallToolResult:
    wanted = convert(request.arguments, WriteFile)
    made = await write_file(request.principal.environment, wanted)
    return success(f"Wrote {made['bytes_written']} bytes to {made['path']}.", made)


async def _patch(request: ToolRequest) -> CallToolResult:
    wanted = convert(request.arguments, ApplyPatch)
    changed = await apply_patch(request.principal.tools, wanted, request.call_id)
    return success(changed.pop("output"), changed)


READ_FILE: Final = McpTool(
    name="read_file",
    title="Read a file",
    effect=Effect.READS,
    call=_read,
    description="Read a text file, as a whole or some of its lines.",
    arguments=object_of(
        ["path"],
        path=text("The file, absolute or relative to the default folder."),
        offset=number("First line to read, counted from 1. Default: 1.", minimum=1),
        limit=number("Lines to read at most. Default: all.", minimum=1),
    ),
    result=object_of(
        ["path", "content", "total_lines", "total_bytes"],
        path=text("The file, as it was asked for."),
        content=text("The lines that were asked for."),
        total_lines=number("Lines of the whole file."),
        total_bytes=number("Bytes of the whole file."),
        next_line=number("The line to go on with, if there is more."),
        line_cut={"type": "boolean", "description": "True if the line is too long to show."},
    ),
)

WRITE_FILE: Final = McpTool(
    name="write_file",
    title="Write a file",
    effect=Effect.REPLACES,
    call=_write,
    description=(
        "Write a text file as a whole: it is replaced in one step, or made together with the"
        " folders above it."
    ),
    arguments=object_of(
        ["path", "content"],
        path=text("The file, absolute or relative to the default folder."),
        content=text("All of its content."),
    ),
    result=object_of(
        ["path", "bytes_written"],
        path=text("The file, as it was asked for."),
        bytes_written=number("Bytes of its content."),
    ),
)

_PATCH_FORMAT: Final = """\
Add, change, rename and delete text files by a patch: all of it is applied, or nothing.

The patch begins with the line `*** Begin Patch` and ends with `*** End Patch`. Between them, for\
 each file one of
`*** Add File: PATH` and its lines, each behind a `+`;
`*** Delete File: PATH`;
`*** Update File: PATH`, possibly `*** Move to: PATH`, and chunks: `@@` with a line to look for\
 first, if that is needed, then lines of context behind a blank, removed ones behind a `-`, and\
 new ones behind a `+`.\
"""

APPLY_PATCH: Final = McpTool(
    name="apply_patch",
    title="Change files by a patch",
    effect=Effect.CHANGES,
    call=_patch,
    description=_PATCH_FORMAT,
    arguments=object_of(
        ["input"],
        input=text("The patch, from `*** Begin Patch` to `*** End Patch`."),
        workdir=text(
            "Where relative paths start, absolute or relative to the default folder."
            " Default: the default folder."
        ),
    ),
    result=object_of(
        ["changes"],
        changes={
            "type": "array",
            "items": object_of(
                ["kind", "path"],
                kind={"type": "string", "enum": ["add", "update", "delete"]},
                path=text("The file, absolute."),
                move_to=text("What it was renamed to."),
            ),
        },
    ),
)
