"""
The arguments of bubblewrap for a policy [sandbox.bwrap.*].

Nothing is started here. The order is the reference's where it matters: what is mounted
later lies on top. Beside its arguments stand the stricter ones of section 13: kernel
tunables are read-only (rule 1), no further namespaces can be made (6), the host name and
the cgroups are private (17), and a command that may write everything but not reach the
network gets namespaces too (7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from holdfast.errors import CannotEnforce
from holdfast.sandbox.bubblewrap.devices import DEVICES
from holdfast.sandbox.bubblewrap.mount_check import Planned
from holdfast.sandbox.bubblewrap.mounts import EmptyFd, MountTarget, mounts
from holdfast.sandbox.policy.policy import NO_LANDLOCK, Policy

__all__ = ["Plan", "plan"]

_ALWAYS: Final = (
    "--die-with-parent",
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--disable-userns",
    "--cap-drop",
    "ALL",
)
_DEVICES: Final = ("--dev", "/dev")
_SHARED_MEMORY: Final = ("--bind-try", "/dev/shm", "/dev/shm")  # noqa: S108 (a mount, no file)
_SYSTEM: Final = ("--ro-bind-try", "/sys", "/sys")
_PROCESSES: Final = ("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys")
_READ_ONLY_PROCESSES: Final = ("--proc", "/proc", "--remount-ro", "/proc")
_NO_PROCESSES: Final = ("--perms", "555", "--tmpfs", "/proc", "--remount-ro", "/proc")


@dataclass(frozen=True, slots=True)
class Plan:
    """How bubblewrap has to be started."""

    arguments: tuple[str | EmptyFd, ...]
    """Without its own name, a filter, and the command behind `--`."""
    targets: tuple[MountTarget, ...]
    """What has to be removed from disk after the last command that has it."""
    empty_fds: int
    """How many descriptors that read as empty it needs; each is used up by one mount."""
    to_verify: tuple[Planned, ...] = ()
    """
    What has to be found mounted before the command may run (`bubblewrap.mount_check`). Empty if
    no other command with the same roots can have changed it.
    """

    def argv(self, empty_fds: Sequence[int]) -> list[str]:
        """
        The arguments as texts.

        Args:
            empty_fds: The numbers that those descriptors will have in the launcher; as
                many as `Plan.empty_fds` says.
        """
        if not self.empty_fds:
            return list(self.arguments)  # type: ignore[arg-type]  # no blank among them
        left = iter(empty_fds)
        return [
            str(next(left)) if isinstance(argument, EmptyFd) else argument
            for argument in self.arguments
        ]


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
    Say how to start bubblewrap for a policy that isolates.

    Args:
        settings: More of `/proc` that has to be read-only, beside what always is.
        read_only_proc: Whether all of `/proc` has to be.
        devices: A folder with those to be used in place of the machine's.
        proc: Whether a new `/proc` can be mounted here. If not, there is none: the
            host's would show every process (13, rule 14).

    Raises:
        CannotEnforce: The client asks for Landlock in place of mounts [sandbox.legacy-landlock].
    """
    assert policy.isolates  # whoever starts the command asks first
    if policy.legacy_landlock:
        raise CannotEnforce(NO_LANDLOCK)
    made: list[str | EmptyFd] = list(_ALWAYS)
    if policy.network == "restricted":
        made.append("--unshare-net")
    root = policy.rules.get("/")
    if policy.full_write or (root is not None and root.access == "write"):
        made += ("--bind", "/", "/", *_DEVICES, *_SHARED_MEMORY, *_SYSTEM)
    else:
        made += ("--tmpfs", "/") if root is None else ("--ro-bind", "/", "/")
        made += _DEVICES
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
    tree = mounts(policy)
    made += tree.arguments
    empty_fds = sum(isinstance(argument, EmptyFd) for argument in tree.arguments)
    to_verify = tree.planned if tree.movable else []
    if tree.movable and root is not None and root.access == "write":
        to_verify = [Planned("/", "write"), *to_verify]
    return Plan(tuple(made), tuple(tree.targets), empty_fds, tuple(to_verify))
