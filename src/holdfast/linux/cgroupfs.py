"""
The tree of cgroups, as files: where this process is in it, and what there is ours.

Version 2 only. Nothing here decides anything, but for the end: the guardian, which is
as small as it can be, removes with it what its worker has made.
"""

import os
from collections.abc import Iterable

__all__ = [
    "CONTROLLERS",
    "NoCgroup",
    "bound_to_version_1",
    "change_controllers",
    "command_prefix",
    "is_root",
    "move",
    "own_folder",
    "processes_in",
    "read_words",
    "remove_cgroups",
    "rest_name",
    "stranger_in",
    "write",
]

CONTROLLERS = ("memory", "pids")
"""What we limit with; the kernel has more."""


class NoCgroup(Exception):
    """Why this process is in no cgroup that it can see."""


def own_folder(proc: str = "/proc") -> tuple[str, str]:
    """
    The folder of the cgroup of this process, and that of the top of what can be seen.

    Raises:
        NoCgroup: There is none.
    """
    path = _own_path(_read(f"{proc}/self/cgroup"))
    found = _mount(_read(f"{proc}/self/mountinfo"))
    if path is None or found is None:
        raise NoCgroup("no cgroups of version 2 are mounted")
    root, mount = found
    inside = path if root == "/" else path.removeprefix(root)
    if (root != "/" and inside == path) or ".." in path.split("/"):
        raise NoCgroup("its cgroup is outside of what is mounted")
    return mount + inside.rstrip("/"), mount


def _own_path(text: str) -> str | None:
    for line in text.splitlines():
        if line.startswith("0::"):
            return line.removeprefix("0::").removesuffix(" (deleted)")
    return None


def _mount(text: str) -> tuple[str, str] | None:
    """What of the tree is mounted, and where; beside version 1 that may be anywhere."""
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.startswith("cgroup2 "):
            root, mount = fields.split(" ")[3:5]
            return _unescape(root), _unescape(mount)
    return None


def _unescape(field: str) -> str:
    """A path as the kernel writes it: what would end a field is three octal digits."""
    for code in ("040", "011", "012", "134"):
        field = field.replace(f"\\{code}", chr(int(code, 8)))
    return field


def bound_to_version_1(proc: str = "/proc") -> set[str]:
    """The controllers that version 2 cannot have, as version 1 has them."""
    lines = [line.split(":") for line in _read(f"{proc}/self/cgroup").splitlines()]
    return {name for line in lines if line[0] != "0" for name in line[1].split(",")}


def is_root(folder: str) -> bool:
    """Whether it is the first of all, which may have both processes and limits below it."""
    return not os.path.exists(f"{folder}/cgroup.type")


def read_words(path: str) -> list[str]:
    """The words of a file; none if it is not there."""
    return _read(path).split()


def processes_in(folder: str) -> list[int]:
    """The processes of a cgroup itself; 0 for those that cannot be seen from here."""
    return [int(word) for word in read_words(f"{folder}/cgroup.procs")]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def write(path: str, text: str) -> None:
    """
    Tell the kernel something.

    Raises:
        OSError: It refused.
    """
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def move(pids: Iterable[int], folder: str) -> None:
    """
    Put processes into a cgroup; what they start from then on is in it too.

    Raises:
        OSError: The kernel refused one of them. One that has ended is no matter.
    """
    for pid in pids:
        try:  # noqa: SIM105 - the guardian has no contextlib
            write(f"{folder}/cgroup.procs", str(pid))
        except ProcessLookupError:
            pass


def change_controllers(folder: str, sign: str, names: Iterable[str]) -> None:
    """
    Have controllers, or not (`+` or `-`), in the cgroups below this one.

    Raises:
        OSError: The kernel refused: none was changed.
    """
    words = " ".join([f"{sign}{name}" for name in names])
    if words:
        write(f"{folder}/cgroup.subtree_control", words)


def stranger_in(folder: str, first: int, proc: str = "/proc") -> int | None:
    """A process of a cgroup that is not ours, if there is one: ours descend from the first."""
    for pid in processes_in(folder):
        for _ in range(_LOOKS):
            if _descends_from(pid, first, proc) or (pid and not os.path.exists(f"{proc}/{pid}")):
                break
        else:
            return pid
    return None


# How often it is looked where a process comes from: one between may end meanwhile.
_LOOKS = 3


def _descends_from(pid: int, ancestor: int, proc: str) -> bool:
    """Whether a process is another one, or was started by it or by one of its own."""
    while pid > 0 and pid != ancestor:
        # The name of a program stands in parentheses, and may have any in it.
        fields = _read(f"{proc}/{pid}/stat").rpartition(")")[2].split()
        pid = int(fields[1]) if fields else 0
    return pid == ancestor


def rest_name(pid: int) -> str:
    """What the cgroup is called that a server moves into, to make room for those of commands."""
    return f"holdfast-{pid}-self"


def command_prefix(pid: int) -> str:
    """How the names of all cgroups begin that a process makes."""
    return f"holdfast-{pid}-"


def remove_cgroups(pid: int, proc: str = "/proc") -> None:
    """
    Remove all the cgroups that a process has made, and leave the one that it has moved to.

    What has processes in it stays, as nothing else can be done.

    Args:
        pid: This process, or the one it guarded.
        proc: Where the kernel tells of processes.
    """
    try:
        own, top = own_folder(proc)
    except NoCgroup:
        return
    moved = os.path.basename(own) == rest_name(pid)
    above = os.path.dirname(own)
    if not moved:
        _remove_below(own, pid)
    if own == top:
        return
    _remove_below(above, pid)
    if moved and processes_in(own) == [os.getpid()]:
        _move_back(own, above)


def _remove_below(folder: str, pid: int) -> None:
    for name in _folders_in(folder):
        if name.startswith(command_prefix(pid)):
            try:  # noqa: SIM105 - the guardian has no contextlib
                os.rmdir(f"{folder}/{name}")
            except OSError:
                # Somebody is in it.
                pass


def _move_back(own: str, above: str) -> None:
    """Leave a cgroup that nobody else is in, and have all as it was before."""
    if _folders_in(above) != [os.path.basename(own)]:
        # Somebody counts on the controllers.
        return
    enabled = read_words(f"{above}/cgroup.subtree_control")
    try:
        change_controllers(above, "-", [name for name in CONTROLLERS if name in enabled])
        move([os.getpid()], above)
        os.rmdir(own)
    except OSError:
        # Whoever made the cgroup above removes this one with it.
        return


def _folders_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
