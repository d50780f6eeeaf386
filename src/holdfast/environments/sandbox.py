"""
Sandboxes the way people ask for them: by a name, a file, or a few rules.

What comes out is a profile as it is on the wire. A path is one of the place where the
command runs, so it is only known there what `~` and a relative path stand for.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, get_args

from holdfast.environments.folder import AnyPath
from holdfast.errors import InvalidParams
from holdfast.protocol.paths import ForeignPathUri, InvalidPathUri, PathUri
from holdfast.protocol.sandbox import (
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
from holdfast.sandbox.names import ProfileName, named_profile
from holdfast.sandbox.profile_file import parse_profile

__all__ = ["AnySandbox", "Ground", "SandboxProfile", "as_profile", "home_here", "place_sandbox"]

_WILDCARD = re.compile(r"[*?\[\]]")
_KINDS = get_args(SpecialKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the words of a profile stand for at one place."""

    folder: PathUri
    """The workspace: what relative paths and `:project_roots` mean."""
    home: PathUri | None
    """What `~` means, as far as it is known."""
    here: bool = True
    """Whether it is on this machine."""


@dataclass(frozen=True, slots=True)
class SandboxProfile:
    """
    What a command may read, write and reach: a base, and rules that change it.

    Of several rules that cover a path the one for the longest path decides, and `deny`
    wins over the others for the same path. A path is absolute, relative to the folder of
    the environment, below `~`, or one of the special places `:root`, `:minimal` (the
    system's own folders), `:project_roots`, `:tmpdir` and `:slash_tmp`. With a wildcard
    it is a pattern, which only `deny` takes.
    """

    base: ProfileName | PermissionProfile | None = None
    """A profile to begin with; without one nothing is allowed but what the rules say."""
    read: Sequence[AnyPath] = ()
    """What may be read and not written."""
    write: Sequence[AnyPath] = ()
    """What may be read and written, but for `.git` and its like directly below it."""
    deny: Sequence[AnyPath] = ()
    """What may be neither, whatever is above it."""
    network: bool | None = None
    """Whether it reaches the network; as the base says unless given, and it says no."""
    source: str | None = None
    """The file it comes from, if `~` in it was taken for the home of this machine."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SandboxProfile":
        """
        Read a profile from a TOML file of this machine.

        Raises:
            InvalidParams: It cannot be read, or is no profile; the text names the file.
        """
        name = os.fspath(path)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            profile = parse_profile(text)
        except (OSError, UnicodeDecodeError, InvalidParams) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidParams(f"sandbox profile `{name}`: {reason}") from error
        return cls(profile, source=name if _names_home(text) else None)

    def permissions(self, ground: Ground) -> PermissionProfile:
        """
        The profile as it is on the wire, for one place.

        Raises:
            InvalidParams: A rule makes no sense, or not at that place.
        """
        if self.source is not None and not ground.here:
            raise InvalidParams(
                f"sandbox profile `{self.source}`: `~` in a file is the home of this machine;"
                " for another one write the path out"
            )
        base = self._base()
        rules = [*self._rules(ground)]
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

    def _rules(self, ground: Ground) -> Iterator[FileEntry]:
        access: Access
        for access, paths in (("read", self.read), ("write", self.write), ("deny", self.deny)):
            if isinstance(paths, str):
                raise InvalidParams(f"`{access}` is a list of paths, not one: `({paths!r},)`")
            for path in paths:
                entry = FileEntry(path=_entry_path(path, ground), access=access)
                if isinstance(entry.path, GlobPath) and access != "deny":
                    raise InvalidParams(f"pattern `{path}`: a pattern can only be denied")
                yield entry


AnySandbox: TypeAlias = str | os.PathLike[str] | SandboxProfile | PermissionProfile | SandboxContext
"""
The name of a profile, the path of a file that has one, or the profile.

A name is `read-only`, `workspace-write` or `disabled`; any other text is a path if it
ends in `.toml` or has a slash in it. What is on the wire is taken as it is.
"""


def as_profile(sandbox: AnySandbox) -> SandboxProfile | SandboxContext:
    """
    What is meant by a sandbox; a file is read.

    Raises:
        InvalidParams: There is no such name, or no such file.
    """
    if isinstance(sandbox, SandboxProfile | SandboxContext):
        return sandbox
    if isinstance(sandbox, ManagedProfile | DisabledProfile | ExternalProfile):
        return SandboxProfile(sandbox)
    if not isinstance(sandbox, str) or "/" in sandbox or sandbox.endswith(".toml"):
        return SandboxProfile.load(sandbox)
    try:
        return SandboxProfile(named_profile(sandbox))
    except InvalidParams as error:
        raise InvalidParams(f"{error}, or the path of a .toml file") from None


def place_sandbox(sandbox: AnySandbox, ground: Ground) -> SandboxContext | None:
    """
    What goes over the wire for it; `None` if it isolates nothing.

    Raises:
        InvalidParams: It makes no sense, or not at that place.
    """
    profile = as_profile(sandbox)
    if isinstance(profile, SandboxContext):
        return profile
    permissions = profile.permissions(ground)
    if isinstance(permissions, DisabledProfile):
        return None
    return SandboxContext(
        permissions=permissions,
        windows_sandbox_level="disabled",
        cwd=ground.folder,
        workspace_roots=(ground.folder,),
    )


def _entry_path(path: AnyPath, ground: Ground) -> EntryPath:
    if isinstance(path, PathUri):
        return PlainPath(path=path)
    text = os.fspath(path)
    if not text:
        raise InvalidParams("a path of the sandbox profile is empty")
    if text.startswith(":"):
        return _special(text)
    if text == "~" or text.startswith("~/"):
        text = f"{_home(ground)}{text[1:]}"
    if _WILDCARD.search(text):
        return GlobPath(pattern=text)
    if text.startswith("/"):
        return PlainPath(path=PathUri.from_path(text))
    below = os.path.normpath(text)
    if below == ".." or below.startswith("../"):
        raise InvalidParams(f"`{text}` is outside of the folder it is relative to: write it out")
    return _special(":project_roots" if below == "." else f":project_roots/{below}")


def _special(text: str) -> SpecialPath:
    name, _, below = text[1:].partition("/")
    for kind in _KINDS:
        if kind == name and kind != "unknown":
            return SpecialPath(value=SpecialValue(kind=kind, subpath=below or None))
    known = ", ".join(f"`:{kind}`" for kind in _KINDS if kind != "unknown")
    raise InvalidParams(f"unknown special place `{text}`, expected one of {known}")


def home_here() -> PathUri:
    """The user's home on this machine."""
    return PathUri.from_path(os.path.expanduser("~"))


def _home(ground: Ground) -> str:
    try:
        if ground.home is not None:
            return ground.home.native
    except (ForeignPathUri, InvalidPathUri):
        pass
    raise InvalidParams("the home of that place is not known: write the path out instead of `~`")


def _names_home(text: str) -> bool:
    """Whether a path in a profile file begins with `~`."""
    files = tomllib.loads(text).get("file_system", {})
    paths = (entry.get("path") for entry in files.get("entries", ()))
    return any(isinstance(path, str) and path.startswith("~") for path in paths)
