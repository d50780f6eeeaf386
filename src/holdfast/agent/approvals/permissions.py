"""
Permissions that a command gets beyond its sandbox, and the profiles they make.

A path that a profile denies stays denied, whatever is added: neither an escalation nor a
permission for something below it opens it.
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
    """Entries of a profile, for whoever asked in that form."""

    def __bool__(self) -> bool:
        return bool(self.network or self.read or self.write or self.entries)

    def to_json(self) -> dict[str, object]:
        """Return the form that questions show."""
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
        """Return the permissions of both."""
        return AddedPermissions(
            network=self.network or other.network,
            read=_merged(self.read, other.read),
            write=_merged(self.write, other.write),
            entries=_merged(self.entries, other.entries),
        )

    def limited_to(self, requested: "AddedPermissions") -> "AddedPermissions":
        """Return the part of these that was requested: nobody gets more than that."""
        return AddedPermissions(
            network=self.network and requested.network,
            read=tuple(path for path in self.read if _covered(path, requested.read)),
            write=tuple(path for path in self.write if _covered(path, requested.write)),
            entries=tuple(entry for entry in self.entries if entry in requested.entries),
        )

    def file_entries(self) -> tuple[FileEntry, ...]:
        """Return all of the files as entries of a profile."""
        return (
            *(FileEntry(path=_plain(path), access="read") for path in self.read),
            *(FileEntry(path=_plain(path), access="write") for path in self.write),
            *self.entries,
        )


NO_PERMISSIONS = AddedPermissions()


def is_restricted(context: SandboxContext | None) -> bool:
    """Return True if an escalation would lift something: files, or the network."""
    if context is None:
        return False
    profile = context.permissions
    if isinstance(profile, DisabledProfile):
        return False
    if isinstance(profile, ManagedProfile) and isinstance(profile.file_system, RestrictedFiles):
        return True
    return profile.network == "restricted"


def denies_paths(context: SandboxContext | None) -> bool:
    """Return True if the profile denies paths: then nothing runs without a sandbox."""
    return bool(_denied(context))


def denied_paths(context: SandboxContext | None) -> tuple[str, ...]:
    """
    Return the paths that the profile denies; those of patterns are not among them.

    Raises:
        InvalidParams: Some of them are only known where the command runs.
    """
    if context is None:
        return ()
    return tuple(path for entry in _denied(context) for path in _paths_of(entry, context))


def escalated_context(context: SandboxContext | None) -> SandboxContext | None:
    """
    Return the sandbox of a command that was let out of it.

    Returns:
        None for no sandbox. With denied paths one stays: the whole disk can be written but
        for them, and the network is as before.
    """
    denied = _denied(context)
    if context is None or not denied:
        return None
    profile = context.permissions
    # Other profiles deny nothing.
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
        InvalidParams: A path is denied by the profile, or lies below one that is; or the
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
    """Return the rules of a sandbox about files; None if it has none, and all is allowed."""
    if context is None or not isinstance(context.permissions, ManagedProfile):
        return None
    files = context.permissions.file_system
    return files.entries if isinstance(files, RestrictedFiles) else None


def entry_paths(
    entry: FileEntry, context: SandboxContext, *, tmpdir: str | None = None
) -> tuple[str, ...]:
    """Return the paths that a rule names, as far as they are known; none for a pattern."""
    path = entry.path
    if isinstance(path, SpecialPath) and path.value.kind == "tmpdir":
        known = tuple(folder.native for folder in context.temporary_directories or ())
        return known or (() if tmpdir is None else (tmpdir,))
    if isinstance(path, SpecialPath) and path.value.kind == "minimal":
        # System directories, which nobody may write.
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

    The most specific entry counts in a profile, so one below a denied path would win.

    Raises:
        InvalidParams: One of them would; the text names it.
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
    Refuse a path that is denied, or lies below one that is.

    Raises:
        InvalidParams: It is; the text names it.
    """
    if _covered(path, denied):
        raise InvalidParams(f"`{path}` is denied by the permission profile")


def _paths_of(entry: FileEntry, context: SandboxContext) -> tuple[str, ...]:
    """
    Return the paths that an entry names.

    Raises:
        InvalidParams: They are only known where the command runs.
    """
    path = entry.path
    if isinstance(path, PlainPath):
        return (path.path.native,)
    if isinstance(path, GlobPath):
        # A pattern means files only. Each is denied by its own path, and `deny` wins over
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
            return ("/tmp",)  # noqa: S108 - the profile names it
        case "unknown":
            # An unknown kind is ignored.
            return ()
        case kind:
            raise InvalidParams(f"nothing can be added to a profile that denies `:{kind}`")


def _covered(path: str, folders: Iterable[str]) -> bool:
    """Return True if a path is one of these directories or lies below one."""
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
