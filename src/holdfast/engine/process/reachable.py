"""
Decides whether a start can be made in the event loop or needs a thread.

A child is started by `vfork`, so its `chdir` and its `execve` block the thread that starts it.
On a network mount whose server is gone they never return. So the event loop makes a start only
if the kernel has its directory and its program cached, both on file systems of this machine.
All others are made in a thread. `scripts/bench --without start-in-loop` shows the gain.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TypeVar

from holdfast.base.errors import SpawnFailed
from holdfast.base.system_text import system_text
from holdfast.engine.linux.kernel_cache import WHAT_IT_LEADS_TO, recall
from holdfast.engine.linux.search_path import candidates
from holdfast.engine.process.interpreter import is_interpreter_cached
from holdfast.engine.process.start_threads import StartThreads

__all__ = ["call_after_stat", "can_start_without_waiting", "mounts_may_hang", "paths_to_check"]

T = TypeVar("T")

# Most paths to look up in the event loop for one start, at a few microseconds each. A start with a
# longer `PATH` is made in a thread.
_MAX_LOOKS = 64

# File systems whose calls another machine or another process answers, besides those of FUSE.
_MAY_HANG = frozenset(
    "9p afs autofs ceph cifs glusterfs lustre nfs nfs4 smb3 virtiofs".split()  # noqa: SIM905
)

# Seconds for which the list of mounts is taken to be current. Only used on kernels without
# `RESOLVE_CACHED`, where the mounts are the only evidence.
_FRESH = 1.0

_seen: tuple[float, bool] = (-_FRESH, False)

# Seconds for which a cached entry is assumed to be cached still. Agents start one program
# repeatedly, and the look-ups of a start take some percent of its time:
# `scripts/bench --without start-again`.
_CACHED_STILL = 0.01

# When each of the last starts was found to need no thread, by all that its look-ups depend on.
_ready: dict[tuple[str, str, str | None, str | None, bool], float] = {}
_MAX_READY = 256
_MAX_KEY = 4096


def can_start_without_waiting(
    argv: Sequence[str], cwd: str, env: Mapping[str, str], *, tty: bool
) -> bool:
    """Return True if a start can be made without waiting for a file system."""
    if not _kernel_tells():
        return not mounts_may_hang()
    start = (argv[0], cwd, env.get("PATH"), env.get("HOME"), tty)
    now = time.monotonic()
    if now - _ready.get(start, -_CACHED_STILL) < _CACHED_STILL:
        return True
    if not _is_cached(argv[0], cwd, env, tty=tty):
        return False
    # A client may give a `PATH` of megabytes, which is not worth caching.
    if sum(len(text) for text in start[:4] if text is not None) < _MAX_KEY:
        if len(_ready) >= _MAX_READY:
            _ready.clear()
        _ready[start] = now
    return True


def _is_cached(program: str, cwd: str, env: Mapping[str, str], *, tty: bool) -> bool:
    """Return True if the kernel has the directory and the program of a start in its caches."""
    folder = _kind(cwd)
    if tty and folder not in ("directory", "?"):
        # A terminal starts in the user's home then. Without HOME, the home comes from the
        # user database, which may ask a directory service.
        folder = _kind(env["HOME"]) if "HOME" in env else "?"
    if folder == "?":
        return False
    if "/" in program:
        return _kind(os.path.join(cwd, program)) != "?"
    for looks, candidate in enumerate(candidates(program, env.get("PATH"))):
        if looks == _MAX_LOOKS:
            return False
        found = _kind(os.path.join(cwd, candidate))
        if found != "missing":
            return found == "program"
    return True


def _kind(path: str) -> str:
    """Return directory, program, other or missing from the kernel's cache; `?` if not cached."""
    try:
        name = os.fsencode(path)
        # Twice: a rename or a mount anywhere at the same moment makes a cached look-up fail.
        facts = recall(name, WHAT_IT_LEADS_TO) or recall(name, WHAT_IT_LEADS_TO)
    except FileNotFoundError:
        return "missing"
    except ValueError:
        # The path has a NUL or a lone surrogate, so no such file can exist.
        return "missing"
    if facts is None:
        return "?"
    if stat.S_ISDIR(facts.mode):
        return "directory"
    if not stat.S_ISREG(facts.mode) or not facts.mode & 0o111:
        return "other"
    return "program" if is_interpreter_cached(path, facts, _kind) else "?"


@cache
def _kernel_tells() -> bool:
    """Return False if the kernel is too old for cached look-ups, or a container refuses them."""
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
        # Without /proc nothing is known, and the start is made in the event loop.
        return []


def _may_hang(line: str) -> bool:
    _, _, kind = line.partition(" - ")
    name = kind.partition(" ")[0]
    return name in _MAY_HANG or name == "fuseblk" or name.partition(".")[0] == "fuse"


def paths_to_check(
    argv: Sequence[str], cwd: str, env: Mapping[str, str], *, tty: bool
) -> Iterable[str]:
    """Yield the paths that a start resolves, in the same order. Blocks, so call it in a thread."""
    yield cwd
    if tty and "HOME" in env:
        # The fallback directory of a terminal.
        yield env["HOME"]
    program = argv[0]
    for one in [program] if "/" in program else candidates(program, env.get("PATH")):
        candidate = os.path.join(cwd, one)
        yield candidate
        with suppress(ValueError):
            if os.access(candidate, os.X_OK):
                # The start executes this one and looks no further.
                return


async def call_after_stat(
    threads: StartThreads,
    paths: Iterable[str],
    work: Callable[[], T],
    undo: Callable[[T], None] | None = None,
    *,
    program: str,
) -> T:
    """
    Call `stat` on some paths in a thread, then call `work` in the same thread.

    Args:
        threads: The owner's threads.
        paths: Files that may be on a dead mount. Their errors are ignored: `work` hits the same
            errors and reports them.
        work: Called once every `stat` has returned.
        undo: As for `StartThreads.call`.
        program: Named in the error.

    Raises:
        SpawnFailed: A path did not answer in time; `path` names it.
    """
    # The path that is being checked: after a timeout, the one that hangs.
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
