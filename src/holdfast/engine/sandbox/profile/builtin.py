"""Named profiles, and the sandbox context that carries a profile (docs/protocol.md#sandboxes)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, Literal, get_args

from holdfast.base.dialect import names
from holdfast.base.errors import InvalidParams
from holdfast.base.suggestions import did_you_mean
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import (
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

__all__ = [
    "SKIPPED_NAMES",
    "ProfileName",
    "named_profile",
    "path_entry",
    "sandbox_context",
    "special_entry",
]

ProfileName = Literal["read-only", "workspace-write", "disabled"]

SKIPPED_NAMES: Final = names.LISTED_NAMES
"""Names that clients list in a profile. Servers protect these and `.aws` in any case."""


def special_entry(kind: SpecialKind, access: Access, *, subpath: str | None = None) -> FileEntry:
    """Return an entry for a special path, such as `project_roots`."""
    return FileEntry(
        path=SpecialPath(value=SpecialValue(kind=kind, subpath=subpath)), access=access
    )


def path_entry(path: str | os.PathLike[str], access: Access) -> FileEntry:
    """Return an entry for an absolute path."""
    return FileEntry(path=PlainPath(path=PathUri.from_path(path)), access=access)


def project_entries() -> tuple[FileEntry, ...]:
    """Return the entries that make the metadata of each project root read-only."""
    return tuple(
        FileEntry(
            path=SpecialPath(value=SpecialValue(kind="project_roots", subpath=name)),
            access="read",
            # For other servers; Holdfast protects missing names in any case.
            missing_path_behavior="skip",
        )
        for name in SKIPPED_NAMES
    )


def named_profile(name: str, *, network: Network = "restricted") -> PermissionProfile:
    """
    Return the profile with a name.

    `read-only` reads everything and writes nothing. `workspace-write` also writes to the
    project roots and to temporary directories. `disabled` isolates nothing.

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
    Return the sandbox context of a request for a profile.

    Args:
        profile: Name of a profile, a profile, or a whole context, which is returned unchanged.
        cwd: Absolute working directory of the command.
        roots: Paths that `project_roots` stands for; `cwd` unless given.
        network: Network access for a profile given by name; other profiles have their own.

    Raises:
        InvalidParams: There is no such name.
    """
    if isinstance(profile, SandboxContext):
        return profile
    # Anything else is a name; `named_profile` reports an unknown one with a suggestion.
    if not isinstance(profile, ManagedProfile | DisabledProfile | ExternalProfile):
        profile = named_profile(profile, network=network)
    return SandboxContext(
        permissions=profile,
        # A required member of the protocol, for servers on Windows only.
        windows_sandbox_level="disabled",
        cwd=PathUri.from_path(cwd),
        workspace_roots=tuple(map(PathUri.from_path, (cwd,) if roots is None else roots)),
    )
