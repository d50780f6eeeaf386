"""
Reads and writes the cgroup file system, version 2 only.

The functions decide nothing, with one exception: `remove_cgroups` cleans up after a server. The
guardian uses it, and has to be as small as possible, so this module imports next to nothing.
"""

import os
from collections.abc import Iterable

from holdfast.engine.linux.proc import stat_fields

__all__ = [
    "CONTROLLERS",
    "NoCgroup",
    "bound_to_version_1",
    "change_controllers",
    "command_prefix",
    "foreign_process_in",
    "is_root",
    "move",
    "own_folder",
    "processes_in",
    "read_words",
    "remove_cgroups",
    "server_cgroup_name",
    "write",
]

CONTROLLERS = ("memory", "pids")
"""Controllers that enforce our limits; the kernel has more."""


class NoCgroup(Exception):
    """This process has no visible cgroup; the text says why."""


def own_folder(proc: str = "/proc") -> tuple[str, str]:
    """
    Return the directory of this process's cgroup, and the mount point of the cgroup tree.

    Raises:
        NoCgroup: No cgroup of this process can be seen.
    """
    path = _own_path(_read(f"{proc}/self/cgroup"))
    found = _mount(_read(f"{proc}/self/mountinfo"))
    if path is None or found is None:
        raise NoCgroup("no cgroups of version 2 are mounted")
    root, mount = found
    inside = path if root == "/" else path.removeprefix(root)
    # A container may mount only part of the tree. The kernel shows a path outside the cgroup
    # namespace with `..` in it.
    if (root != "/" and inside == path) or ".." in path.split("/"):
        raise NoCgroup("its cgroup is outside the mounted part of the tree")
    return mount + inside.rstrip("/"), mount


def _own_path(text: str) -> str | None:
    for line in text.splitlines():
        # Hierarchy 0 is version 2. The kernel marks a removed cgroup at the end of the line.
        if line.startswith("0::"):
            return line.removeprefix("0::").removesuffix(" (deleted)")
    return None


def _mount(text: str) -> tuple[str, str] | None:
    """Return the mounted part of the tree and its mount point, from mountinfo, or None."""
    # Not always at /sys/fs/cgroup: with version 1 there, version 2 is mounted elsewhere.
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.startswith("cgroup2 "):
            root, mount = fields.split(" ")[3:5]
            return _unescape(root), _unescape(mount)
    return None


def _unescape(field: str) -> str:
    """Decode a path of mountinfo, with blanks and backslashes as three octal digits."""
    for code in ("040", "011", "012", "134"):
        field = field.replace(f"\\{code}", chr(int(code, 8)))
    return field


def bound_to_version_1(proc: str = "/proc") -> set[str]:
    """Return the controllers that version 1 uses, which version 2 therefore cannot have."""
    lines = [line.split(":") for line in _read(f"{proc}/self/cgroup").splitlines()]
    return {name for line in lines if line[0] != "0" for name in line[1].split(",")}


def is_root(folder: str) -> bool:
    """Return True for the root cgroup, which may have both processes and limited children."""
    # The root is the only cgroup without this file.
    return not os.path.exists(f"{folder}/cgroup.type")


def read_words(path: str) -> list[str]:
    """Return the words of a file; none if it cannot be read."""
    return _read(path).split()


def processes_in(folder: str) -> list[int]:
    """Return the pids in a cgroup, without its children; 0 for those of other namespaces."""
    return [int(word) for word in read_words(f"{folder}/cgroup.procs")]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def write(path: str, text: str) -> None:
    """
    Write to a file of the cgroup file system.

    Raises:
        OSError: The kernel refused.
    """
    # Unbuffered: the kernel takes each `write` as one command and answers with an errno.
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def move(pids: Iterable[int], folder: str) -> None:
    """
    Move processes into a cgroup; processes that they fork from then on are in it too.

    Raises:
        OSError: The kernel refused one of them. A process that has ended is ignored.
    """
    for pid in pids:
        try:  # noqa: SIM105 - the guardian has no contextlib
            write(f"{folder}/cgroup.procs", str(pid))
        except ProcessLookupError:
            pass


def change_controllers(folder: str, sign: str, names: Iterable[str]) -> None:
    """
    Enable (`+`) or disable (`-`) controllers for the children of a cgroup.

    Raises:
        OSError: The kernel refused, and none was changed.
    """
    words = " ".join([f"{sign}{name}" for name in names])
    if words:
        write(f"{folder}/cgroup.subtree_control", words)


def foreign_process_in(folder: str, first: int, proc: str = "/proc") -> int | None:
    """Return a pid in `folder` that does not descend from `first`, or None."""
    for pid in processes_in(folder):
        for _ in range(_LOOKS):
            if _descends_from(pid, first, proc) or (pid and not os.path.exists(f"{proc}/{pid}")):
                break
        else:
            return pid
    return None


# Attempts to trace a process to its ancestors: a parent may exit meanwhile.
_LOOKS = 3


def _descends_from(pid: int, ancestor: int, proc: str) -> bool:
    """Return True if `pid` is `ancestor` or one of its descendants."""
    while pid > 0 and pid != ancestor:
        try:
            pid = int(stat_fields(f"{proc}/{pid}")[1])
        except OSError:
            # It has ended, so its parent is unknown.
            return False
    return pid == ancestor


def server_cgroup_name(pid: int) -> str:
    """Return the name of the cgroup that a server moves into, so that its own can have limits."""
    # The kernel allows controllers only in cgroups that contain no processes themselves.
    return f"holdfast-{pid}-self"


def command_prefix(pid: int) -> str:
    """Return the common prefix of the names of all cgroups that a process creates."""
    return f"holdfast-{pid}-"


def remove_cgroups(pid: int, proc: str = "/proc") -> None:
    """
    Remove all cgroups that a process has created, and leave the one that it has moved to.

    A cgroup with processes in it cannot be removed, and stays.

    Args:
        pid: This process, or the worker that it guarded.
        proc: The proc file system.
    """
    try:
        own, top = own_folder(proc)
    except NoCgroup:
        return
    moved = os.path.basename(own) == server_cgroup_name(pid)
    above = os.path.dirname(own)
    if not moved:
        _remove_below(own, pid)
    if own == top:
        return
    _remove_below(above, pid)
    # Only the last process leaves: others in it still need it.
    if moved and processes_in(own) == [os.getpid()]:
        _move_back(own, above)


def _remove_below(folder: str, pid: int) -> None:
    for name in _folders_in(folder):
        if name.startswith(command_prefix(pid)):
            try:  # noqa: SIM105 - the guardian has no contextlib
                os.rmdir(f"{folder}/{name}")
            except OSError:
                # EBUSY: it still has processes.
                pass


def _move_back(own: str, above: str) -> None:
    """Move this process to the cgroup above and remove its own, as before `prepare`."""
    if _folders_in(above) != [os.path.basename(own)]:
        # Another cgroup below it still needs the controllers.
        return
    enabled = read_words(f"{above}/cgroup.subtree_control")
    try:
        change_controllers(above, "-", [name for name in CONTROLLERS if name in enabled])
        move([os.getpid()], above)
        os.rmdir(own)
    except OSError:
        # Do not force it: the owner of the cgroup above removes this one with it.
        return


def _folders_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
