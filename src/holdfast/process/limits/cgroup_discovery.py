"""
Where the cgroups of commands can be made, if anywhere, and what to change if not.

Only looks. A place is a cgroup that was left to this process to divide: by systemd, for
a unit with `Delegate=yes`, by the manager of a container, or because no one else is there.
"""

import os
from collections.abc import Iterator

import msgspec

from holdfast.linux.cgroupfs import (
    CONTROLLERS,
    NoCgroup,
    bound_to_version_1,
    is_root,
    own_folder,
    processes_in,
    read_words,
    stranger_in,
)

__all__ = ["Place", "find_place"]

# How systemd marks what it leaves to others; that of a user has no such marks.
_MARKS = ("user.delegate", "trusted.delegate")

# Seconds for systemd to answer.
_ASK_LIMIT = 5.0

# Is there where systemd runs, which changes what it has not left to others.
_SYSTEMD = "/run/systemd/system"

_UNIFIED = "start the kernel with `cgroup_no_v1=all`, or systemd with a unified hierarchy"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A cgroup to make those of commands in; or why there is none."""

    folder: str | None = None
    moves: bool = False
    """Whether our processes have to leave it first, for one of their own below it."""
    controllers: tuple[str, ...] = ()
    """What can be limited there."""
    problem: str = ""
    """A sentence, if something cannot be limited."""
    advice: str = ""
    """What to change then."""

    def why_not(self, controller: str) -> str | None:
        """Why a controller cannot be had, and what to change; `None` if it can."""
        if controller in self.controllers:
            return None
        return f"{self.problem}; {self.advice}"


def find_place(
    root_pid: int, *, proc: str = "/proc", systemd: bool | None = None, uid: int | None = None
) -> Place:
    """
    Look for a place; nothing is changed.

    Args:
        root_pid: The first of our processes; all others descend from it.
        proc: Where the kernel tells of processes.
        systemd: Whether it runs this machine; looked for by default.
        uid: Of this process.
    """
    systemd = os.path.isdir(_SYSTEMD) if systemd is None else systemd
    start = _how_to_start(os.getuid() if uid is None else uid, systemd=systemd)
    try:
        own, top = own_folder(proc)
    except NoCgroup as error:
        return Place(problem=str(error), advice=_UNIFIED)
    if bound_to_version_1(proc).issuperset(CONTROLLERS):
        return Place(problem="the controllers are those of cgroups of version 1", advice=_UNIFIED)
    places = list(_places(own, top, root_pid, proc, systemd, start))
    # The one with the most, and of these the nearest, which also has the nearest reason.
    return max(places, key=lambda place: len(place.controllers))


def _places(
    own: str, top: str, root_pid: int, proc: str, systemd: bool, start: str
) -> Iterator[Place]:
    path = own.removeprefix(top) or "/"
    stranger = stranger_in(own, root_pid, proc)
    if stranger is not None and _is_writable(own) and not is_root(own):
        yield Place(
            problem=f"the cgroup {path} also holds {_name(stranger, proc)}, which is not its own",
            advice=start,
        )
    elif not _is_writable(own) or (systemd and not _is_left(own)):
        yield Place(problem=f"the cgroup {path} is not delegated to this process", advice=start)
    else:
        yield _with_controllers(own, path, moves=not is_root(own))
    above = os.path.dirname(own)
    empty = own != top and not is_root(above) and not processes_in(above)
    if empty and _is_writable(above) and (not systemd or _is_left(above)):
        # Whoever divided it has put us into a part of its own.
        yield _with_controllers(above, above.removeprefix(top) or "/")


def _with_controllers(folder: str, path: str, *, moves: bool = False) -> Place:
    there = read_words(f"{folder}/cgroup.controllers")
    usable = tuple(name for name in CONTROLLERS if name in there)
    missing = " and ".join([name for name in CONTROLLERS if name not in there])
    return Place(
        folder=folder if usable else None,
        moves=moves,
        controllers=usable,
        problem=f"the cgroup {path} lacks the controller {missing}" if missing else "",
        advice="enable it in `cgroup.subtree_control` of the cgroups above it" if missing else "",
    )


def _is_writable(folder: str) -> bool:
    files = (folder, f"{folder}/cgroup.procs", f"{folder}/cgroup.subtree_control")
    return all(os.access(path, os.W_OK) for path in files)


def _is_left(folder: str) -> bool:
    """Whether systemd says that it leaves a cgroup to others."""
    if any(_mark(folder, name) == b"1" for name in _MARKS):
        return True
    above, unit = os.path.split(folder)
    if unit.endswith(".slice"):
        # These never are.
        return False
    # Most starts come without.
    import subprocess

    of_user = [part for part in above.split("/") if part.startswith("user@")]
    command = ["systemctl", *(["--user"] if of_user else ()), "show", "--value", "-p", "Delegate"]
    try:
        said = subprocess.run(
            [*command, "--", unit],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_ASK_LIMIT,
            check=False,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    return said.strip() == b"yes"


def _mark(folder: str, name: str) -> bytes:
    try:
        return os.getxattr(folder, name)
    except OSError:
        return b""


def _name(pid: int, proc: str) -> str:
    if not pid:
        return "a process of elsewhere"
    try:
        with open(f"{proc}/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return f"process {pid} ({file.read().strip()})"
    except OSError:
        return f"process {pid}"


def _how_to_start(uid: int, *, systemd: bool) -> str:
    if systemd:
        user = "" if uid == 0 else "--user "
        return f"start it with `systemd-run {user}--scope -p Delegate=yes holdfast …`"
    return "start it alone in a cgroup that its user may write to"
