"""Profiles by name, and the context that carries one (docs/protocol.md#sandboxes)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, Literal, get_args

from holdfast.errors import InvalidParams
from holdfast.protocol.paths import PathUri
from holdfast.protocol.sandbox import (
    Access,
    DisabledProfile,
    ExternalProfile,
    FileEntry,
    ManagedProfile,
    Network,
    PermissionProfile,
    PlainPath,
    RestrictedFiles,
    SandboxContext,
    SpecialKind,
    SpecialPath,
    SpecialValue,
)
from holdfast.suggestions import did_you_mean

__all__ = [
    "SKIPPED_NAMES",
    "ProfileName",
    "named_profile",
    "path_entry",
    "sandbox_context",
    "special_entry",
]

ProfileName = Literal["read-only", "workspace-write", "disabled"]

SKIPPED_NAMES: Final = (".git", ".agents", ".codex")
"""What a client names explicitly. Any server protects these and `.aws` by itself."""


def special_entry(kind: SpecialKind, access: Access, *, subpath: str | None = None) -> FileEntry:
    """A rule for a place that is known by a name."""
    return FileEntry(
        path=SpecialPath(value=SpecialValue(kind=kind, subpath=subpath)), access=access
    )


def path_entry(path: str | os.PathLike[str], access: Access) -> FileEntry:
    """A rule for an absolute path."""
    return FileEntry(path=PlainPath(path=PathUri.from_path(path)), access=access)


def project_entries() -> tuple[FileEntry, ...]:
    """What clients say about the metadata of each project root."""
    return tuple(
        FileEntry(
            path=SpecialPath(value=SpecialValue(kind="project_roots", subpath=name)),
            access="read",
            missing_path_behavior="skip",
        )
        for name in SKIPPED_NAMES
    )


def named_profile(name: str, *, network: Network = "restricted") -> PermissionProfile:
    """
    A profile that has a name.

    `read-only` reads everything and writes nothing; `workspace-write` writes to the
    project roots and to temporary directories as well; `disabled` isolates nothing.

    Raises:
        InvalidParams: There is no such name.
    """
    entries: tuple[FileEntry, ...]
    match name:
        case "disabled":
            return DisabledProfile()
        case "read-only":
            entries = (special_entry("root", "read"),)
        case "workspace-write":
            entries = (
                special_entry("root", "read"),
                special_entry("project_roots", "write"),
                special_entry("slash_tmp", "write"),
                special_entry("tmpdir", "write"),
                *project_entries(),
            )
        case _:
            known = ", ".join(f"`{known}`" for known in get_args(ProfileName))
            meant = did_you_mean(name, get_args(ProfileName))
            raise InvalidParams(f"unknown sandbox profile `{name}`{meant}, expected one of {known}")
    return ManagedProfile(file_system=RestrictedFiles(entries=entries), network=network)


def sandbox_context(
    profile: str | PermissionProfile | SandboxContext,
    *,
    cwd: str | os.PathLike[str],
    roots: Sequence[str | os.PathLike[str]] | None = None,
    network: Network = "restricted",
) -> SandboxContext:
    """
    What goes over the wire for a profile.

    Args:
        profile: Its name, or the profile; a whole context is returned as it is.
        cwd: The command's directory, absolute.
        roots: What `project_roots` stands for; `cwd` unless given.
        network: For a name. Another profile says so itself.

    Raises:
        InvalidParams: There is no such name.
    """
    if isinstance(profile, SandboxContext):
        return profile
    if not isinstance(profile, ManagedProfile | DisabledProfile | ExternalProfile):
        profile = named_profile(profile, network=network)
    return SandboxContext(
        permissions=profile,
        windows_sandbox_level="disabled",
        cwd=PathUri.from_path(cwd),
        workspace_roots=tuple(map(PathUri.from_path, (cwd,) if roots is None else roots)),
    )
