"""Converts sandbox policies of older clients into profiles [sandbox.legacy]."""

from __future__ import annotations

from typing import assert_never

from holdfast.engine.sandbox.policy.disk import HOST, Disk
from holdfast.engine.sandbox.profile.builtin import (
    SKIPPED_NAMES,
    path_entry,
    project_entries,
    special_entry,
)
from holdfast.wire.protocol.command_exec import (
    DangerFullAccess,
    ExternalSandbox,
    LegacyPolicy,
    ReadOnly,
    WorkspaceWrite,
)
from holdfast.wire.protocol.sandbox import (
    DisabledProfile,
    ExternalProfile,
    FileEntry,
    ManagedProfile,
    Network,
    PermissionProfile,
    RestrictedFiles,
)

__all__ = ["from_legacy"]


def from_legacy(policy: LegacyPolicy, *, disk: Disk = HOST) -> PermissionProfile:
    """Return the profile that is equivalent to a legacy policy."""
    match policy:
        case DangerFullAccess():
            return DisabledProfile()
        case ExternalSandbox():
            return ExternalProfile(network=policy.network_access)
        case ReadOnly():
            entries = [special_entry("root", "read")]
        case WorkspaceWrite():
            entries = _workspace_entries(policy, disk)
        case _:
            assert_never(policy)
    network: Network = "enabled" if policy.network_access else "restricted"
    return ManagedProfile(file_system=RestrictedFiles(entries=tuple(entries)), network=network)


def _workspace_entries(policy: WorkspaceWrite, disk: Disk) -> list[FileEntry]:
    entries = [special_entry("root", "read"), special_entry("project_roots", "write")]
    if not policy.exclude_slash_tmp:
        entries.append(special_entry("slash_tmp", "write"))
    if not policy.exclude_tmpdir_env_var:
        entries.append(special_entry("tmpdir", "write"))
    entries += (path_entry(root, "write") for root in policy.writable_roots)
    entries += project_entries()
    # A missing name needs no entry: it is protected as a name of a writable root anyway.
    for root in policy.writable_roots:
        inside = (f"{root.rstrip('/')}/{name}" for name in SKIPPED_NAMES)
        entries += (path_entry(path, "read") for path in inside if disk.kind(path) is not None)
    return entries
