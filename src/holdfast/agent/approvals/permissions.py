"""
Permissions of a command beyond its sandbox, and the resulting profiles.

A path that a profile denies stays denied: neither an escalation nor a permission for a path below
it changes that.
"""

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from holdfast.base.errors import InvalidParams
from holdfast.engine.sandbox.profile.builtin import special_entry
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import (
    DisabledProfile,
    ExternalProfile,
    FileEntry,
    GlobPath,
    ManagedProfile,
    PlainPath,
    RestrictedFiles,
    SandboxContext,
    SpecialPath,
)

__all__ = [
    "NO_PERMISSIONS",
    "AddedPermissions",
    "denied_paths",
    "denies_paths",
    "entry_paths",
    "escalated_context",
    "file_entries",
    "is_restricted",
    "refuse_below",
    "with_permissions",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedPermissions:
    """Permissions of a command beyond its profile. Paths are absolute."""

    network: bool = False
    """True to allow the network."""
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    entries: tuple[FileEntry, ...] = ()
    """Entries of a profile, for requests in that form."""

    def __bool__(self) -> bool:
        return bool(self.network or self.read or self.write or self.entries)

    def to_json(self) -> dict[str, object]:
        """Return the form for questions."""
        shown: dict[str, object] = {}
        if self.network:
            shown["network"] = {"enabled": True}
        files: dict[str, object] = {}
        if self.read:
            files["read"] = list(self.read)
        if self.write:
            files["write"] = list(self.write)
        if self.entries:
            files["entries"] = msgspec.to_builtins(self.entries)
        if files:
            shown["fileSystem"] = files
        return shown

    def union(self, other: "AddedPermissions") -> "AddedPermissions":
        """Return the combined permissions."""
        return AddedPermissions(
            network=self.network or other.network,
            read=_merged(self.read, other.read),
            write=_merged(self.write, other.write),
            entries=_merged(self.entries, other.entries),
        )

    def limited_to(self, requested: "AddedPermissions") -> "AddedPermissions":
        """Return the part of these permissions that was requested, so that no more is granted."""
        return AddedPermissions(
            network=self.network and requested.network,
            read=tuple(path for path in self.read if _covered(path, requested.read)),
            write=tuple(path for path in self.write if _covered(path, requested.write)),
            entries=tuple(entry for entry in self.entries if entry in requested.entries),
        )

    def file_entries(self) -> tuple[FileEntry, ...]:
        """Return all file permissions as entries of a profile."""
        return (
            *(FileEntry(path=_plain(path), access="read") for path in self.read),
            *(FileEntry(path=_plain(path), access="write") for path in self.write),
            *self.entries,
        )


NO_PERMISSIONS = AddedPermissions()


def is_restricted(context: SandboxContext | None) -> bool:
    """Return True if an escalation would lift a restriction of files or the network."""
    if context is None:
        return False
    profile = context.permissions
    if isinstance(profile, DisabledProfile):
        return False
    if isinstance(profile, ManagedProfile) and isinstance(profile.file_system, RestrictedFiles):
        return True
    return profile.network == "restricted"


def denies_paths(context: SandboxContext | None) -> bool:
    """Return True if the profile denies paths, so that nothing runs without a sandbox."""
    return bool(_denied(context))


def denied_paths(context: SandboxContext | None) -> tuple[str, ...]:
    """
    Return the paths that the profile denies, except by patterns.

    Raises:
        InvalidParams: Some paths can only be resolved where the command runs.
    """
    if context is None:
        return ()
    return tuple(path for entry in _denied(context) for path in _paths_of(entry, context))


def escalated_context(context: SandboxContext | None) -> SandboxContext | None:
    """
    Return the sandbox of an escalated command.

    Returns:
        None for no sandbox. With denied paths a sandbox remains: the whole disk except for
        them is writable, and the network is unchanged.
    """
    denied = _denied(context)
    if context is None or not denied:
        return None
    profile = context.permissions
    # Other profiles do not deny paths.
    assert isinstance(profile, ManagedProfile)
    files = profile.file_system
    assert isinstance(files, RestrictedFiles)
    wide = RestrictedFiles(
        entries=(special_entry("root", "write"), *denied),
        glob_scan_max_depth=files.glob_scan_max_depth,
    )
    return msgspec.structs.replace(
        context,
        permissions=ManagedProfile(file_system=wide, network=profile.network),
        sandbox_override="escalatedSandboxWithRestrictions",
    )


def with_permissions(
    context: SandboxContext | None, added: AddedPermissions
) -> SandboxContext | None:
    """
    Return a sandbox with more permissions.

    Raises:
        InvalidParams: A path is denied by the profile or is below a denied path, or the
            addition itself denies something or is a pattern.
    """
    if context is None or not added:
        return context
    profile = context.permissions
    if isinstance(profile, DisabledProfile):
        return context
    network = "enabled" if added.network else profile.network
    if isinstance(profile, ExternalProfile):
        return msgspec.structs.replace(context, permissions=ExternalProfile(network=network))
    files = profile.file_system
    entries = added.file_entries()
    if isinstance(files, RestrictedFiles) and entries:
        _refuse_denied(entries, _denied(context), context)
        files = RestrictedFiles(
            entries=(*files.entries, *entries), glob_scan_max_depth=files.glob_scan_max_depth
        )
    return msgspec.structs.replace(
        context, permissions=ManagedProfile(file_system=files, network=network)
    )


def file_entries(context: SandboxContext | None) -> tuple[FileEntry, ...] | None:
    """Return the rules of a sandbox about files; None if all files are allowed."""
    if context is None or not isinstance(context.permissions, ManagedProfile):
        return None
    files = context.permissions.file_system
    return files.entries if isinstance(files, RestrictedFiles) else None


def entry_paths(
    entry: FileEntry, context: SandboxContext, *, tmpdir: str | None = None
) -> tuple[str, ...]:
    """Return the known paths of a rule; none for a pattern."""
    path = entry.path
    if isinstance(path, SpecialPath) and path.value.kind == "tmpdir":
        known = tuple(folder.native for folder in context.temporary_directories or ())
        return known or (() if tmpdir is None else (tmpdir,))
    if isinstance(path, SpecialPath) and path.value.kind == "minimal":
        # System directories, which are never writable.
        return ()
    return _paths_of(entry, context)


def _denied(context: SandboxContext | None) -> tuple[FileEntry, ...]:
    entries = file_entries(context) or ()
    return tuple(entry for entry in entries if entry.access in ("deny", "none"))


def _refuse_denied(
    entries: Sequence[FileEntry], denied: Sequence[FileEntry], context: SandboxContext
) -> None:
    """
    Refuse additions that would open a denied path.

    In a profile the most specific entry counts, so one below a denied path would win.

    Raises:
        InvalidParams: An addition would do so; the text names it.
    """
    for entry in entries:
        if entry.access in ("deny", "none") or isinstance(entry.path, GlobPath):
            raise InvalidParams("additional permissions can only add: no patterns, no `deny`")
        if not denied:
            continue
        if not isinstance(entry.path, PlainPath):
            raise InvalidParams(
                "additional permissions must name their paths: the profile denies some"
            )
        refuse_below(entry.path.path.native, denied_paths(context))


def refuse_below(path: str, denied: Iterable[str]) -> None:
    """
    Refuse a path that is denied or below a denied path.

    Raises:
        InvalidParams: The path is denied; the text names it.
    """
    if _covered(path, denied):
        raise InvalidParams(f"`{path}` is denied by the permission profile")


def _paths_of(entry: FileEntry, context: SandboxContext) -> tuple[str, ...]:
    """
    Return the paths of an entry.

    Raises:
        InvalidParams: They can only be resolved where the command runs.
    """
    path = entry.path
    if isinstance(path, PlainPath):
        return (path.path.native,)
    if isinstance(path, GlobPath):
        # A pattern only matches files. Each is denied by its path, and `deny` wins over
        # another entry for the same path.
        return ()
    roots = tuple(root.native for root in context.workspace_roots)
    match path.value.kind:
        case "root":
            return ("/",)
        case "project_roots" | "current_working_directory":
            below = path.value.subpath or ""
            return tuple(posixpath.join(root, below).rstrip("/") or "/" for root in roots)
        case "slash_tmp":
            return ("/tmp",)  # noqa: S108 - named by the profile
        case "unknown":
            # Unknown kinds are ignored.
            return ()
        case kind:
            raise InvalidParams(f"nothing can be added to a profile that denies `:{kind}`")


def _covered(path: str, folders: Iterable[str]) -> bool:
    """Return True if a path is one of these directories or below one."""
    path = posixpath.normpath(path)
    for folder in folders:
        folder = posixpath.normpath(folder)
        if path == folder or folder == "/" or path.startswith(f"{folder}/"):
            return True
    return False


def _merged(first: tuple, second: tuple) -> tuple:  # type: ignore[type-arg]  # of one kind
    return (*first, *(item for item in second if item not in first))


def _plain(path: str) -> PlainPath:
    return PlainPath(path=PathUri.from_path(path))
