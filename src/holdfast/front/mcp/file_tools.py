"""The tools `read_file`, `write_file` and `apply_patch`, on the files of an environment."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec

from holdfast.agent.unified_exec.tools import UnifiedExec
from holdfast.base.errors import HoldfastError
from holdfast.environments.environment import Environment

__all__ = [
    "ApplyPatch",
    "FileError",
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


class FileError(HoldfastError):
    """A call of a file tool cannot be done; the model reads the text."""


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
        FileError: It was not applied.
    """
    try:
        result = await tools.apply_patch(wanted.input, workdir=wanted.workdir, call_id=call_id)
    except HoldfastError as error:
        raise FileError(str(error)) from error
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
        FileError: It cannot be read, is too large, or is no text.
    """
    _check_path(wanted.path)
    try:
        size = (await files.files.stat(wanted.path)).size
        if size > LARGEST:
            raise FileError(
                f"{wanted.path} has {size} bytes, more than the {LARGEST} that read_file takes:"
                " use exec_command to look at a part of it"
            )
        data = await files.files.read_bytes(wanted.path)
        # The file has grown, or is one without a known size, such as in `/proc`.
        if len(data) > LARGEST:
            raise FileError(f"{wanted.path} has more than the {LARGEST} bytes that read_file takes")
    except FileError:
        raise
    except HoldfastError as error:
        raise _refused("read", wanted.path, error) from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FileError(
            f"{wanted.path} is no text: byte {error.start} is not UTF-8; it has {len(data)} bytes"
        ) from error
    # Other requests go on while a large file is looked through.
    work = asyncio.to_thread if len(data) > _SMALL else _at_once
    found: dict[str, Any] = await work(_page, text, wanted)
    return {"path": wanted.path, **found, "total_bytes": len(data)}


async def _at_once(function: Callable[..., dict[str, Any]], *arguments: object) -> dict[str, Any]:
    return function(*arguments)


def _page(text: str, wanted: ReadFileArguments) -> dict[str, Any]:
    """Return the lines that were asked for, as many as fit into one answer."""
    # Not `splitlines`: a line ends with a newline, for editors and compilers.
    lines = text.split("\n")
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
    if shown and (end < len(lines) or text.endswith("\n")) and room >= 0:
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
        FileError: It cannot be written; it is as it was.
    """
    _check_path(wanted.path)
    try:
        data = wanted.content.encode()
    except UnicodeEncodeError as error:
        raise FileError(f"content is no text: half a character at {error.start}") from error
    try:
        await files.files.write(wanted.path, data, parents=True)
    except HoldfastError as error:
        raise _refused("write", wanted.path, error) from error
    return {"path": wanted.path, "bytes_written": len(data)}


def _check_path(path: str) -> None:
    if not path:
        raise FileError("path is empty")
    # The kernel takes no longer one. A path of megabytes would be worked on for seconds.
    if len(path) > PATH_MAX:
        raise FileError(f"path has {len(path)} characters, more than the {PATH_MAX} of a path")
    if "\0" in path:
        raise FileError("path has a NUL character, which no file name has")


def _refused(verb: str, path: str, error: HoldfastError) -> FileError:
    """Return the error for the model, which names the file once."""
    reason = str(error)
    for inner in ("look at", "read", "write"):
        # The environment names it as well, by the operation of its own.
        reason = reason.removeprefix(f"cannot {inner} {path}: ")
    return FileError(f"cannot {verb} {path}: {reason}")
