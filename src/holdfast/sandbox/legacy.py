"""Sandbox policies as older clients write them, turned into profiles (sandbox spec 3.7)."""

from __future__ import annotations

from typing import Literal, TypeAlias, assert_never

from holdfast.protocol.base import Wire
from holdfast.protocol.sandbox import (
    DisabledProfile,
    ExternalProfile,
    FileEntry,
    ManagedProfile,
    Network,
    PermissionProfile,
    RestrictedFiles,
)
from holdfast.sandbox.disk import HOST, Disk
from holdfast.sandbox.names import (
    SKIPPED_NAMES,
    path_entry,
    project_entries,
    special_entry,
)

__all__ = [
    "DangerFullAccess",
    "ExternalSandbox",
    "LegacyPolicy",
    "ReadOnly",
    "WorkspaceWrite",
    "from_legacy",
]


class ReadOnly(Wire, frozen=True, kw_only=True, tag_field="type", tag="readOnly"):
    network_access: bool = False


class WorkspaceWrite(Wire, frozen=True, kw_only=True, tag_field="type", tag="workspaceWrite"):
    writable_roots: tuple[str, ...] = ()
    """Native paths, beside the project roots."""
    network_access: bool = False
    exclude_tmpdir_env_var: bool = False
    exclude_slash_tmp: bool = False


class DangerFullAccess(Wire, frozen=True, kw_only=True, tag_field="type", tag="dangerFullAccess"):
    pass


class ExternalSandbox(Wire, frozen=True, kw_only=True, tag_field="type", tag="externalSandbox"):
    network_access: Literal["restricted", "enabled"] = "restricted"


LegacyPolicy: TypeAlias = ReadOnly | WorkspaceWrite | DangerFullAccess | ExternalSandbox


def from_legacy(policy: LegacyPolicy, *, disk: Disk = HOST) -> PermissionProfile:
    """The profile that means the same."""
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
    for root in policy.writable_roots:
        inside = (f"{root.rstrip('/')}/{name}" for name in SKIPPED_NAMES)
        entries += (path_entry(path, "read") for path in inside if disk.kind(path) is not None)
    return entries
