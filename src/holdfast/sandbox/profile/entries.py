"""
What the entries of a profile name, before any look at the disk [sandbox.precedence].

Special places become paths and patterns become absolute. What comes out depends on the
profile and the roots alone, is the same for every command of a session, and is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from holdfast.errors import CannotEnforce, InvalidParams, InvalidPermissionPath
from holdfast.protocol.paths import ForeignPathUri, PathUri
from holdfast.protocol.sandbox import (
    FileEntry,
    GlobPath,
    ManagedProfile,
    PlainPath,
    RestrictedFiles,
    SandboxContext,
    SpecialPath,
    SpecialValue,
)
from holdfast.sandbox.profile.globs import Glob, compile_glob

__all__ = [
    "MAX_PLACES",
    "MAX_WILDCARDS",
    "Allowed",
    "PathRequest",
    "ProfileRequest",
    "check_places",
    "read_entries",
    "reads_everything",
]

MAX_PLACES: Final = 1024
"""
Paths and patterns that one profile may name, those of each project root counted apart.

Each path may cost a mount, two descriptors and a few looks at the disk for every command.
"""

MAX_WILDCARDS: Final = 1024
"""Of all patterns of one profile: so many may be followed at once when a path is compared."""

Allowed: TypeAlias = Literal["read", "write", "deny"]

_PROJECT_ROOTS: Final = "codex-project-roots://"
"""Before a pattern: it is looked for in each project root."""


class PathRequest(NamedTuple):
    """An entry with its place worked out; the path may be missing or lead through links."""

    path: str
    access: Allowed


class ProfileRequest(NamedTuple):
    requests: tuple[PathRequest, ...]
    globs: tuple[Glob, ...]
    minimal: bool
    tmpdir: tuple[Allowed, ...]
    """What entries say about it; where it is depends on more than the profile."""
    roots: tuple[str, ...]


@lru_cache(maxsize=256)
def read_entries(context: SandboxContext, cwd: str | None) -> ProfileRequest:
    """
    Name the places of a restricted profile.

    Args:
        cwd: The directory of the command; `None` for an operation on files.

    Raises:
        InvalidPermissionPath: An entry names a path of another system.
        InvalidParams: The directory or a root does, or they are needed and not given; or
            the profile names too much.
        CannotEnforce: A pattern cannot be looked for, or a part of a root is none.
    """
    files = _files(context)
    paths = _plain_paths(context, files, cwd)
    base, roots = _places(context, cwd)
    _refuse_more(len(roots), MAX_PLACES, "workspace roots")
    requests: list[PathRequest] = []
    globs: list[Glob] = []
    tmpdir: list[Allowed] = []
    minimal = False
    for entry in files.entries:
        access: Allowed = "deny" if entry.access == "none" else entry.access
        if isinstance(entry.path, GlobPath):
            # Other patterns mean nothing, and the real server says so by ignoring them.
            if access == "deny":
                depth = files.glob_scan_max_depth
                patterns = _absolute(entry.path.pattern, base, roots)
                globs += (compile_glob(pattern, depth) for pattern in patterns)
        elif isinstance(entry.path, PlainPath):
            requests.append(PathRequest(paths[entry.path], access))
        elif entry.path.value.kind == "minimal":
            minimal |= access != "deny"
        elif entry.path.value.kind == "tmpdir":
            tmpdir.append(access)
        else:
            requests += (
                PathRequest(path, access) for path in _special(entry.path.value, access, roots)
            )
        _refuse_more(len(requests) + len(globs), MAX_PLACES, "places in its workspace roots")
    _refuse_more(sum(glob.wildcards for glob in globs), MAX_WILDCARDS, "wildcards")
    return ProfileRequest(tuple(requests), tuple(globs), minimal, tuple(tmpdir), roots)


def _refuse_more(count: int, limit: int, what: str) -> None:
    if count > limit:
        raise InvalidParams(f"the sandbox profile has {count:,} {what}: {limit:,} are the most")


@lru_cache(maxsize=256)
def reads_everything(context: SandboxContext) -> bool:
    """
    Whether a restricted profile, of an operation on files, leaves nothing unreadable.

    Whoever only reads need not ask then what else it says: not even the directory and
    the roots have to be of this system, as in the real server [fs.sandbox.errors].

    Raises:
        InvalidPermissionPath: An entry names a path of another system.
        InvalidParams: The directory is needed and not given, or there are too many entries.
    """
    files = _files(context)
    paths = _plain_paths(context, files, None)
    if any(entry.access in {"deny", "none"} for entry in files.entries):
        return False
    return any(
        paths[entry.path] == "/"
        if isinstance(entry.path, PlainPath)
        else isinstance(entry.path, SpecialPath) and entry.path.value.kind == "root"
        for entry in files.entries
    )


def check_places(context: SandboxContext) -> None:
    """
    See that a command's context is of this system, even where its profile asks for nothing.

    Raises:
        InvalidParams: The directory or a root is of another one.
    """
    _places(context, "/")


def _files(context: SandboxContext) -> RestrictedFiles:
    profile = context.permissions
    assert isinstance(profile, ManagedProfile)  # the caller asked
    assert isinstance(profile.file_system, RestrictedFiles)  # likewise
    _refuse_more(len(profile.file_system.entries), MAX_PLACES, "entries")
    return profile.file_system


def _plain_paths(
    context: SandboxContext, files: RestrictedFiles, cwd: str | None
) -> dict[PlainPath, str]:
    """The paths that entries name, before anything else is looked at."""
    if cwd is None and _policy_places(context)[0] is None and any(map(_is_dynamic, files.entries)):
        raise InvalidParams("file system sandbox context with dynamic permissions requires cwd")
    plain = [entry.path for entry in files.entries if isinstance(entry.path, PlainPath)]
    try:
        return {path: path.path.native for path in plain}
    except ForeignPathUri as error:
        raise InvalidPermissionPath(f"invalid sandbox permission path URI: {error}") from None


def _places(context: SandboxContext, cwd: str | None) -> tuple[str, tuple[str, ...]]:
    """
    The directory that relative patterns start from, and the project roots.

    The real server words it differently for commands and for operations on files.
    """
    base, roots = _policy_places(context)
    try:
        start = base.native if base is not None else cwd or "/"
    except ForeignPathUri as error:
        if cwd is None:
            raise InvalidPermissionPath(str(error)) from None
        raise _foreign(base, "cwd", error) from None
    found: list[str] = []
    for root in roots:
        try:
            found.append(root.native)
        except ForeignPathUri as error:
            if cwd is None:
                raise InvalidPermissionPath(
                    "file system sandbox workspace root is not native to this exec-server "
                    f"host: {error}"
                ) from None
            raise _foreign(root, "workspace root", error) from None
    return start, tuple(found)


def _foreign(uri: PathUri | None, what: str, error: ForeignPathUri) -> InvalidParams:
    return InvalidParams(
        f"sandbox {what} URI `{uri}` is not valid on this exec-server host: {error}"
    )


def _policy_places(context: SandboxContext) -> tuple[PathUri | None, tuple[PathUri, ...]]:
    if context.policy_context is None:
        return context.cwd, context.workspace_roots
    # It takes the place of both members, not only of the one it names.
    return context.policy_context.cwd or context.cwd, context.policy_context.workspace_roots


def _is_dynamic(entry: FileEntry) -> bool:
    path = entry.path
    if isinstance(path, GlobPath):
        return not path.pattern.startswith("/")
    return not isinstance(path, PlainPath) and path.value.kind in _OF_PROJECT


_OF_PROJECT: Final = frozenset({"project_roots", "current_working_directory"})


def _special(value: SpecialValue, access: Allowed, roots: tuple[str, ...]) -> Iterator[str]:
    if value.kind == "root":
        yield "/"
    elif value.kind == "slash_tmp":
        yield "/tmp"  # noqa: S108 (the place that the profile means)
    elif value.kind in _OF_PROJECT:
        below = value.subpath or ""
        parts = below.split("/")
        leads_out = below.startswith("/") or ".." in parts
        if access == "write" and (leads_out or "." in parts):
            return  # as the real server does: nothing is granted
        if leads_out and roots:
            raise CannotEnforce(
                f"cannot enforce sandbox entry for `{below}`: it is no path below a project root"
            )
        below = "/".join(part for part in parts if part not in {"", "."})
        for root in roots:
            yield f"{root.rstrip('/')}/{below}".rstrip("/") or "/"


def _absolute(pattern: str, base: str, roots: tuple[str, ...]) -> Iterator[str]:
    if pattern.startswith(_PROJECT_ROOTS):
        below = pattern.removeprefix(_PROJECT_ROOTS).lstrip("/")
        yield from (f"{root.rstrip('/')}/{below}" for root in roots)
    elif pattern.startswith("/"):
        yield pattern
    else:
        yield f"{base.rstrip('/')}/{pattern}"
