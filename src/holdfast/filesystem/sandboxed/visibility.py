"""
How a path shows to whoever is confined by a sandbox [fs.sandbox.hidden].

A sandboxed command lives in a tree of mounts: some places are read-only, some are
masked, and what no rule covers is not there at all. File operations have to answer
as that tree would, but are done in the server. So this says of each real path what
the tree would show, from the policy alone; nothing here looks at a file.
"""

import enum
import re

from holdfast.sandbox.policy.policy import Policy, parent_of

__all__ = ["Sight", "View"]

_PROCESS = re.compile(r"/proc/(?:self|thread-self|[0-9]+)(?:/|\Z)")
"""What the kernel tells of processes: here it would be the server's and its neighbours'."""

_DEVICES = frozenset(f"/dev/{name}" for name in ("full", "null", "random", "urandom", "zero"))
"""Devices that every sandbox has, and that may be written to [sandbox.devices]."""

_KERNEL = re.compile(r"/(?:proc|sys|dev(?!/shm(?:/|\Z)))(?:/|\Z)")
"""Trees whose files are the machine itself: never written to, whatever a rule says."""


class Sight(enum.Enum):
    """What the sandbox shows at a path."""

    WRITE = enum.auto()
    READ = enum.auto()
    TRAVERSABLE = enum.auto()
    """A folder, or a link, that is there only because it leads to something visible."""

    TRAVERSABLE_DENIED = enum.auto()
    """The same, but denied by a rule: it can be passed, not listed."""

    DENIED = enum.auto()
    """Masked: it can be seen that it is there, and nothing else."""

    HIDDEN = enum.auto()
    """Not there."""


class View:
    """The tree that a policy shows, by the real paths of this machine."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._passages = {"/", "/dev"}
        for rule in policy.rules.values():
            if rule.kind is None:
                continue
            if rule.access != "deny":
                self._pass_to(rule.path)
            elif policy.governing(parent_of(rule.path)) is None:
                self._pass_to(rule.path)  # that it is denied can be seen, so it is there
        for link, _ in policy.links:
            self._pass_to(link)
            self._passages.add(link)

    def _pass_to(self, path: str) -> None:
        while path != "/":
            path = parent_of(path)
            self._passages.add(path)

    def sight(self, path: str, *, folder: bool = False) -> Sight:
        """
        What is shown at a real path, which is absolute and has no dots and no links.

        Args:
            path: It need not exist.
            folder: It is a folder. Patterns are about files only.
        """
        if path in _DEVICES:
            return Sight.WRITE
        if _PROCESS.match(path):
            return Sight.HIDDEN
        standing = self._policy.standing(path, directory=folder)
        if standing == "write":
            return Sight.READ if _KERNEL.match(path) else Sight.WRITE
        if standing == "read":
            return Sight.READ
        if path in self._passages:
            return Sight.TRAVERSABLE_DENIED if standing == "deny" else Sight.TRAVERSABLE
        return Sight.DENIED if standing == "deny" else Sight.HIDDEN

    def has_device(self, path: str) -> bool:
        """Whether a device at this path is one that the sandbox has; others it cannot open."""
        return path in _DEVICES

    def shows_part_of(self, folder: str) -> bool:
        """Whether some entries of a folder that can be listed may be hidden."""
        return folder == "/proc" or self.sight(folder, folder=True) is Sight.TRAVERSABLE

    def may_go(self, path: str, *, folder: bool = False) -> bool:
        """Whether a path that is written may also be removed: rules hold on to some names."""
        return self.sight(path, folder=folder) is Sight.WRITE and not self._policy.keeps_name(path)
