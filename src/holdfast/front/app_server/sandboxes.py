"""The sandbox of a command: policies, named profiles, and the default [app-server.profiles]."""

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidRequest, OperationFailed
from holdfast.base.system_text import system_text
from holdfast.engine.process.start_threads import call_in_daemon
from holdfast.engine.sandbox.policy.disk import Seen
from holdfast.engine.sandbox.profile.builtin import named_profile
from holdfast.engine.sandbox.profile.legacy import from_legacy
from holdfast.environments.environment import Environment
from holdfast.wire.protocol.command_exec import LegacyPolicy, WorkspaceWrite
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import DisabledProfile, PermissionProfile, SandboxContext

__all__ = ["SandboxProfiles"]

# Names of the protocol for built-in profiles.
_BUILTIN = {
    ":read-only": "read-only",
    ":workspace": "workspace-write",
    ":danger-full-access": "disabled",
}


@dataclass(frozen=True, kw_only=True)
class SandboxProfiles:
    """The profiles that a server knows."""

    default: PermissionProfile = field(default_factory=lambda: named_profile("read-only"))
    """Profile of a command that names none."""
    named: Mapping[str, PermissionProfile] = field(default_factory=dict)
    """Profiles besides the built-in ones, whose names begin with a colon."""

    async def context(
        self,
        environment: Environment,
        *,
        policy: LegacyPolicy | None,
        profile: str | None,
        cwd: PathUri,
    ) -> SandboxContext | None:
        """
        Return the sandbox of a command; None for no sandbox.

        Args:
            environment: The environment it will run in.
            policy: The policy of an older client.
            profile: The name of a profile.
            cwd: The directory of the command. A named profile applies to it, everything else to
                the directory of the environment.

        Raises:
            InvalidRequest: There is no such profile.
            OperationFailed: A path of a policy cannot be inspected.
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
        # The remote server protects a project's metadata by itself.
        return from_legacy(policy, disk=_UNSEEN)
    if isinstance(policy, WorkspaceWrite) and policy.writable_roots:
        # In a thread, since a client names these paths and one may be on a dead mount.
        try:
            return await call_in_daemon(lambda: from_legacy(policy))
        except TimeoutError:
            roots = ", ".join(policy.writable_roots)
            reason = system_text(errno.ETIMEDOUT)
            raise OperationFailed(f"exec failed: writableRoots {roots}: {reason}") from None
    return from_legacy(policy)


class _UnseenDisk:
    """The disk of another machine, of which nothing is known."""

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
