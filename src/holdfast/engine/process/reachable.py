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
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TypeVar

from holdfast.base.errors import SpawnFailed
from holdfast.base.system_text import system_text
from holdfast.engine.linux.kernel_cache import (
    WHAT_IT_LEADS_TO,
    CachedLookup,
    StatxFields,
    open_cached,
    recall,
)
from holdfast.engine.linux.search_path import candidates
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
    if sum(map(len, filter(None, start[:4]))) < _MAX_KEY:
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
    return "program" if _is_interpreter_cached(path, facts, _kind) else "?"


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


# -- the interpreter of a program, found without waiting
#
# To execute a script, the kernel opens the interpreter of its `#!` line. For most ELF files it
# opens the dynamic loader named in their header. Either may be on another mount than the program.

# Bytes read from the beginning of a program. Linkers put the name of the loader right behind the
# program headers, so one page has it as a rule.
_BEGINNING = 4096

# `O_NONBLOCK` and `O_NOCTTY`: the path may be a FIFO or a terminal.
_CONTENT = CachedLookup(os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)

# Seconds for which an interpreter that was found in the cache is taken to be there still.
_STILL_THERE = 1.0

# Entries of each table below. A full table is emptied: clients choose the paths in it.
_MAX_KNOWN = 1024

# First bytes of a 64-bit little-endian ELF file. Others are left to a thread.
_ELF_64 = b"\x7fELF\x02\x01"

_PT_INTERP = 3

# Interpreters by path, size and modification time of the program; empty for programs without.
_known: dict[tuple[str, int, int, int], str] = {}

# Times of the monotonic clock at which interpreters were found in the kernel's cache.
_cached_at: dict[str, float] = {}


def _is_interpreter_cached(path: str, facts: StatxFields, kind_of: Callable[[str], str]) -> bool:
    """
    Return True if a program can be executed without waiting for its interpreter.

    Args:
        path: The program.
        facts: The cached attributes of the program.
        kind_of: Returns `?` for a path that is not in the kernel's cache.
    """
    key = (path, facts.size, facts.modified, facts.modified_ns)
    interpreter = _known.get(key)
    if interpreter is None:
        interpreter = _read_interpreter(path)
        if interpreter is None:
            return False
        _remember(_known, key, interpreter)
    if not interpreter:
        return True
    if not interpreter.startswith("/"):
        # Resolved from the cwd of the start, which is not known here. Rare enough for a thread.
        return False
    now = time.monotonic()
    if now - _cached_at.get(interpreter, -_STILL_THERE) < _STILL_THERE:
        return True
    # Before `kind_of`, which calls this function for the interpreter: a chain of scripts that
    # leads back to itself ends here. The kernel itself follows only a few levels.
    _remember(_cached_at, interpreter, now)
    if kind_of(interpreter) == "?":
        del _cached_at[interpreter]
        return False
    return True


def _remember(known: dict, key: object, value: object) -> None:  # type: ignore[type-arg]
    if len(known) >= _MAX_KNOWN:
        known.clear()
    known[key] = value


def _read_interpreter(path: str) -> str | None:
    """Return the interpreter of a program, "" if it has none; None if that needs a wait."""
    try:
        descriptor = open_cached(os.fsencode(path), _CONTENT)
    except FileNotFoundError:
        # Removed since it was looked up. The start itself reports the error.
        return ""
    if descriptor is None:
        return None
    try:
        room = bytearray(_BEGINNING)
        # RWF_NOWAIT fails with EAGAIN if the page is not in memory.
        size = os.preadv(descriptor, [room], 0, os.RWF_NOWAIT)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    beginning = bytes(room[:size])
    if beginning.startswith(b"#!"):
        words = beginning[2:].partition(b"\n")[0].split(maxsplit=1)
        return os.fsdecode(words[0]) if words else ""
    if beginning.startswith(b"\x7fELF"):
        return _loader(beginning)
    # Neither a script nor ELF: the kernel refuses it with ENOEXEC without opening more.
    return ""


def _loader(beginning: bytes) -> str | None:
    """Return the dynamic loader of an ELF file, "" if static; None if it is named further on."""
    # 64 bytes are the ELF header, 56 a program header; see elf(5) for the offsets.
    if not beginning.startswith(_ELF_64) or len(beginning) < 64:
        return None
    (table,) = struct.unpack_from("<Q", beginning, 32)
    size, count = struct.unpack_from("<HH", beginning, 54)
    for at in range(table, table + size * count, size or 1):
        if size < 56 or at + 56 > len(beginning):
            return None
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", beginning, at)
        if kind == _PT_INTERP:
            if offset + length > len(beginning):
                return None
            return os.fsdecode(beginning[offset : offset + length].rstrip(b"\0"))
    return ""
