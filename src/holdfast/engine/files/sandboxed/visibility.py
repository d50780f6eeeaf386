"""
Decides what a sandbox shows at a path [fs.sandbox.hidden].

A sandboxed command sees a tree of mounts: some paths are read-only, some are masked, and those
without a rule do not exist. File operations run in the server, but have to respond as if they ran
in that tree. This module only consults the policy; it does no I/O.
"""

import enum
import re

from holdfast.engine.sandbox.policy.policy import OWN_REASONS, Policy, is_private, parent_of

__all__ = ["Sight", "View"]

# Directories of processes: these would be the server's and other processes of the host.
_PROCESS = re.compile(r"/proc/(?:self|thread-self|[0-9]+)(?:/|\Z)")

# Devices that every sandbox has and that may be written to [sandbox.devices].
_DEVICES = frozenset(f"/dev/{name}" for name in ("full", "null", "random", "urandom", "zero"))

# File systems whose files change the machine itself: never writable, whatever a rule says.
_KERNEL = re.compile(r"/(?:proc|sys|dev(?!/shm(?:/|\Z)))(?:/|\Z)")


class Sight(enum.Enum):
    """Visibility of a path in a sandbox."""

    WRITE = enum.auto()
    READ = enum.auto()
    TRAVERSABLE = enum.auto()
    """A directory or link that exists only since it leads to a visible path."""

    TRAVERSABLE_DENIED = enum.auto()
    """The same, but denied by a rule: it can be traversed, not listed."""

    DENIED = enum.auto()
    """Masked: it exists, but cannot be read, written or entered."""

    HIDDEN = enum.auto()
    """It does not exist."""


class View:
    """Tree that a policy shows, by the real paths of this machine."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # Directories and links on the way to a visible path.
        self._traversable = {"/", "/dev"}
        for rule in policy.rules.values():
            if rule.kind is None:
                continue
            if rule.access != "deny":
                self._pass_to(rule.path)
            elif policy.governing(parent_of(rule.path)) is None:
                # Its mask is visible, so the directories above exist.
                self._pass_to(rule.path)
        for link, _ in policy.links:
            self._pass_to(link)
            self._traversable.add(link)

    def _pass_to(self, path: str) -> None:
        while path != "/":
            path = parent_of(path)
            self._traversable.add(path)

    def sight(self, path: str, *, patterns: bool = True) -> Sight:
        """
        Return the visibility of a real path.

        Args:
            path: Absolute path without dots and links; it need not exist.
            patterns: Compare it with the patterns; False for a directory or a link.
        """
        # Before all rules: every sandbox has these devices, whatever its policy.
        if path in _DEVICES:
            return Sight.WRITE
        # A sandbox has its own pid namespace, where none of these processes exists.
        if _PROCESS.match(path):
            return Sight.HIDDEN
        standing = self._policy.standing(path, patterns=patterns)
        if standing == "write":
            return Sight.READ if _KERNEL.match(path) else Sight.WRITE
        if standing == "read":
            return Sight.READ
        if path in self._traversable:
            return Sight.TRAVERSABLE_DENIED if standing == "deny" else Sight.TRAVERSABLE
        return Sight.DENIED if standing == "deny" else Sight.HIDDEN

    def sight_by_match(self, path: str) -> Sight:
        """Return the visibility of the target of a link that a pattern matches."""
        sight = self.sight(path)
        shown = sight is Sight.READ or sight is Sight.WRITE
        return Sight.DENIED if shown and not is_private(path) else sight

    def matches(self, link: str) -> bool:
        """Return True if a pattern matches a link, and so denies its target."""
        return self._policy.matches(link)

    def own_reason(self, path: str) -> str | None:
        """Return the reason why a path of Holdfast itself is read-only; None for other paths."""
        rule = self._policy.governing(path)
        return None if rule is None else OWN_REASONS.get(rule.why)

    def has_device(self, path: str) -> bool:
        """Return True if a sandbox has the device at this path; others cannot be opened."""
        return path in _DEVICES

    def shows_part_of(self, folder: str) -> bool:
        """Return True if a directory can be listed but some of its entries are hidden."""
        return folder == "/proc" or self.sight(folder, patterns=False) is Sight.TRAVERSABLE

    def may_go(self, path: str, *, patterns: bool = True) -> bool:
        """Return True if a path may be removed: it is writable, and no rule keeps its name."""
        kept = self._policy.keeps_name(path)
        return not kept and self.sight(path, patterns=patterns) is Sight.WRITE
