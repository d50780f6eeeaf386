"""
Builds the command line of bubblewrap for a policy [sandbox.bwrap.*].

Nothing is started here. Later mounts lie on top of earlier ones, so their order matters.
Some arguments are stricter than clients need: kernel tunables are read-only, no further
namespaces can be made, and the host name and the cgroups are private. A command that may write
everything gets namespaces too if it has no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from holdfast.base.dialect import texts
from holdfast.base.errors import CannotEnforce
from holdfast.engine.linux.device_nodes import DEVICES
from holdfast.engine.sandbox.bubblewrap.mount_check import Planned
from holdfast.engine.sandbox.policy.policy import PROTECTED_NAMES, Policy, Rule, Standing, parent_of

__all__ = ["EMPTY_FD", "MAX_EMPTY_FDS", "MountTarget", "Mounts", "Plan", "mounts", "plan"]

# -- mounts
#
# The rules of a policy are visited from `/` downwards. A rule needs a mount only if it differs
# from the rule above it, so the list is as short as the rules allow. Later mounts lie on top, so a
# denied or protected path inside of a writable one comes after it [sandbox.devices].


MAX_EMPTY_FDS: Final = 64
"""
Denied files that are masked by an empty file with mode 000, each of which costs a descriptor.

The others are masked by `/dev/null`, which cannot be opened on a mount without devices.
"""


class _EmptyFd:
    """Placeholder in a list of arguments for the number of an empty descriptor."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "EMPTY_FD"


EMPTY_FD: Final = _EmptyFd()


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

    arguments: list[str | _EmptyFd]
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
        self.arguments: list[str | _EmptyFd] = []
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


# Options of every sandbox. It ends with the server by its init program.
_ALWAYS: Final = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--disable-userns",
    "--cap-drop",
    "ALL",
)
# A new tmpfs with a few device nodes: the host's `/dev` has disks and terminals.
_DEVICES: Final = ("--dev", "/dev")
# Semaphores and shared memory of programs outside keep working where `/` is writable.
_SHARED_MEMORY: Final = ("--bind-try", "/dev/shm", "/dev/shm")  # noqa: S108 (a mount, no file)
_SYSTEM: Final = ("--ro-bind-try", "/sys", "/sys")
# `/proc/sys` holds sysctls, which root could write even without capabilities.
_PROCESSES: Final = ("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys")
# For root, who owns the files of `/proc` and could change their modes for the whole machine.
_READ_ONLY_PROCESSES: Final = ("--proc", "/proc", "--remount-ro", "/proc")
# Where no `/proc` can be mounted. An empty one: the host's would show every process.
_NO_PROCESSES: Final = ("--perms", "555", "--tmpfs", "/proc", "--remount-ro", "/proc")


@dataclass(frozen=True, slots=True)
class Plan:
    """Command line of bubblewrap, and the mount points that it relies on."""

    arguments: tuple[str | _EmptyFd, ...]
    """Arguments without the program name, the filter, and the command after `--`."""
    targets: tuple[MountTarget, ...]
    """Mount points on the host's disk, to be removed after the last command that uses them."""
    empty_fds: int
    """Number of empty descriptors to pass; each mount of an empty file uses one up."""
    to_verify: tuple[Planned, ...] = ()
    """
    Mounts to compare with the sandbox before the command runs (`bubblewrap.mount_check`).

    Empty if no command in another sandbox can have moved a directory of this one.
    """

    def argv(self, empty_fds: Sequence[int]) -> list[str]:
        """
        Return the arguments as strings.

        Args:
            empty_fds: Numbers of the empty descriptors in bubblewrap's process, as many as
                `Plan.empty_fds`.
        """
        if not self.empty_fds:
            return list(self.arguments)  # type: ignore[arg-type]  # all of them are strings
        left = iter(empty_fds)
        return [
            str(next(left)) if isinstance(argument, _EmptyFd) else argument
            for argument in self.arguments
        ]


# A policy is reused as long as the disk does not change, and so is its plan.
@lru_cache(maxsize=128)
def plan(
    policy: Policy,
    *,
    proc: bool = True,
    settings: tuple[str, ...] = (),
    read_only_proc: bool = False,
    devices: str | None = None,
) -> Plan:
    """
    Return the command line of bubblewrap for a policy that isolates.

    Args:
        policy: Rules of the sandbox.
        proc: True if a new `/proc` can be mounted here; otherwise `/proc` is empty, since the
            host's would show every process (13, rule 14).
        settings: Paths in `/proc` to mount read-only, in addition to `/proc/sys`.
        read_only_proc: True to mount all of `/proc` read-only.
        devices: Directory with device nodes to use instead of the host's.

    Raises:
        CannotEnforce: The client asks for Landlock instead of mounts [sandbox.legacy-landlock].
    """
    # Callers start the command without bubblewrap otherwise.
    assert policy.isolates
    if policy.legacy_landlock:
        raise CannotEnforce(texts.NO_LANDLOCK)
    made: list[str | _EmptyFd] = list(_ALWAYS)
    # Only without network: otherwise the command shares the host's network namespace.
    if policy.network == "restricted":
        made.append("--unshare-net")
    root = policy.rules.get("/")
    root_is_writable = policy.full_write or (root is not None and root.access == "write")
    if root_is_writable:
        made += ("--bind", "/", "/", *_DEVICES, *_SHARED_MEMORY, *_SYSTEM)
    else:
        made += ("--tmpfs", "/") if root is None else ("--ro-bind", "/", "/")
        made += _DEVICES
    # After `--dev`, whose nodes these replace.
    if devices is not None:
        for name in DEVICES:
            made += ("--dev-bind", f"{devices}/{name}", f"/dev/{name}")
    if not proc:
        made += _NO_PROCESSES
    elif read_only_proc:
        made += _READ_ONLY_PROCESSES
    else:
        made += _PROCESSES
        for path in settings:
            made += ("--ro-bind", path, path)
    # Last, on top of all of these: an entry may deny a path in `/dev` or `/sys`.
    tree = mounts(policy)
    made += tree.arguments
    empty_fds = sum(isinstance(argument, _EmptyFd) for argument in tree.arguments)
    to_verify = tree.planned if tree.movable else []
    # `/` is bound above and not by `mounts`. Without it in the plan, all mounts below it would
    # count as mismatches.
    if tree.movable and root_is_writable:
        to_verify = [Planned("/", "write"), *to_verify]
    return Plan(tuple(made), tuple(tree.targets), empty_fds, tuple(to_verify))
