"""
Turns the rules of a policy into bubblewrap's mounts [sandbox.devices].

The rules are visited from `/` downwards. A rule needs a mount only if it differs from the rule
above it, so the list is as short as the rules allow. Later mounts lie on top, so a denied or
protected path inside of a writable one comes after it.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from holdfast.engine.sandbox.bubblewrap.mount_check import Planned
from holdfast.engine.sandbox.policy.policy import PROTECTED_NAMES, Policy, Rule, Standing, parent_of

__all__ = ["EMPTY_FD", "MAX_EMPTY_FDS", "EmptyFd", "MountTarget", "Mounts", "mounts"]

MAX_EMPTY_FDS: Final = 64
"""
Denied files that are masked by an empty file with mode 000, each of which costs a descriptor.

The others are masked by `/dev/null`, which cannot be opened on a mount without devices.
"""


class EmptyFd:
    """Placeholder in a list of arguments for the number of an empty descriptor."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "EMPTY_FD"


EMPTY_FD: Final = EmptyFd()


class MountTarget(NamedTuple):
    """
    Mount point on the host's disk that is made for sandboxes only.

    Bubblewrap creates a missing mount point and leaves it behind. It may be removed only after
    the last command that uses it, since that detaches the mounts on it in every sandbox.
    """

    path: str
    kind: Literal["directory", "file"]
    existed: bool
    """True if it existed, empty, when the policy was built."""


class Mounts(NamedTuple):
    """Mount arguments of bubblewrap, and the mount points that they need."""

    arguments: list[str | EmptyFd]
    targets: list[MountTarget]
    planned: list[Planned]
    """Resulting mounts, for the comparison with the real ones."""
    movable: bool
    """
    True if a command in another sandbox could rename a mount point while this one is built.

    That takes a mount point below a writable path. A protected name right below a writable root
    does not count: every sandbox with that root keeps the name in place.
    """


def mounts(policy: Policy) -> Mounts:
    """Return the mounts on top of `/`, parents first; none if everything may be written."""
    walk = _MountWalk(policy)
    for path in sorted(policy.rules, key=_by_component):
        walk.visit(policy.rules[path])
    walk.leave_for("")
    return Mounts(walk.arguments, walk.targets, walk.planned, walk.movable)


def _by_component(path: str) -> str:
    """Return a key that sorts a directory before its content, and both before its siblings."""
    return path.replace("/", "\0")


def _is_proc(path: str) -> bool:
    """Return True for a path in `/proc`: the host's is never mounted, whatever an entry says."""
    return path == "/proc" or path.startswith("/proc/")


class _Above(NamedTuple):
    """Rule of a directory above the current one."""

    path: str
    standing: Standing
    opened: bool = False
    """True if the directory is denied, but can be passed to reach a path below."""


class _MountWalk:
    """Collects the mounts of a policy; visit the rules in the order of `_by_component`."""

    def __init__(self, policy: Policy) -> None:
        self.arguments: list[str | EmptyFd] = []
        self.targets: list[MountTarget] = []
        self.planned: list[Planned] = []
        self.movable = False
        self._policy = policy
        self._denied_files = 0
        self._above = [_Above("", "hidden")]
        for link, said in policy.links:
            if policy.governing(link) is None:
                # Its directory exists only in the sandbox's tmpfs, so the link is made there.
                self.arguments += ("--symlink", said, link)

    def visit(self, rule: Rule) -> None:
        """Add the mounts of a rule; the rules above it have been visited."""
        self.leave_for(rule.path)
        above = self._above[-1].standing
        opened = False
        if rule.path == "/":
            # The first arguments of `arguments.plan` have mounted it.
            pass
        elif rule.access == "deny":
            opened = self._deny(rule, above)
        elif _is_proc(rule.path):
            # The sandbox has a `/proc` of its own.
            pass
        elif rule.kind is None or rule.empty:
            if above == "write":
                self._cover(rule)
        elif above != rule.access or (rule.access == "write" and rule.kind == "directory"):
            # Also for a writable directory in another one. As a mount point it cannot be
            # renamed; under a new name, its protected paths would be writable (13, rule 2).
            bind = "--bind" if rule.access == "write" else "--ro-bind"
            self.arguments += (bind, rule.path, rule.path)
            self._plan(rule, rule.access)
        self._above.append(_Above(rule.path, rule.access, opened))

    def _plan(self, rule: Rule, what: Literal["write", "read", "mask"]) -> None:
        self.planned.append(Planned(rule.path, what))
        inside = any(above.standing == "write" for above in self._above)
        # By its name and not by `why`: clients list the protected names as entries, too.
        named = rule.path.rpartition("/")[2] in PROTECTED_NAMES
        kept = named and parent_of(rule.path) == self._above[-1].path
        self.movable |= inside and not kept

    def leave_for(self, path: str) -> None:
        """Leave the directories that are not above this path; an empty path leaves all."""
        while len(self._above) > 1:
            last = self._above[-1]
            if path and (last.path == "/" or path.startswith(last.path + "/")):
                return
            # Only now: bubblewrap has to create mount points in this tmpfs before.
            if last.opened:
                self.arguments += ("--remount-ro", last.path)
            self._above.pop()

    def _deny(self, rule: Rule, above: Standing) -> bool:
        """Mask a denied path; return True if it can be passed to reach a path below."""
        path = rule.path
        if above == "deny" and not self._above[-1].opened:
            # The mask of the directory above hides it already.
            return False
        if rule.kind is None:
            if above == "write":
                self._cover(rule)
            return False
        self._plan(rule, "mask")
        if rule.kind == "directory":
            if self._policy.opens(path):
                # Mode 111: it can be passed through, but not listed.
                self.arguments += ("--perms", "111", "--tmpfs", path)
                return True
            self._hide(path)
        elif self._denied_files < MAX_EMPTY_FDS:
            self._denied_files += 1
            self.arguments += ("--perms", "000", "--ro-bind-data", EMPTY_FD, path)
        else:
            # Needs no descriptor, of which a process has only so many.
            self.arguments += ("--ro-bind", "/dev/null", path)
        # Perhaps a mount point of another command: this one becomes a user of it, too.
        if rule.empty and above == "write":
            kind: Literal["directory", "file"] = "file" if rule.kind == "file" else "directory"
            self.targets.append(MountTarget(path, kind, existed=True))
        return False

    def _hide(self, path: str, perms: str = "000") -> None:
        self.arguments += ("--perms", perms, "--tmpfs", path, "--remount-ro", path)

    def _cover(self, rule: Rule) -> None:
        """Keep a missing path from being created, by a read-only and empty mount on it."""
        # A protected name is most likely to be a directory, such as `.git`; others are covered
        # by a file, which a command cannot enter either.
        existed = rule.kind is not None
        self._plan(rule, "mask")
        named = rule.path.rpartition("/")[2] in PROTECTED_NAMES
        if rule.kind == "directory" or (named and not existed):
            self._hide(rule.path, "000" if rule.access == "deny" else "555")
            self.targets.append(MountTarget(rule.path, "directory", existed))
        else:
            self.arguments += ("--ro-bind-data", EMPTY_FD, rule.path)
            self.targets.append(MountTarget(rule.path, "file", existed))
