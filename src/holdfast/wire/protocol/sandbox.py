"""`sandbox`: the files and network that a process may use (docs/protocol.md#sandboxes)."""

from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec

from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.wire_types import Wire

__all__ = [
    "Access",
    "DisabledProfile",
    "EntryPath",
    "ExternalProfile",
    "FileEntry",
    "FileSystemPermissions",
    "GlobPath",
    "ManagedProfile",
    "Network",
    "PermissionProfile",
    "PlainPath",
    "PolicyContext",
    "RestrictedFiles",
    "SandboxContext",
    "SpecialKind",
    "SpecialPath",
    "SpecialValue",
    "UnrestrictedFiles",
]

Network = Literal["restricted", "enabled"]
Access = Literal["read", "write", "deny", "none"]
"""`none` is an older name for `deny`."""

SpecialKind = Literal[
    "root",
    "minimal",
    "current_working_directory",
    "project_roots",
    "tmpdir",
    "slash_tmp",
    "unknown",
]
"""`current_working_directory` is an older name for `project_roots`."""


# -- entries: paths and their access


class Tagged(Wire, frozen=True, kw_only=True, rename=None, tag_field="type"):
    """One shape of a tagged union, distinguished by `type`; member names are not converted."""

    # The type's name in error texts about malformed values.
    wire_name: ClassVar[str]


class PlainPath(Tagged, frozen=True, kw_only=True, tag="path"):
    """One file or directory, with everything below it."""

    wire_name = "internally tagged enum ExecFileSystemPath"
    path: PathUri


class GlobPath(Tagged, frozen=True, kw_only=True, tag="glob_pattern"):
    """The files that match a pattern; only for access `deny`."""

    wire_name = "internally tagged enum ExecFileSystemPath"
    pattern: str


class SpecialValue(Wire, frozen=True, kw_only=True, rename=None, omit_defaults=True):
    """A directory given by a symbolic name instead of a path."""

    kind: SpecialKind
    subpath: str | None = None
    """A path below each project root."""
    path: str | None = None
    """The name of an `unknown` kind, which a newer client sent and which is ignored."""

    wire_name: ClassVar[str] = "internally tagged enum FileSystemSpecialPath"

    def __post_init__(self) -> None:
        # serde's error for the missing member of this variant.
        if self.kind == "unknown" and self.path is None:
            raise ValueError("missing field `path`")


class SpecialPath(Tagged, frozen=True, kw_only=True, tag="special"):
    wire_name = "internally tagged enum ExecFileSystemPath"
    value: SpecialValue


EntryPath: TypeAlias = PlainPath | GlobPath | SpecialPath


class FileEntry(Wire, frozen=True, kw_only=True, rename=None, omit_defaults=True):
    """One rule. The most specific one that covers a path decides."""

    path: EntryPath
    access: Access
    missing_path_behavior: Literal["skip"] | None = None

    wire_name: ClassVar[str] = "struct ExecFileSystemSandboxEntry"


# -- profiles


class RestrictedFiles(Tagged, frozen=True, kw_only=True, tag="restricted", omit_defaults=True):
    """File access as allowed by the entries only."""

    wire_name = "internally tagged enum ExecManagedFileSystemPermissions"
    entries: tuple[FileEntry, ...]
    glob_scan_max_depth: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Levels below its directory that a pattern is searched for; unlimited if None."""


class UnrestrictedFiles(Tagged, frozen=True, kw_only=True, tag="unrestricted"):
    wire_name = "internally tagged enum ExecManagedFileSystemPermissions"


FileSystemPermissions: TypeAlias = RestrictedFiles | UnrestrictedFiles


class ManagedProfile(Tagged, frozen=True, kw_only=True, tag="managed"):
    """A profile that the server enforces."""

    wire_name = "internally tagged enum ExecPermissionProfile"
    file_system: FileSystemPermissions
    network: Network


class DisabledProfile(Tagged, frozen=True, kw_only=True, tag="disabled"):
    """No isolation at all."""

    wire_name = "internally tagged enum ExecPermissionProfile"


class ExternalProfile(Tagged, frozen=True, kw_only=True, tag="external"):
    """A profile whose file access is enforced elsewhere; only the network is restricted here."""

    wire_name = "internally tagged enum ExecPermissionProfile"
    network: Network


PermissionProfile: TypeAlias = ManagedProfile | DisabledProfile | ExternalProfile


# -- the member `sandbox`


class PolicyContext(Wire, frozen=True, kw_only=True):
    """Replacement for two members of the context; replaces both, even if it sets only one."""

    cwd: PathUri | None = None
    workspace_roots: tuple[PathUri, ...] = ()

    wire_name: ClassVar[str] = "struct WireFileSystemPolicyContext"


class SandboxContext(Wire, frozen=True, kw_only=True):
    """
    A profile, and the base of its relative and special paths.

    Undocumented members have no effect on Linux. A server that cannot enforce the profile must
    refuse it.
    """

    permissions: PermissionProfile
    windows_sandbox_level: Literal["disabled", "restricted-token", "elevated", "mxc"]
    """`mxc` asks for a sandbox that only Windows has, and is refused; others have no effect."""
    cwd: PathUri | None = None
    """Base of relative patterns; by default the cwd of the process."""
    workspace_roots: tuple[PathUri, ...] = ()
    """The meaning of `project_roots`."""
    policy_context: PolicyContext | None = None
    sandbox_override: Literal[
        "noOverride", "escalatedSandboxWithRestrictions", "bypassSandboxFirstAttempt"
    ] = "noOverride"
    user_home_dir: PathUri | None = None
    temporary_directories: tuple[PathUri, ...] | None = None
    windows_sandbox_proxy_settings_mode: Literal["reconcile", "preserve"] | None = None
    use_legacy_landlock: bool = False
    """Refused: a restricted profile needs more than Landlock provides [sandbox.legacy-landlock]."""

    wire_name: ClassVar[str] = "struct WireFileSystemSandboxContext"
