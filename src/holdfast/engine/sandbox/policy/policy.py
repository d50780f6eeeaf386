"""
Rules of one sandbox, and the access that they give to a path [sandbox.precedence].

`sandbox.policy.build` makes a policy from a profile and from the files on disk at that moment.
A policy itself does no I/O. The same rules decide which mounts bubblewrap makes and which
`fs/*` requests are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from holdfast.base.dialect import names
from holdfast.engine.linux.mounts import NO_MOUNTS, MountTable
from holdfast.engine.sandbox.profile.globs import Glob
from holdfast.wire.protocol.sandbox import Network

__all__ = [
    "GIT_NAMES",
    "KEPT_NAMES",
    "OWN_REASONS",
    "PATH_MAX",
    "PROTECTED_NAMES",
    "Kind",
    "Policy",
    "Rule",
    "Standing",
    "Why",
    "covers",
    "is_private",
    "parent_of",
    "rule_above",
]

# From `linux/limits.h`; Python has no constant for it.
PATH_MAX = 4096
"""Bytes of a path that system calls take, with the NUL at its end."""

PROTECTED_NAMES = names.PROTECTED_NAMES
"""Names directly below a writable root that stay read-only: they determine what runs later."""

KEPT_NAMES = (".holdfast",)
"""
Names that also stay read-only, but only if they exist.

They hold rules for commands, and those of a project can only restrict. A command gains nothing
by creating them, so a missing one is not covered by an empty directory.
"""

OWN_REASONS: Mapping[str, str] = {
    "code": "the server runs from it",
    "settings": "it has settings, state or logs of Holdfast",
}
"""Reasons why paths of Holdfast itself are read-only, by the origin of their rules."""

GIT_NAMES = ("hooks", "config", "config.worktree", "commondir", "gitdir", "modules", "worktrees")
"""
Names in a directory of a repository that stay read-only, if they exist and no entry names them.

They decide what git runs, and for which repository. An entry that makes `.git` or a directory in it
writable is for commits, which do not change them.
"""

Standing = Literal["read", "write", "deny", "hidden"]
"""Access to a path. `hidden`: no rule covers the path, so it does not exist in the sandbox."""

Why = Literal[
    "entry",
    "platform",
    "protected",
    "gitdir",
    "code",
    "settings",
    "cover",
    "pin",
    "glob",
    "socket",
    "server",
]
"""
Origin of a rule.

