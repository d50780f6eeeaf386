"""
Compares the mounts of a sandbox with its plan.

Bubblewrap follows symbolic links, both in the source and in the target of a mount. A command in
another sandbox may replace a directory by a link at that moment, so that other files are mounted,
or at another place. No check beforehand can rule that out. So if a plan depends on directories that
a command may move, the mounts are compared with the plan before the command starts. No I/O is done
here: the mounts are the text of `/proc/PID/mountinfo`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from holdfast.engine.linux.mounts import Mount, parse_mounts
from holdfast.engine.sandbox.policy.policy import covers

__all__ = ["MountsByPoint", "Planned", "first_mismatch", "led_elsewhere", "read_table"]

# Below these, bubblewrap makes mounts that are in no plan.
_OWN: Final = ("/dev/", "/proc/")


class Planned(NamedTuple):
    """Mount of a plan."""

    path: str
    what: Literal["write", "read", "mask"]
    """The host's path, writable or read-only; or `mask`, something else that hides the path."""


MountsByPoint: TypeAlias = Mapping[str, Mount]
"""Mounts by mount point; of several at one mount point the last, which lies on top."""


def read_table(text: str) -> MountsByPoint:
    """Parse the text of a `mountinfo`."""
    return {one.point: one for one in parse_mounts(text)}


def first_mismatch(
    plan: Iterable[Planned],
    inside: MountsByPoint,
    host: MountsByPoint,
    *,
    hidden: Callable[[str], bool] = lambda path: False,
) -> str | None:
    """
    Return the first path that is not mounted as planned, or None.

    Args:
        plan: All mounts, except those of `/`, `/dev` and `/proc`.
        inside: Mounts of the sandbox.
        host: Mounts of the host.
        hidden: Returns True if this user cannot reach a path. Bubblewrap leaves such mounts of the
            host writable, since no command inside can reach them either.
    """
    # First the mounts of the plan, then any writable mount that is not in it.
    writable: list[str] = []
    for path, what in plan:
        mount, outside = inside.get(path), _expected(path, host)
        # Mounts that are read-only outside, as the disk of some containers, are so inside.
        writes = what == "write" and (outside is None or outside.writable)
        if mount is None or mount.writable is not writes:
            return path
        # A mask must be something else than the host's file; all others must be that file.
        if _is_same(mount, outside) is (what == "mask"):
            return path
        if what == "write":
            writable.append(path)
    # Mounts of other devices are the sandbox's own tmpfs, which hold nothing of the host.
    devices = {mount.device for mount in host.values()}
    for path, mount in inside.items():
        if not mount.writable or mount.device not in devices or path.startswith(_OWN):
            continue
        # A bind mount is recursive: it includes the host's mounts below its path.
        granted = any(covers(root, path) for root in writable)
        if not _is_same(mount, _expected(path, host)) or not (granted or hidden(path)):
            return path
    return None


def led_elsewhere(
    plan: Iterable[Planned], inside: MountsByPoint, host: MountsByPoint
) -> list[tuple[str, str]]:
    """Return the mount points with a wrong mount, each with the host's path of that mount."""
    found: list[tuple[str, str]] = []
    for path, what in plan:
        mount = inside.get(path)
        if what == "mask" or mount is None or _is_same(mount, _expected(path, host)):
            continue
        # The host may have mounted the same file system several times: all paths count.
        for above, outer in host.items():
            if outer.device == mount.device and covers(outer.root, mount.root):
                rest = mount.root.removeprefix(outer.root).lstrip("/")
                found.append((path, f"{above.rstrip('/')}/{rest}".rstrip("/")))
    return found


def _is_same(mount: Mount, other: Mount | None) -> bool:
    """Return True if both show the same directory or file of the same file system."""
    return other is not None and (mount.device, mount.root) == (other.device, other.root)


def _expected(path: str, host: MountsByPoint) -> Mount | None:
    """Return a mount of the directory that a path of the host has, or None."""
    # The nearest mount point above decides which device a path is on.
    above, rest = path, ""
    while True:
        mount = host.get(above)
        if mount is not None:
            return mount._replace(root=(mount.root.rstrip("/") + rest) or "/")
        if above == "/":
            return None
        above, _, name = above.rpartition("/")
        above, rest = above or "/", f"/{name}{rest}"
