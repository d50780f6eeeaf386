"""
Sandboxes as users specify them: by name, by file, or by a few rules.

The result is a profile for the wire. `~` and relative paths are resolved for the machine where the
command runs.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar, get_args

from holdfast.base.errors import InvalidParams
from holdfast.base.own_files import keep_unchanged
from holdfast.engine.sandbox.profile.builtin import ProfileName, named_profile
from holdfast.engine.sandbox.profile.profile_file import parse_profile
from holdfast.environments.path_uris import AnyPath
from holdfast.wire.protocol.paths import ForeignPathUri, InvalidPathUri, PathUri
from holdfast.wire.protocol.sandbox import (
    Access,
    DisabledProfile,
    EntryPath,
    ExternalProfile,
    FileEntry,
    GlobPath,
    ManagedProfile,
    PermissionProfile,
    PlainPath,
    RestrictedFiles,
    SandboxContext,
    SpecialKind,
    SpecialPath,
    SpecialValue,
)

__all__ = [
    "AnySandbox",
    "ProfileContext",
    "SandboxProfile",
    "also_writing",
    "as_profile",
    "home_here",
    "resolve_sandbox",
]

_WILDCARD = re.compile(r"[*?\[\]]")
_KINDS = get_args(SpecialKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileContext:
    """Meaning of relative paths and `~` in one environment."""

    folder: PathUri
    """The workspace: base of relative paths, and value of `:project_roots`."""
    home: PathUri | None
    """Value of `~`, if known."""
    here: bool = True
    """True for this machine."""


@dataclass(frozen=True, slots=True)
class SandboxProfile:
    """
    The files and network that a command may use: a base, and rules that modify it.

    The matching rule with the longest path applies; for the same path `deny` wins. A path is
    absolute, relative to the environment's directory, below `~`, or a special name. Special
    names are `:root`, `:minimal` (system directories), `:project_roots`, `:tmpdir` and
    `:slash_tmp`. A path with a wildcard is a pattern, which only `deny` accepts.
    """

    base: ProfileName | PermissionProfile | None = None
    """Profile to start from; without one, only the rules allow access."""
    read: Sequence[AnyPath] = ()
    """Paths that may be read but not written."""
    write: Sequence[AnyPath] = ()
    """Paths that may be read and written, except `.git` and similar names directly below."""
    deny: Sequence[AnyPath] = ()
    """Paths that may be neither read nor written, despite rules with shorter paths."""
    network: bool | None = None
    """True to allow the network; None keeps the base's setting, denied by default."""
    source: str | None = None
    """File it was read from, if that used `~` for the home on this machine."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SandboxProfile":
        """
        Read a profile from a local TOML file.

        Raises:
            InvalidParams: It cannot be read, or is not a profile; the message names the file.
        """
        name = os.fspath(path)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            profile = parse_profile(text)
        except (OSError, UnicodeDecodeError, InvalidParams) as error:
            # The message already names the file.
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidParams(f"sandbox profile `{name}`: {reason}") from error
        keep_unchanged(path)
        return cls(profile, source=name if _names_home(text) else None)

    def permissions(self, context: ProfileContext) -> PermissionProfile:
        """
        Return the profile for the wire, resolved for one environment.

        Raises:
            InvalidParams: A rule is invalid, or not usable in that environment.
        """
        # The parser has replaced `~` by the home on this machine.
        if self.source is not None and not context.here:
            raise InvalidParams(
                f"sandbox profile `{self.source}`: `~` in a file is the home on this machine;"
                " write out the path for another machine"
            )
        base = self._base()
        rules = [*self._rules(context)]
        # Returned unchanged, so that a base without restrictions stays usable.
        if self.network is None and not rules:
            return base
        if not isinstance(base, ManagedProfile):
            raise InvalidParams("rules need a base that restricts something")
        files = base.file_system
        if rules:
            if not isinstance(files, RestrictedFiles):
                raise InvalidParams("rules need a base that restricts files")
            files = RestrictedFiles(
                entries=(*files.entries, *rules), glob_scan_max_depth=files.glob_scan_max_depth
            )
        network = base.network
        if self.network is not None:
            network = "enabled" if self.network else "restricted"
        return ManagedProfile(file_system=files, network=network)

    def _base(self) -> PermissionProfile:
        if self.base is None:
            return ManagedProfile(file_system=RestrictedFiles(entries=()), network="restricted")
        return named_profile(self.base) if isinstance(self.base, str) else self.base

    def _rules(self, context: ProfileContext) -> Iterator[FileEntry]:
        access: Access
        for access, paths in (("read", self.read), ("write", self.write), ("deny", self.deny)):
            if isinstance(paths, str):
                # A string would be read as a list of characters.
                raise InvalidParams(f"`{access}` must be a list of paths: `({paths!r},)`")
            for path in paths:
                entry = FileEntry(path=_entry_path(path, context), access=access)
                if isinstance(entry.path, GlobPath) and access != "deny":
                    raise InvalidParams(f"pattern `{path}`: only `deny` accepts patterns")
                yield entry


AnySandbox: TypeAlias = str | os.PathLike[str] | SandboxProfile | PermissionProfile | SandboxContext
"""
A profile, the name of one, or the path of a file with one.

