"""
Whether a sandbox came out as planned, by the list of its mounts.

Bubblewrap follows links, in what it mounts and in where to. A command in another sandbox
may put a link in the place of a directory just then, and something else is mounted, or
elsewhere. No look at the disk beforehand can rule that out. So where a plan depends on
directories that a command may move, its mounts are compared with it before the command
is let go. Pure: the lists are texts, as the kernel shows them in `mountinfo`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

__all__ = ["Mount", "MountTable", "Planned", "first_mismatch", "led_elsewhere", "read_table"]

_OWN: Final = ("/dev/", "/proc/")
"""Where it mounts what no plan names."""

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class Planned(NamedTuple):
    """One mount as it has to be in the end."""

    path: str
    what: Literal["write", "read", "mask"]
    """The path itself, writable or not; or something else that hides it."""


class Mount(NamedTuple):
    """One mount as it is."""

    device: str
    root: str
    """The part of the device that is mounted."""
    writable: bool


MountTable: TypeAlias = Mapping[str, Mount]
"""By path; of several at one path the last, which lies on top."""


def read_table(text: str) -> MountTable:
    """Take apart what the kernel shows."""
    table: dict[str, Mount] = {}
    for line in text.splitlines():
        _, _, device, root, path, options, _ = line.split(" ", 6)
        table[_plain(path)] = Mount(device, _plain(root), options.startswith("rw"))
    return table


def first_mismatch(
    plan: Iterable[Planned],
    inside: MountTable,
    host: MountTable,
    *,
    hidden: Callable[[str], bool] = lambda path: False,
) -> str | None:
    """
    The path that is not as planned, if there is one.

    Args:
        plan: All mounts, but for those of `/`, `/dev` and `/proc`.
        inside: The mounts of a sandbox that is built.
        host: Those outside of it.
        hidden: Whether this user cannot get to a path. Bubblewrap leaves the host's
            mounts writable where it cannot get to them, as nobody inside can either.
    """
    writable: list[str] = []
    for path, what in plan:
        mount = inside.get(path)
        if mount is None or mount.writable is not (what == "write"):
            return path
        if (mount[:2] == _expected(path, host)) is (what == "mask"):
            return path
        if what == "write":
            writable.append(path)
    devices = {mount.device for mount in host.values()}
    for path, mount in inside.items():
        if not mount.writable or mount.device not in devices or path.startswith(_OWN):
            continue
        # Beside what was asked for, there is what others have mounted below it.
        granted = any(_covers(root, path) for root in writable)
        if mount[:2] != _expected(path, host) or not (granted or hidden(path)):
            return path
    return None


def led_elsewhere(
    plan: Iterable[Planned], inside: MountTable, host: MountTable
) -> list[tuple[str, str]]:
    """The directories that something else is mounted at, each with where that is on the host."""
    found: list[tuple[str, str]] = []
    for path, what in plan:
        mount = inside.get(path)
        if what == "mask" or mount is None or mount[:2] == _expected(path, host):
            continue
        for above, outer in host.items():
            if outer.device == mount.device and _covers(outer.root, mount.root):
                rest = mount.root.removeprefix(outer.root).lstrip("/")
                found.append((path, f"{above.rstrip('/')}/{rest}".rstrip("/")))
    return found


def _expected(path: str, host: MountTable) -> tuple[str, str] | None:
    """What is at a path of the host: a device, and the part of it."""
    above, rest = path, ""
    while True:
        mount = host.get(above)
        if mount is not None:
            return mount.device, (mount.root.rstrip("/") + rest) or "/"
        if above == "/":
            return None
        above, _, name = above.rpartition("/")
        above, rest = above or "/", f"/{name}{rest}"


def _covers(path: str, other: str) -> bool:
    return path == "/" or other == path or other.startswith(path + "/")


def _plain(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
