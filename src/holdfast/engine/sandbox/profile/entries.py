"""
Turns the entries of a profile into absolute paths and patterns [sandbox.precedence].

Nothing here looks at the disk. The result depends on the profile and the roots only, and is
the same for every command of a session, so it is cached.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from holdfast.base.dialect import names, texts
from holdfast.base.errors import CannotEnforce, InvalidParams, InvalidPermissionPath
from holdfast.engine.sandbox.profile.globs import Glob, compile_glob
from holdfast.wire.protocol.paths import ForeignPathUri
from holdfast.wire.protocol.sandbox import (
    FileEntry,
    GlobPath,
    ManagedProfile,
    PlainPath,
    RestrictedFiles,
    SandboxContext,
    SpecialPath,
    SpecialValue,
)
from holdfast.wire.protocol.sandbox_directories import policy_directories, sandbox_directories

__all__ = [
    "MAX_PATHS",
    "MAX_WILDCARDS",
    "Allowed",
    "PathRequest",
    "ProfileRequest",
    "read_entries",
    "reads_everything",
    "writes_everything",
]

MAX_PATHS: Final = 1024
"""
Paths and patterns that one profile may name; those in project roots count once per root.

Each path may cost a mount, two descriptors and several system calls for every command.
"""

MAX_WILDCARDS: Final = 1024
"""Wildcards that all patterns of one profile may have: a match takes time for each."""

Allowed: TypeAlias = Literal["read", "write", "deny"]

# Prefix of a pattern that applies to each project root.
_PROJECT_ROOTS: Final = names.PROJECT_ROOTS


class PathRequest(NamedTuple):
    """Access that an entry requests; the path may be missing or lead through links."""

    path: str
    access: Allowed


class ProfileRequest(NamedTuple):
    """Entries of a profile, as absolute paths and patterns."""

    requests: tuple[PathRequest, ...]
    globs: tuple[Glob, ...]
    minimal: bool
    tmpdir: tuple[Allowed, ...]
    """Access to `tmpdir`, once for each entry; its path depends on more than the profile."""
    roots: tuple[str, ...]
    """Project roots."""


@lru_cache(maxsize=256)
def read_entries(context: SandboxContext, cwd: str | None) -> ProfileRequest:
    """
    Return the paths and patterns of a restricted profile.

    Args:
        context: Sandbox context of the request.
        cwd: Working directory of the command; `None` for a file operation.

    Raises:
        InvalidPermissionPath: An entry names a path of another operating system.
        InvalidParams: The working directory or a root does, or is needed and not given; or
            the profile has too many paths.
        CannotEnforce: A pattern cannot be searched for, or a subpath leads out of its root.
    """
    files = _files(context)
    paths = _plain_paths(context, files, cwd)
    # After the plain paths: the protocol reports their errors first.
    base, roots = sandbox_directories(context, cwd)
    _refuse_more(len(roots), MAX_PATHS, "workspace roots")
    requests: list[PathRequest] = []
    globs: list[Glob] = []
    tmpdir: list[Allowed] = []
    minimal = False
    for entry in files.entries:
        # The wire has two names for the same access.
        access: Allowed = "deny" if entry.access == "none" else entry.access
        if isinstance(entry.path, GlobPath):
            # Patterns that do not deny are ignored.
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
        # In the loop, since one entry may stand for a path in each of many roots.
        _refuse_more(len(requests) + len(globs), MAX_PATHS, "paths in its workspace roots")
    _refuse_more(sum(glob.wildcards for glob in globs), MAX_WILDCARDS, "wildcards")
    return ProfileRequest(tuple(requests), tuple(globs), minimal, tuple(tmpdir), roots)


def _refuse_more(count: int, limit: int, what: str) -> None:
    if count > limit:
        raise InvalidParams(f"the sandbox profile has {count:,} {what}: {limit:,} are the most")


@lru_cache(maxsize=256)
def reads_everything(context: SandboxContext) -> bool:
    """
    Return True if a restricted profile lets a file operation read everything.

    An operation that only reads then needs no policy. Not even the working directory and the
    roots have to be paths of this operating system [fs.sandbox.errors].

    Raises:
        InvalidPermissionPath: An entry names a path of another operating system.
        InvalidParams: The working directory is needed and not given, or there are too many
            entries.
    """
    files = _files(context)
    paths = _plain_paths(context, files, None)
    if any(entry.access in {"deny", "none"} for entry in files.entries):
        return False
    # `minimal` and project roots do not matter here: only `/` covers everything.
    return any(
        paths[entry.path] == "/"
        if isinstance(entry.path, PlainPath)
        else isinstance(entry.path, SpecialPath) and entry.path.value.kind == "root"
        for entry in files.entries
    )


def writes_everything(context: SandboxContext) -> bool:
    """
    Return True if a restricted profile certainly lets a command write everything.

    Raises:
        InvalidPermissionPath: See `reads_everything`.
        InvalidParams: See `reads_everything`.
    """
    return reads_everything(context) and all(
        entry.access == "write"
        and (
            isinstance(entry.path, PlainPath)
            or (isinstance(entry.path, SpecialPath) and entry.path.value.kind == "root")
        )
        for entry in _files(context).entries
    )


def _files(context: SandboxContext) -> RestrictedFiles:
    profile = context.permissions
    # Callers handle all other profiles before they ask for entries.
    assert isinstance(profile, ManagedProfile)
    assert isinstance(profile.file_system, RestrictedFiles)
    # Before any work that grows with the number of entries.
    _refuse_more(len(profile.file_system.entries), MAX_PATHS, "entries")
    return profile.file_system


def _plain_paths(
    context: SandboxContext, files: RestrictedFiles, cwd: str | None
) -> dict[PlainPath, str]:
    """Return the paths of plain entries; called first, so that their errors come first."""
    if (
        cwd is None
        and policy_directories(context)[0] is None
        and any(map(_is_dynamic, files.entries))
    ):
        raise InvalidParams(texts.NO_SANDBOX_CWD)
    plain = [entry.path for entry in files.entries if isinstance(entry.path, PlainPath)]
    try:
        return {path: path.path.native for path in plain}
    except ForeignPathUri as error:
        raise InvalidPermissionPath(texts.permission_path(error)) from None


def _is_dynamic(entry: FileEntry) -> bool:
    path = entry.path
    if isinstance(path, GlobPath):
        return not path.pattern.startswith("/")
    return not isinstance(path, PlainPath) and path.value.kind in _OF_PROJECT


# Special paths that stand for the project roots, both with the same meaning.
_OF_PROJECT: Final = frozenset({"project_roots", "current_working_directory"})


def _special(value: SpecialValue, access: Allowed, roots: tuple[str, ...]) -> Iterator[str]:
    if value.kind == "root":
        yield "/"
    elif value.kind == "slash_tmp":
        yield "/tmp"  # noqa: S108 (the path that the profile means)
    elif value.kind in _OF_PROJECT:
        below = value.subpath or ""
        parts = below.split("/")
        leads_out = below.startswith("/") or ".." in parts
        if access == "write" and (leads_out or "." in parts):
            # Such a subpath grants nothing, and is not an error.
            return
        # Without roots the entry stands for no path, so it is not an error.
        if leads_out and roots:
            raise CannotEnforce(
                f"cannot enforce sandbox entry for `{below}`: it is not a path below a project root"
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
