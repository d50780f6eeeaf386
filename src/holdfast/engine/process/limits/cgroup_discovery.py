"""
Finds a cgroup in which the cgroups of commands can be made; changes nothing.

It has to be delegated to this process: by systemd, for a unit with `Delegate=yes`, by the manager
of a container, or because nothing else manages cgroups. If there is none, the result says what to
change.
"""

import os
import subprocess
from collections.abc import Iterator

import msgspec

from holdfast.engine.linux.cgroupfs import (
    CONTROLLERS,
    NoCgroup,
    bound_to_version_1,
    foreign_process_in,
    is_root,
    own_folder,
    processes_in,
    read_words,
)

__all__ = ["CgroupLocation", "find_cgroup_location"]

# Extended attributes of a cgroup that systemd has delegated. A user manager may set none, so
# `systemctl` is asked as well.
_MARKS = ("user.delegate", "trusted.delegate")

# Seconds for systemd to answer.
_ASK_LIMIT = 5.0

# Exists if systemd runs this machine. Then a cgroup that it has not delegated must not be used.
_SYSTEMD = "/run/systemd/system"

_UNIFIED = "start the kernel with `cgroup_no_v1=all`, or systemd with a unified hierarchy"


class CgroupLocation(msgspec.Struct, frozen=True, kw_only=True):
    """A cgroup to make the cgroups of commands in, or the reason why there is none."""

    folder: str | None = None
    moves: bool = False
    """True if our own processes have to move to a child cgroup first."""
    controllers: tuple[str, ...] = ()
    """The controllers it can have, of `CONTROLLERS`."""
    problem: str = ""
    """A sentence for the user, if a controller is missing."""
    advice: str = ""
    """The remedy for that problem."""

    def why_not(self, controller: str) -> str | None:
        """Return problem and advice if a controller is missing, otherwise None."""
        if controller in self.controllers:
            return None
        return f"{self.problem}; {self.advice}"


def find_cgroup_location(
    root_pid: int, *, proc: str = "/proc", systemd: bool | None = None, uid: int | None = None
) -> CgroupLocation:
    """
    Look for the best location. May ask systemd for up to 5 seconds, so call it in a thread.

    Args:
        root_pid: The ancestor of all our processes: the guardian, or this process.
        proc: The proc file system.
        systemd: True if systemd runs this machine; found out by default.
        uid: The user of this process.
    """
    systemd = os.path.isdir(_SYSTEMD) if systemd is None else systemd
    start = _how_to_start(os.getuid() if uid is None else uid, systemd=systemd)
    try:
        own, top = own_folder(proc)
    except NoCgroup as error:
        return CgroupLocation(problem=str(error), advice=_UNIFIED)
    if bound_to_version_1(proc).issuperset(CONTROLLERS):
        return CgroupLocation(
            problem="the controllers are those of cgroups of version 1", advice=_UNIFIED
        )
    locations = list(_locations(own, top, root_pid, proc, systemd, start))
    # The one with the most controllers. `max` returns the first of equals: our own cgroup, whose
    # problem is also the one to report.
    return max(locations, key=lambda location: len(location.controllers))


def _locations(
    own: str, top: str, root_pid: int, proc: str, systemd: bool, start: str
) -> Iterator[CgroupLocation]:
    path = own.removeprefix(top) or "/"
    stranger = foreign_process_in(own, root_pid, proc)
    if stranger is not None and _is_writable(own) and not is_root(own):
        yield CgroupLocation(
            problem=f"the cgroup {path} also holds {_name(stranger, proc)}, which is not its own",
            advice=start,
        )
    elif not _is_writable(own) or (systemd and not _is_delegated(own)):
        yield CgroupLocation(
            problem=f"the cgroup {path} is not delegated to this process", advice=start
        )
    else:
        yield _with_controllers(own, path, moves=not is_root(own))
    above = os.path.dirname(own)
    empty = own != top and not is_root(above) and not processes_in(above)
    if empty and _is_writable(above) and (not systemd or _is_delegated(above)):
        # A manager has delegated the cgroup above and started us in a child of it.
        yield _with_controllers(above, above.removeprefix(top) or "/")


def _with_controllers(folder: str, path: str, *, moves: bool = False) -> CgroupLocation:
    there = read_words(f"{folder}/cgroup.controllers")
    usable = tuple(name for name in CONTROLLERS if name in there)
    missing = " and ".join([name for name in CONTROLLERS if name not in there])
    return CgroupLocation(
        folder=folder if usable else None,
        moves=moves,
        controllers=usable,
        problem=f"the cgroup {path} lacks the controller {missing}" if missing else "",
        advice="enable it in `cgroup.subtree_control` of the cgroups above it" if missing else "",
    )


def _is_writable(folder: str) -> bool:
    files = (folder, f"{folder}/cgroup.procs", f"{folder}/cgroup.subtree_control")
    return all(os.access(path, os.W_OK) for path in files)


def _is_delegated(folder: str) -> bool:
    """Return True if systemd has delegated a cgroup, by its attributes or by `systemctl`."""
    if any(_mark(folder, name) == b"1" for name in _MARKS):
        return True
    above, unit = os.path.split(folder)
    if unit.endswith(".slice"):
        # systemd never delegates a slice.
        return False
    # Only the user's own manager knows units of a user.
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
        return "a process from elsewhere"
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
