"""
Tells whether the files of a start are at hand, and looks at them elsewhere if not.

A child is started in a `vfork`, so its `chdir` and its `execve` hold up the thread that starts
it. On a network mount whose server is gone they never return. So a start happens in the event
loop only where the kernel has its folder and its program in memory, on file systems of this
machine. All others are made in a thread.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TypeVar

from holdfast.errors import SpawnFailed
from holdfast.linux.kernel_cache import WHAT_IT_LEADS_TO, recall
from holdfast.process.executable_lookup import DEFAULT_PATH
from holdfast.process.interpreter import is_interpreter_at_hand
from holdfast.process.start_threads import StartThreads
from holdfast.system_text import system_text

__all__ = ["call_after_look", "is_start_at_hand", "mounts_may_hang", "places"]

T = TypeVar("T")

_MAX_LOOKS = 64
"""Paths that are looked up in the event loop for one start; a thread takes more."""

_MAY_HANG = frozenset(
    "9p afs autofs ceph cifs glusterfs lustre nfs nfs4 smb3 virtiofs".split()  # noqa: SIM905
)
"""Kinds of mounts that somebody else answers for; those of FUSE as well."""

_FRESH = 1.0
"""Seconds that the list of mounts is believed, where the kernel tells nothing better."""

_seen: tuple[float, bool] = (-_FRESH, False)


def is_start_at_hand(argv: Sequence[str], cwd: str, env: Mapping[str, str], *, tty: bool) -> bool:
    """Return True if a start can be made without waiting for a file system."""
    if not _kernel_tells():
        return not mounts_may_hang()
    folder = _kind(cwd)
    if tty and folder not in ("directory", "?"):
        # A terminal starts in the user's home then, which a directory service may have to tell.
        folder = _kind(env["HOME"]) if "HOME" in env else "?"
    if folder == "?":
        return False
    program = argv[0]
    if "/" in program:
        return _kind(os.path.join(cwd, program)) != "?"
    folders = env.get("PATH", DEFAULT_PATH).split(":")
    for folder in folders[:_MAX_LOOKS]:
        found = _kind(os.path.join(cwd, folder, program))
        if found != "missing":
            return found == "program"
    return len(folders) <= _MAX_LOOKS


def _kind(path: str) -> str:
    """Return the kernel's memory of a path: directory, program, other, missing, or `?` for none."""
    try:
        name = os.fsencode(path)
        # A rename or a mount anywhere, at the same moment, makes the kernel give up the first.
        facts = recall(name, WHAT_IT_LEADS_TO) or recall(name, WHAT_IT_LEADS_TO)
    except FileNotFoundError:
        return "missing"
    except ValueError:
        return "missing"  # a NUL, or half a character: no such path can be
    if facts is None:
        return "?"
    if stat.S_ISDIR(facts.mode):
        return "directory"
    if not stat.S_ISREG(facts.mode) or not facts.mode & 0o111:
        return "other"
    return "program" if is_interpreter_at_hand(path, facts, _kind) else "?"


@cache
def _kernel_tells() -> bool:
    """Return True unless the kernel is too old, or a container keeps its caches from us."""
    try:
        return recall(b"/", WHAT_IT_LEADS_TO) is not None
    except FileNotFoundError:
        return False


def mounts_may_hang(table: str = "/proc/self/mountinfo") -> bool:
    """Return True if this process has a mount whose calls may never return."""
    global _seen
    now = time.monotonic()
    if now - _seen[0] >= _FRESH:
        _seen = (now, any(_may_hang(line) for line in _lines(table)))
    return _seen[1]


def _lines(table: str) -> list[str]:
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as file:
            return file.readlines()
    except OSError:
        return []  # without /proc nothing is known


def _may_hang(line: str) -> bool:
    _, _, kind = line.partition(" - ")
    name = kind.partition(" ")[0]
    return name in _MAY_HANG or name == "fuseblk" or name.partition(".")[0] == "fuse"


def places(argv: Sequence[str], cwd: str, env: Mapping[str, str], *, tty: bool) -> Iterable[str]:
    """Return the files that a start looks at, in its order. May wait for a file system."""
    yield cwd
    if tty and "HOME" in env:
        yield env["HOME"]  # where a terminal starts if its folder is missing
    program = argv[0]
    folders = [""] if "/" in program else env.get("PATH", DEFAULT_PATH).split(":")
    for folder in folders:
        place = os.path.join(cwd, folder, program)
        yield place
        with suppress(ValueError):
            if os.access(place, os.X_OK):
                return  # the folders behind it are not looked at by the start


async def call_after_look(
    threads: StartThreads,
    paths: Iterable[str],
    work: Callable[[], T],
    undo: Callable[[T], None] | None = None,
    *,
    program: str,
) -> T:
    """
    Look at files in a thread, and then do something there.

    Args:
        threads: Whose thread.
        paths: What to look at; what is wrong with a path is found by `work`, which has the
            words for it.
        work: What to do if all of them have answered.
        undo: As for `StartThreads.call`.
        program: For the error.

    Raises:
        SpawnFailed: A path has not answered; `path` says which.
    """
    at = ""

    def look_and_work() -> T:
        nonlocal at
        for at in paths:
            with suppress(OSError, ValueError):
                os.stat(at)
        return work()

    try:
        return await threads.call(look_and_work, undo)
    except TimeoutError:
        number = errno.ETIMEDOUT
        raise SpawnFailed(
            system_text(number), errno=number, path=at or None, program=program
        ) from None