- `entry`: an entry of the profile
- `platform`: a system directory of `minimal`
- `protected`: a protected name in a writable root
- `gitdir`: the repository that a `.git` file points to
- `code`: code that this server runs from
- `settings`: settings, rules, state or logs of Holdfast
- `cover`: the first missing component of a path that has to stay missing
- `pin`: a directory that must keep its name because of a rule below it
- `glob`: a match of a pattern
- `socket`: a socket of an engine that would run programs outside
- `server`: a socket or token file of a Holdfast server, which would do the same
"""

Kind = Literal["directory", "file", "other"]


class Rule(NamedTuple):
    """Access to a path and to all below it that has no separate rule."""

    path: str
    """Absolute path, without links as far as it exists."""
    access: Literal["read", "write", "deny"]
    kind: Kind | None
    """Kind of file on disk; `None` if the path is missing."""
    why: Why = "entry"
    empty: bool = False
    """
    True for an empty file or directory that has to be read-only.

    It may be a mount point of another command, which may be removed at any moment.
    """


# Compared by identity: policies are keys of caches, and hashing all rules would cost more than
# the caches save.
@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """
    Access of a command to files and to the network.

    All paths are absolute, without links, `.` or `..`. Callers resolve a link first, since
    access to it is access to its target.
    """

    network: Network = "enabled"
    full_read: bool = True
    """True if everything may be read; nothing is denied."""
    full_write: bool = True
    """True if everything may be written; nothing is protected."""
    minimal: bool = False
    """True if the system directories may be read, whatever else is allowed."""
    rules: Mapping[str, Rule] = field(default_factory=dict)
    """Rules by path; with `full_write` only those that protect the files of Holdfast."""
    globs: tuple[Glob, ...] = ()
    """Patterns of denied files, for files that appear later than the policy."""
    links: tuple[tuple[str, str], ...] = ()
    """Links on the way to readable or writable paths: the path of each, and its target."""
    mounts: MountTable = NO_MOUNTS
    """Mounts of this machine: a pattern denies a file under each of its paths."""
    group_directories: tuple[str, ...] = ()
    """
    Writable directories with the set-group-ID bit, in which tools set it for new directories.

    A filter of system calls cannot tell these from programs, so commands may set it for both.
    """
    legacy_landlock: bool = False
    """True if the client asks for Landlock without mounts, which is refused."""

    @property
    def isolates(self) -> bool:
        """True if a command needs namespaces and a seccomp filter at all."""
        # Without network, even a command that may write everything needs a network namespace.
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
        return self._paths("read", {"protected", "gitdir", "code", "settings", "cover"})

    @property
    def own_reasons(self) -> Mapping[str, str]:
        """Reasons why paths of Holdfast itself are read-only though entries say otherwise."""
        own = self._paths("read", set(OWN_REASONS))
        return {path: OWN_REASONS[self.rules[path].why] for path in own}

    def access(self, path: str, *, patterns: bool = True) -> Literal["read", "write", "deny"]:
        """
        Return the access to a path; `deny` for a hidden path, too.

        Args:
            path: Real path.
            patterns: Compare it with the patterns; False for a directory or a link.
        """
        standing = self.standing(path, patterns=patterns)
        return "deny" if standing == "hidden" else standing

    def standing(self, path: str, *, patterns: bool = True) -> Standing:
        """Return the access to a path; `deny` means EACCES there, `hidden` ENOENT."""
        rule = self.governing(path)
        if rule is None:
            return "write" if self.full_write else "hidden"
        if rule.access == "deny":
            # A denied directory with a readable path below is an empty tmpfs with mode 111:
            # the directory cannot be listed, and its other entries do not exist.
            if rule.path != path and self.opens(rule.path):
                return "hidden"
            return "deny"
        # For a command, files that match at its start have rules of their own. This is for file
        # operations, which compare each path when they meet it.
        return "deny" if patterns and self.matches(path) else rule.access

    def matches(self, path: str) -> bool:
        """Return True if a pattern matches a path: a file, or a link, whose target it denies."""
        if not self.globs:
            return False
        names = (path, *self.mounts.names(path))
        return any(glob.matches(name) for name in names for glob in self.globs)

    def governing(self, path: str) -> Rule | None:
        """Return the rule of a path, or that of the nearest directory above it, or None."""
        rules = self.rules
        # A path has few components, so the walk upwards is cheaper than a search tree.
        while True:
            rule = rules.get(path)
            if rule is not None:
                return rule
            if path == "/":
                return None
            path = parent_of(path)

    def denies_folder(self, path: str) -> bool:
        """Return True if a directory and all below it are denied: it cannot be a cwd."""
        rule = None if self.full_write else self.governing(path)
        return rule is not None and rule.access == "deny" and not self.opens(path)

    def opens(self, path: str) -> bool:
        """Return True if a rule for something below this path allows reading or writing."""
        return path in _ways_in(self)

    def keeps_name(self, path: str) -> bool:
        """
        Return True if a path may be neither renamed nor removed (EBUSY), whatever its access.

        True for writable roots, for protected paths in them, and for the directories between
        the two. Under a new name, nothing in them would be protected.
        """
        return path in self.rules

    def _paths(self, access: str, reasons: set[str]) -> tuple[str, ...]:
        rules = self.rules.values()
        found = [rule.path for rule in rules if rule.access == access and rule.why in reasons]
        return tuple(sorted(found))


# Cached outside the class, whose slots have no room for a computed attribute.
@lru_cache(maxsize=128)
def _ways_in(policy: Policy) -> frozenset[str]:
    """Return all directories above a path that exists and may be read or written."""
    found: set[str] = set()
    for rule in policy.rules.values():
        path = rule.path
        # Stops at a directory that is known, since those above it are known, too.
        if rule.access != "deny" and rule.kind is not None:
            while path != "/" and (path := parent_of(path)) not in found:
                found.add(path)
    return frozenset(found)


def parent_of(path: str) -> str:
    """Return the directory of an absolute path; `/` for `/`."""
    return path[: path.rindex("/")] or "/"


def covers(path: str, other: str) -> bool:
    """Return True if a path is another one or above it."""
    return path == "/" or other == path or other.startswith(path + "/")


def is_private(path: str) -> bool:
    """Return True for a path in `/proc` or `/dev`, which every sandbox has itself."""
    own = covers("/proc", path) or covers("/dev", path)
    return own and not covers("/dev/shm", path)  # noqa: S108 - a name to compare with


def rule_above(rules: Mapping[str, Rule], path: str) -> Rule | None:
    """Return the rule of the nearest directory above a path, or None."""
    while path != "/":
        path = parent_of(path)
        rule = rules.get(path)
        if rule is not None:
            return rule
    return None
