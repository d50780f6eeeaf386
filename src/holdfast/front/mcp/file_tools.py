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

# Maximum bytes of a file to read; commands can show parts of a larger one.
LARGEST: Final = 32 << 20

# Maximum bytes of a file that are searched on the event loop.
_SMALL: Final = 1 << 20

# Maximum characters of a path: the kernel's `PATH_MAX`, in bytes.
PATH_MAX: Final = 4_096

# Maximum characters of a result; further lines are read by their numbers.
PAGE: Final = 100_000


class ReadFileArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of `read_file`."""

    path: str
    offset: Annotated[int, msgspec.Meta(ge=1)] = 1
    """First line, counted from 1."""
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Maximum number of lines."""


class ApplyPatch(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of `apply_patch`."""

    input: str
    """The patch."""
    workdir: str | None = None


class WriteFile(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of `write_file`."""

    path: str
    content: str


async def apply_patch(tools: UnifiedExec, wanted: ApplyPatch, call_id: str) -> dict[str, Any]:
    """
    Apply a patch as a whole or not at all.

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
    Return the text of a file, or the requested lines.

    Raises:
        ToolFailed: It cannot be read, is too large, or is not text.
    """
    _check_path(wanted.path)
    try:
        size = (await files.files.stat(wanted.path)).size
        if size > LARGEST:
            raise ToolFailed(
                f"{wanted.path} has {size} bytes, more than the limit of {LARGEST} of read_file:"
                " use exec_command to look at a part of it"
            )
        data = await files.files.read_bytes(wanted.path)
        # The file has grown, or has no known size, as in `/proc`.
        if len(data) > LARGEST:
            raise ToolFailed(f"{wanted.path} has more than {LARGEST} bytes, the limit of read_file")
    except ToolFailed:
        raise
    except HoldfastError as error:
        raise _refused("read", wanted.path, error) from error
    try:
        content = data.decode()
    except UnicodeDecodeError as error:
        raise ToolFailed(
            f"{wanted.path} is not text: byte {error.start} is not UTF-8; it has {len(data)} bytes"
        ) from error
    # Searching a large file must not delay other requests.
    work = asyncio.to_thread if len(data) > _SMALL else _at_once
    found: dict[str, Any] = await work(_page, content, wanted)
    return {"path": wanted.path, **found, "total_bytes": len(data)}


async def _at_once(function: Callable[..., dict[str, Any]], *arguments: object) -> dict[str, Any]:
    return function(*arguments)


def _page(whole: str, wanted: ReadFileArguments) -> dict[str, Any]:
    """Return the requested lines, as many as fit into a result."""
    # Not `splitlines`: like editors and compilers, count newlines only.
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
    Replace a file as a whole, or create it and its parent directories.

    Raises:
        ToolFailed: It cannot be written, and is unchanged.
    """
    _check_path(wanted.path)
    try:
        data = wanted.content.encode()
    except UnicodeEncodeError as error:
        raise ToolFailed(f"content is not text: half a character at {error.start}") from error
    try:
        await files.files.write(wanted.path, data, parents=True)
    except HoldfastError as error:
        raise _refused("write", wanted.path, error) from error
    return {"path": wanted.path, "bytes_written": len(data)}


def _check_path(path: str) -> None:
    if not path:
        raise ToolFailed("path is empty")
    # The kernel accepts no longer path, and one of megabytes would take seconds to process.
    if len(path) > PATH_MAX:
        raise ToolFailed(f"path has {len(path)} characters, more than the limit of {PATH_MAX}")
    if "\0" in path:
        raise ToolFailed("path has a NUL character, which file names cannot contain")


def _refused(verb: str, path: str, error: HoldfastError) -> ToolFailed:
    """Return the error for the model, naming the file once."""
    reason = str(error)
    for inner in ("look at", "read", "write"):
        # The environment also names it, with its own name for the operation.
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
    description="Read a text file, or some of its lines.",
    arguments=object_of(
        ["path"],
        path=text("The file, absolute or relative to the default directory."),
        offset=number("First line to read, counted from 1. Default: 1.", minimum=1),
        limit=number("Maximum number of lines. Default: all.", minimum=1),
    ),
    result=object_of(
        ["path", "content", "total_lines", "total_bytes"],
        path=text("The file, as requested."),
        content=text("The requested lines."),
        total_lines=number("Number of lines of the file."),
        total_bytes=number("Size of the file in bytes."),
        next_line=number("The next line to read, if there are more."),
        line_cut={"type": "boolean", "description": "True if the line is too long to show."},
    ),
)

WRITE_FILE: Final = McpTool(
    name="write_file",
    title="Write a file",
    effect=Effect.REPLACES,
    call=_write,
    description=(
        "Write a whole text file: it is replaced atomically, or created together with its"
        " parent directories."
    ),
    arguments=object_of(
        ["path", "content"],
        path=text("The file, absolute or relative to the default directory."),
        content=text("Its whole content."),
    ),
    result=object_of(
        ["path", "bytes_written"],
        path=text("The file, as requested."),
        bytes_written=number("Size of its content in bytes."),
    ),
)

_PATCH_FORMAT: Final = """\
Add, change, rename and delete text files with a patch, which is applied as a whole or not at all.

The patch begins with the line `*** Begin Patch` and ends with `*** End Patch`. Between them, each\
file has one of
`*** Add File: PATH` and its lines, each after a `+`;
`*** Delete File: PATH`;
`*** Update File: PATH`, possibly `*** Move to: PATH`, and chunks: `@@`, with a line to search for\
first if needed, then context lines after a space, removed lines after a `-`, and new lines after\
a `+`.\
"""

APPLY_PATCH: Final = McpTool(
    name="apply_patch",
    title="Change files with a patch",
    effect=Effect.CHANGES,
    call=_patch,
    description=_PATCH_FORMAT,
    arguments=object_of(
        ["input"],
        input=text("The patch, from `*** Begin Patch` to `*** End Patch`."),
        workdir=text(
            "Directory for relative paths, absolute or relative to the default directory."
            " Default: the default directory."
        ),
    ),
    result=object_of(
        ["changes"],
        changes={
            "type": "array",
            "items": object_of(
                ["kind", "path"],
                kind={"type": "string", "enum": ["add", "update", "delete"]},
                path=text("Absolute path of the file."),
                move_to=text("Its new path, if renamed."),
            ),
        },
    ),
)