Names are `read-only`, `workspace-write` and `disabled`; any other string is a path if it ends in
`.toml` or contains a slash. Wire types are used unchanged.
"""


S = TypeVar("S", bound=AnySandbox | None)


def as_profile(sandbox: AnySandbox) -> SandboxProfile | SandboxContext:
    """
    Return the profile for a name, a file (which is read) or a profile.

    Raises:
        InvalidParams: There is no such name or file.
    """
    if isinstance(sandbox, SandboxProfile | SandboxContext):
        return sandbox
    if isinstance(sandbox, ManagedProfile | DisabledProfile | ExternalProfile):
        return SandboxProfile(sandbox)
    if not isinstance(sandbox, str | os.PathLike):
        raise TypeError(
            "a sandbox must be a profile, its name, or the path of a file with one,"
            f" not {type(sandbox).__name__}"
        )
    if not isinstance(sandbox, str) or "/" in sandbox or sandbox.endswith(".toml"):
        return SandboxProfile.load(sandbox)
    try:
        return SandboxProfile(named_profile(sandbox))
    except InvalidParams as error:
        raise InvalidParams(f"{error}, or the path of a .toml file") from None


def also_writing(sandbox: S, paths: Sequence[AnyPath] | None) -> S | SandboxProfile:
    """
    Return a sandbox with more writable paths, for `--sandbox-write`.

    Args:
        sandbox: The sandbox, if any.
        paths: Paths as in `SandboxProfile.write`; without any, the sandbox is unchanged.

    Raises:
        InvalidParams: `sandbox` is None, or there is no such name or file.
    """
    if not paths:
        return sandbox
    profile = None if sandbox is None else as_profile(sandbox)
    if not isinstance(profile, SandboxProfile) or isinstance(profile.base, DisabledProfile):
        raise InvalidParams("--sandbox-write needs a sandbox: add --sandbox workspace-write")
    return replace(profile, write=(*profile.write, *paths))


def resolve_sandbox(sandbox: AnySandbox, context: ProfileContext) -> SandboxContext | None:
    """
    Return the sandbox for the wire; None if it isolates nothing.

    Raises:
        InvalidParams: It is invalid, or not usable in that environment.
    """
    profile = as_profile(sandbox)
    if isinstance(profile, SandboxContext):
        return profile
    permissions = profile.permissions(context)
    # No sandbox is cheaper than one without restrictions.
    if isinstance(permissions, DisabledProfile):
        return None
    return SandboxContext(
        permissions=permissions,
        windows_sandbox_level="disabled",
        cwd=context.folder,
        workspace_roots=(context.folder,),
    )


def _entry_path(path: AnyPath, context: ProfileContext) -> EntryPath:
    if isinstance(path, PathUri):
        return PlainPath(path=path)
    text = os.fspath(path)
    if not text:
        raise InvalidParams("a path of the sandbox profile is empty")
    if text.startswith(":"):
        return _special(text)
    if text == "~" or text.startswith("~/"):
        text = f"{_home(context)}{text[1:]}"
    if _WILDCARD.search(text):
        return GlobPath(pattern=text)
    if text.startswith("/"):
        return PlainPath(path=PathUri.from_path(text))
    # Resolved as text: the path may not exist yet.
    below = os.path.normpath(text)
    # A path outside may be a mistake, and would widen the workspace.
    if below == ".." or below.startswith("../"):
        raise InvalidParams(f"`{text}` leads out of the directory: write out the path")
    return _special(":project_roots" if below == "." else f":project_roots/{below}")


def _special(text: str) -> SpecialPath:
    name, _, below = text[1:].partition("/")
    for kind in _KINDS:
        # `unknown` stands for names of newer clients, and cannot be requested.
        if kind == name and kind != "unknown":
            return SpecialPath(value=SpecialValue(kind=kind, subpath=below or None))
    known = ", ".join(f"`:{kind}`" for kind in _KINDS if kind != "unknown")
    raise InvalidParams(f"unknown special path `{text}`, expected one of {known}")


def home_here() -> PathUri | None:
    """Return the user's home on this machine, if known: a container may have none."""
    home = os.path.expanduser("~")
    return PathUri.from_path(home) if os.path.isabs(home) else None


def _home(context: ProfileContext) -> str:
    try:
        if context.home is not None:
            return context.home.native
    except (ForeignPathUri, InvalidPathUri):
        pass
    raise InvalidParams("the home directory there is unknown: write out the path instead of `~`")


def _names_home(text: str) -> bool:
    """Return True if a path in a profile file begins with `~`."""
    files = tomllib.loads(text).get("file_system", {})
    paths = (entry.get("path") for entry in files.get("entries", ()))
    return any(isinstance(path, str) and path.startswith("~") for path in paths)
