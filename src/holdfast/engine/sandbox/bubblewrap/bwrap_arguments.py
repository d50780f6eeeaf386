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
from typing import Final

from holdfast.base.dialect import texts
from holdfast.base.errors import CannotEnforce
from holdfast.engine.linux.device_nodes import DEVICES
from holdfast.engine.sandbox.bubblewrap.mount_check import Planned
from holdfast.engine.sandbox.bubblewrap.mounts import EmptyFd, MountTarget, mounts
from holdfast.engine.sandbox.policy.policy import Policy

__all__ = ["Plan", "plan"]

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

    arguments: tuple[str | EmptyFd, ...]
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
        Return the arguments as texts.

        Args:
            empty_fds: Numbers of the empty descriptors in bubblewrap's process, as many as
                `Plan.empty_fds`.
        """
        if not self.empty_fds:
            return list(self.arguments)  # type: ignore[arg-type]  # all of them are texts
        left = iter(empty_fds)
        return [
            str(next(left)) if isinstance(argument, EmptyFd) else argument
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
        settings: Paths in `/proc` to mount read-only, beside `/proc/sys`.
        read_only_proc: True to mount all of `/proc` read-only.
        devices: Directory with device nodes to use instead of the host's.

    Raises:
        CannotEnforce: The client asks for Landlock instead of mounts [sandbox.legacy-landlock].
    """
    # Callers start the command without bubblewrap otherwise.
    assert policy.isolates
    if policy.legacy_landlock:
        raise CannotEnforce(texts.NO_LANDLOCK)
    made: list[str | EmptyFd] = list(_ALWAYS)
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
    empty_fds = sum(isinstance(argument, EmptyFd) for argument in tree.arguments)
    to_verify = tree.planned if tree.movable else []
    # `/` is bound above and not by `mounts`. Without it in the plan, all mounts that it brings
    # along would count as mismatches.
    if tree.movable and root_is_writable:
        to_verify = [Planned("/", "write"), *to_verify]
    return Plan(tuple(made), tuple(tree.targets), empty_fds, tuple(to_verify))
