"""
From rules to mounts: what bubblewrap is told to put where [sandbox.devices].

The rules are walked from `/` downwards. A mount is needed only where a rule differs from
the one above it, so a list is as short as the rules allow. What is mounted later lies on
top, so whatever is denied or protected inside of something writable comes after it.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from holdfast.sandbox.bubblewrap.mount_check import Planned
from holdfast.sandbox.policy.policy import PROTECTED_NAMES, Policy, Rule, Standing, parent_of

__all__ = ["EMPTY_FD", "MAX_EMPTY_FDS", "EmptyFd", "MountTarget", "Mounts", "mounts"]

MAX_EMPTY_FDS: Final = 64
"""
How many denied files get an empty one of their own in their place, each of which costs a
descriptor. The ones after that get `/dev/null`, which cannot be opened on such a mount.
"""


class EmptyFd:
    """Stands in a list of arguments for a descriptor that reads as empty."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "EMPTY_FD"


EMPTY_FD: Final = EmptyFd()


class MountTarget(NamedTuple):
    """
    A path that is made only to be mounted on, or has been by another command.

    Bubblewrap makes what is missing and leaves it behind. Whoever removes it waits
    for the last command that has it: when a path vanishes, so does every mount on it.
    """

    path: str
    kind: Literal["directory", "file"]
    existed: bool
    """It was there, empty, when the policy was made."""


class Mounts(NamedTuple):
    """Arguments of bubblewrap, and what they leave on disk."""

    arguments: list[str | EmptyFd]
    targets: list[MountTarget]
    planned: list[Planned]
    """What is where in the end."""
    movable: bool
    """
    Whether some of it is below something writable, so that a command in another sandbox
    could move it away while this one is built. A protected name right below a writable
    root does not count: every sandbox that has the root keeps it where it is.
    """


def mounts(policy: Policy) -> Mounts:
    """What lies on top of `/`, parents first. Empty if everything may be written."""
    walk = _MountWalk(policy)
    for path in sorted(policy.rules, key=_by_component):
        walk.visit(policy.rules[path])
    walk.leave_for("")
    return Mounts(walk.arguments, walk.targets, walk.planned, walk.movable)


def _by_component(path: str) -> str:
    """A key that sorts a directory before what is in it, and all that before its siblings."""
    return path.replace("/", "\0")


def _is_proc(path: str) -> bool:
    """Whether a path is part of `/proc`: the host's stays out, whatever an entry says."""
    return path == "/proc" or path.startswith("/proc/")


class _Above(NamedTuple):
    """A rule that the walk is below of."""

    path: str
    standing: Standing
    opened: bool = False
    """Denied, but with a way through to something inside."""


class _MountWalk:
    """One pass over the rules."""

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
                # Its directory is made up, so the link has to be made as well.
                self.arguments += ("--symlink", said, link)

    def visit(self, rule: Rule) -> None:
        """Mount what a rule needs; those above it have had their turn."""
        self.leave_for(rule.path)
        above = self._above[-1].standing
        opened = False
        if rule.path == "/":
            pass  # `/` is there before anything else
        elif rule.access == "deny":
            opened = self._deny(rule, above)
        elif _is_proc(rule.path):
            pass  # the sandbox's own is there
        elif rule.kind is None or rule.empty:
            if above == "write":
                self._cover(rule)
        elif above != rule.access or (rule.access == "write" and rule.kind == "directory"):
            # A writable directory in another one, too: it has to keep its name, or what is
            # protected in it could be had under a new one (13, rule 2).
            bind = "--bind" if rule.access == "write" else "--ro-bind"
            self.arguments += (bind, rule.path, rule.path)
            self._plan(rule, rule.access)
        self._above.append(_Above(rule.path, rule.access, opened))

    def _plan(self, rule: Rule, what: Literal["write", "read", "mask"]) -> None:
        self.planned.append(Planned(rule.path, what))
        inside = any(above.standing == "write" for above in self._above)
        # Whether the profile names it, as clients do, or not.
        named = rule.path.rpartition("/")[2] in PROTECTED_NAMES
        kept = named and parent_of(rule.path) == self._above[-1].path
        self.movable |= inside and not kept

    def leave_for(self, path: str) -> None:
        """Finish with the rules that are not above this path."""
        while len(self._above) > 1:
            last = self._above[-1]
            if path and (last.path == "/" or path.startswith(last.path + "/")):
                return
            if last.opened:
                self.arguments += ("--remount-ro", last.path)
            self._above.pop()

    def _deny(self, rule: Rule, above: Standing) -> bool:
        """Hide what is there. Returns whether there is a way through."""
        path = rule.path
        if above == "deny" and not self._above[-1].opened:
            return False  # hidden with what it is in
        if rule.kind is None:
            if above == "write":
                self._cover(rule)
            return False
        self._plan(rule, "mask")
        if rule.kind == "directory":
            if self._policy.opens(path):
                self.arguments += ("--perms", "111", "--tmpfs", path)
                return True
            self._hide(path)
        elif self._denied_files < MAX_EMPTY_FDS:
            self._denied_files += 1
            self.arguments += ("--perms", "000", "--ro-bind-data", EMPTY_FD, path)
        else:
            self.arguments += ("--ro-bind", "/dev/null", path)
        if rule.empty and above == "write":
            kind: Literal["directory", "file"] = "file" if rule.kind == "file" else "directory"
            self.targets.append(MountTarget(path, kind, existed=True))
        return False

    def _hide(self, path: str, perms: str = "000") -> None:
        self.arguments += ("--perms", perms, "--tmpfs", path, "--remount-ro", path)

    def _cover(self, rule: Rule) -> None:
        """Keep a path from being made: something empty and read-only is there."""
        existed = rule.kind is not None
        self._plan(rule, "mask")
        named = rule.path.rpartition("/")[2] in PROTECTED_NAMES
        if rule.kind == "directory" or (named and not existed):
            self._hide(rule.path, "000" if rule.access == "deny" else "555")
            self.targets.append(MountTarget(rule.path, "directory", existed))
        else:
            self.arguments += ("--ro-bind-data", EMPTY_FD, rule.path)
            self.targets.append(MountTarget(rule.path, "file", existed))
