"""`sandbox`: what a process or a file operation may touch (docs/protocol.md#sandboxes)."""

from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec

from holdfast.protocol.base import Wire
from holdfast.protocol.paths import PathUri

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
"""`none` is an older word for `deny`."""

SpecialKind = Literal[
    "root",
    "minimal",
    "current_working_directory",
    "project_roots",
    "tmpdir",
    "slash_tmp",
    "unknown",
]
"""`current_working_directory` is an older word for `project_roots`."""


# -- entries: a path and what may be done there


class Tagged(Wire, frozen=True, kw_only=True, rename=None, tag_field="type"):
    """One of several shapes, told apart by its member `type`. Its names stay as they are."""

    wire_name: ClassVar[str]
    """What the texts about malformed values call it."""


class PlainPath(Tagged, frozen=True, kw_only=True, tag="path"):
    """One file or directory, with everything below it."""

    wire_name = "internally tagged enum ExecFileSystemPath"
    path: PathUri


class GlobPath(Tagged, frozen=True, kw_only=True, tag="glob_pattern"):
    """The files that match a pattern; it means something with the access `deny` only."""

    wire_name = "internally tagged enum ExecFileSystemPath"
    pattern: str


class SpecialValue(Wire, frozen=True, kw_only=True, rename=None, omit_defaults=True):
    """A place that is known by a name, whatever its path is here."""

    kind: SpecialKind
    subpath: str | None = None
    """Of each project root: a path below it."""
    path: str | None = None
    """Of an `unknown` place only, which is ignored: the name that a newer client gave it."""

    wire_name: ClassVar[str] = "internally tagged enum FileSystemSpecialPath"

    def __post_init__(self) -> None:
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
    """Only what the entries allow."""

    wire_name = "internally tagged enum ExecManagedFileSystemPermissions"
    entries: tuple[FileEntry, ...]
    glob_scan_max_depth: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """How far below its directory a pattern is looked for; no bound unless given."""


class UnrestrictedFiles(Tagged, frozen=True, kw_only=True, tag="unrestricted"):
    wire_name = "internally tagged enum ExecManagedFileSystemPermissions"


FileSystemPermissions: TypeAlias = RestrictedFiles | UnrestrictedFiles


class ManagedProfile(Tagged, frozen=True, kw_only=True, tag="managed"):
    """Whoever serves the request builds the sandbox."""

    wire_name = "internally tagged enum ExecPermissionProfile"
    file_system: FileSystemPermissions
    network: Network


class DisabledProfile(Tagged, frozen=True, kw_only=True, tag="disabled"):
    """No isolation at all."""

    wire_name = "internally tagged enum ExecPermissionProfile"


class ExternalProfile(Tagged, frozen=True, kw_only=True, tag="external"):
    """Files are somebody else's care; only the network is."""

    wire_name = "internally tagged enum ExecPermissionProfile"
    network: Network


PermissionProfile: TypeAlias = ManagedProfile | DisabledProfile | ExternalProfile


# -- the member `sandbox`


class PolicyContext(Wire, frozen=True, kw_only=True):
    """Takes the place of two members of the context: of both, even if it names only one."""

    cwd: PathUri | None = None
    workspace_roots: tuple[PathUri, ...] = ()

    wire_name: ClassVar[str] = "struct WireFileSystemPolicyContext"


class SandboxContext(Wire, frozen=True, kw_only=True):
    """
    A profile, and what its special places are relative to.

    Members without a word here are read and have no effect on Linux. Whoever
    cannot keep the profile must refuse it.
    """

    permissions: PermissionProfile
    windows_sandbox_level: Literal["disabled", "restricted-token", "elevated", "mxc"]
    """`mxc` asks for a sandbox that only Windows has, and is refused; others do nothing here."""
    cwd: PathUri | None = None
    """What relative patterns start from; the process's own directory unless given."""
    workspace_roots: tuple[PathUri, ...] = ()
    """What `project_roots` stands for."""
    policy_context: PolicyContext | None = None
    sandbox_override: Literal[
        "noOverride", "escalatedSandboxWithRestrictions", "bypassSandboxFirstAttempt"
    ] = "noOverride"
    user_home_dir: PathUri | None = None
    temporary_directories: tuple[PathUri, ...] | None = None
    windows_sandbox_proxy_settings_mode: Literal["reconcile", "preserve"] | None = None
    use_legacy_landlock: bool = False
    """Refused: a restricted profile needs more than Landlock gives [sandbox.legacy-landlock]."""

    wire_name: ClassVar[str] = "struct WireFileSystemSandboxContext"
