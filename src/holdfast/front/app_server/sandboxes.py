"""The sandbox of a command: policies, named profiles, and the default [app-server.profiles]."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidRequest, OperationFailed
from holdfast.base.system_text import system_text
from holdfast.engine.process.start_threads import call_in_daemon
from holdfast.engine.sandbox.policy.disk import HOST, Disk, Seen
from holdfast.engine.sandbox.profile.builtin import (
    SKIPPED_NAMES,
    named_profile,
    path_entry,
    project_entries,
    special_entry,
)
from holdfast.environments.environment import Environment
from holdfast.wire.protocol.command_exec import (
    DangerFullAccess,
    ExternalSandbox,
    LegacyPolicy,
    ReadOnly,
    WorkspaceWrite,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import (
    DisabledProfile,
    ExternalProfile,
    FileEntry,
    ManagedProfile,
    Network,
    PermissionProfile,
    RestrictedFiles,
    SandboxContext,
)

__all__ = ["SandboxProfiles", "from_legacy"]

# The protocol's names of built-in profiles.
_BUILTIN = {
    ":read-only": "read-only",
    ":workspace": "workspace-write",
    ":danger-full-access": "disabled",
}


@dataclass(frozen=True, kw_only=True)
class SandboxProfiles:
    """The profiles that a server knows."""

    default: PermissionProfile = field(default_factory=lambda: named_profile("read-only"))
    """Profile for commands that name none."""
    named: Mapping[str, PermissionProfile] = field(default_factory=dict)
    """Profiles in addition to the built-in ones, whose names begin with a colon."""

    async def context(
        self,
        environment: Environment,
        *,
        policy: LegacyPolicy | None,
        profile: str | None,
        cwd: PathUri,
    ) -> SandboxContext | None:
        """
        Return the sandbox of a command, or None.

        Args:
            environment: The environment of the command.
            policy: A policy from an older client.
            profile: Name of a profile.
            cwd: Directory of the command. A named profile applies to it, anything else to the
                directory of the environment.

        Raises:
            InvalidRequest: The profile does not exist.
            OperationFailed: A path of the policy cannot be inspected.
        """
        if profile is not None:
            permissions, root = self._find(profile), cwd
        else:
            root = await environment.uri()
            if policy is None:
                permissions = self.default
            else:
                permissions = await _from_policy(policy, here=not environment.is_remote)
        if isinstance(permissions, DisabledProfile):
            return None
        return SandboxContext(
            permissions=permissions,
            windows_sandbox_level="disabled",
            cwd=cwd,
            workspace_roots=(root,),
        )

    def _find(self, name: str) -> PermissionProfile:
        if name in _BUILTIN:
            return named_profile(_BUILTIN[name])
        if name in self.named:
            return self.named[name]
        if name.startswith(":"):
            reason = f"refers to unknown built-in profile `{name}`"
        elif self.named:
            reason = f"refers to undefined profile `{name}`"
        else:
            reason = "requires a `[permissions]` table"
        # Clients know these texts, which mention a configuration that only they have.
        raise InvalidRequest(texts.unknown_profile(reason))


async def _from_policy(policy: LegacyPolicy, *, here: bool) -> PermissionProfile:
    if not here:
        # A remote server itself protects the metadata of a project.
        return from_legacy(policy, disk=_UNSEEN)
    if isinstance(policy, WorkspaceWrite) and policy.writable_roots:
        # In a thread, since the client's paths may be on a dead mount.
        try:
            return await call_in_daemon(lambda: from_legacy(policy))
        except TimeoutError:
            roots = ", ".join(policy.writable_roots)
            reason = system_text(errno.ETIMEDOUT)
            raise OperationFailed(f"exec failed: writableRoots {roots}: {reason}") from None
    return from_legacy(policy)


class _UnseenDisk:
    """The disk of another machine, about which nothing is known."""

    def kind(self, path: str) -> Seen | None:
        return None

    def target(self, path: str) -> str:
        return ""

    def entries(self, path: str) -> Sequence[tuple[str, Seen]]:
        return ()

    def leads_to_file(self, path: str) -> bool:
        return False

    def is_empty(self, path: str) -> bool:
        return False

    def can_create(self, folder: str) -> bool:
        return False

    def sets_group(self, folder: str) -> bool:
        return False

    def text(self, path: str) -> str:
        return ""


_UNSEEN = _UnseenDisk()


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
