"""
The rules of one sandbox, and what they say about a path [sandbox.precedence].

A policy is made by `sandbox.policy.build` from a profile and from what was on disk at that
moment. It does no input or output itself: the same rules tell bubblewrap what to mount
and `fs/*` what to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from holdfast.protocol.sandbox import Network
from holdfast.sandbox.profile.globs import Glob

__all__ = [
    "KEPT_NAMES",
    "NO_LANDLOCK",
    "NO_MXC",
    "PATH_MAX",
    "PROTECTED_NAMES",
    "Kind",
    "Policy",
    "Rule",
    "Standing",
    "Why",
    "parent_of",
]

PATH_MAX = 4096
"""Bytes of a path that system calls take, with the NUL at its end."""

PROTECTED_NAMES = (".git", ".agents", ".codex", ".aws")
"""Directly below every writable root these stay read-only: they steer what runs later."""

NO_LANDLOCK = "filesystem-restricted execution requires bubblewrap to isolate app-server sockets"
"""What is said to whoever asks for Landlock in place of mounts [sandbox.legacy-landlock]."""

NO_MXC = "native MXC is unavailable on this executor"
"""What is said to whoever asks for a sandbox that only Windows has."""

KEPT_NAMES = (".holdfast",)
"""
The same for these, if they are there: rules for commands, of which those of a project only
restrict. Nobody gains by making them, so no empty folder stands where none is.
"""

Standing = Literal["read", "write", "deny", "hidden"]
"""What holds for a path. `hidden`: no rule covers it, so inside it does not exist."""

Why = Literal[
    "entry", "platform", "protected", "gitdir", "cover", "pin", "glob", "socket", "server"
]
"""
What a rule comes from: an entry of the profile, the system's own directories, a
protected name, the repository that a `.git` file points to, the first missing part
of a path that has to stay missing, a directory that must keep its name because of what
is below it, a match of a pattern, a socket of an engine that would run anything, or a
file with the secrets of a Holdfast server, which would run anything too.
"""

Kind = Literal["directory", "file", "other"]


class Rule(NamedTuple):
    """What holds at a path and below it, up to the next rule."""

    path: str
    """Absolute and without links, as far as it exists."""
    access: Literal["read", "write", "deny"]
    kind: Kind | None
    """What is there on disk; `None` if nothing is."""
    why: Why = "entry"
    blank: bool = False
    """
    There is something, but it is empty and has to be read-only: perhaps it is only there
    because another command needs it, and about to go.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """
    What a command may touch and reach.

    Paths given to its methods are absolute, without links, `.` or `..`: whoever asks
    has resolved them, since a link is judged by where it leads.
    """

    network: Network = "enabled"
    full_read: bool = True
    """Everything may be read; nothing is denied."""
    full_write: bool = True
    """Everything may be written; nothing is protected."""
    minimal: bool = False
    """The system's own directories may be read, whatever else."""
    rules: Mapping[str, Rule] = field(default_factory=dict)
    """By path. Empty if `full_write`."""
    globs: tuple[Glob, ...] = ()
    """Patterns of denied files, for files that appear later than the policy."""
    links: tuple[tuple[str, str], ...] = ()
    """Links on the way to readable or writable paths: where each is, and where it leads."""
    legacy_landlock: bool = False
    """The client asks for a weaker way that no longer exists."""

    @property
    def isolates(self) -> bool:
        """Whether a command needs namespaces and a filter at all."""
        return not self.full_write or self.network == "restricted"

    @property
    def readable(self) -> tuple[str, ...]:
        """Paths of rules that allow reading and no more, without the protected ones."""
        return self._paths("read", {"entry", "platform"})

    @property
    def writable(self) -> tuple[str, ...]:
        """Paths of rules that allow writing."""
        return self._paths("write", {"entry"})

    @property
    def denied(self) -> tuple[str, ...]:
        """Paths that can neither be read nor written: entries, matches, sockets, secrets."""
        return self._paths("deny", {"entry", "glob", "socket", "server"})

    @property
    def protected(self) -> tuple[str, ...]:
        """Paths below a writable one that stay read-only though no entry says so."""
        return self._paths("read", {"protected", "gitdir", "cover"})

    def access(self, path: str, *, directory: bool = False) -> Literal["read", "write", "deny"]:
        """
        What may be done with a path; `deny` covers what is hidden too.

        Args:
            directory: It is one. Patterns deny files only.
        """
        standing = self.standing(path, directory=directory)
        return "deny" if standing == "hidden" else standing

    def standing(self, path: str, *, directory: bool = False) -> Standing:
        """As `access`, but tells what is denied (EACCES) from what is not there (ENOENT)."""
        if self.full_write:
            return "write"
        rule = self.governing(path)
        if rule is None:
            return "hidden"
        if rule.access == "deny":
            # Below a denied directory that was opened up for something inside, the
            # rest is not there; the directory itself refuses to be listed.
            if rule.path != path and self.opens(rule.path):
                return "hidden"
            return "deny"
        if not directory and any(glob.matches(path) for glob in self.globs):
            return "deny"
        return rule.access

    def governing(self, path: str) -> Rule | None:
        """The rule that decides about a path, if there is one."""
        rules = self.rules
        while True:
            rule = rules.get(path)
            if rule is not None:
                return rule
            if path == "/":
                return None
            path = parent_of(path)

    def denies_folder(self, path: str) -> bool:
        """Return True if a directory is denied, and so is all below it: nobody can be there."""
        rule = None if self.full_write else self.governing(path)
        return rule is not None and rule.access == "deny" and not self.opens(path)

    def opens(self, path: str) -> bool:
        """Whether something below this path may be read or written by a rule of its own."""
        return path in _ways_in(self)

    def keeps_name(self, path: str) -> bool:
        """
        Whether a path may be neither renamed nor removed (EBUSY), whatever its access.

        So it is for writable roots, for what is protected in them, and for the
        directories between the two: under a new name nothing would be protected.
        """
        return path in self.rules

    def _paths(self, access: str, reasons: set[str]) -> tuple[str, ...]:
        found = (rule for rule in self.rules.values() if rule.access == access)
        return tuple(sorted(rule.path for rule in found if rule.why in reasons))


@lru_cache(maxsize=128)
def _ways_in(policy: Policy) -> frozenset[str]:
    """All directories above something that exists and may be read or written."""
    found: set[str] = set()
    for rule in policy.rules.values():
        path = rule.path
        if rule.access != "deny" and rule.kind is not None:
            while path != "/" and (path := parent_of(path)) not in found:
                found.add(path)
    return frozenset(found)


def parent_of(path: str) -> str:
    """The directory of an absolute path; `/` is its own."""
    return path[: path.rindex("/")] or "/"
