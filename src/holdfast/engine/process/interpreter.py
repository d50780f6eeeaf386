"""
Finds the interpreter of a program without waiting for a file system.

To execute a script, the kernel opens the interpreter of its `#!` line. For most ELF files it
opens the dynamic loader named in their header. Either may be on another mount than the program.
"""

import os
import struct
import time
from collections.abc import Callable

from holdfast.engine.linux.kernel_cache import CachedLookup, StatxFields, open_cached

__all__ = ["is_interpreter_cached"]

# Bytes read from the beginning of a program. Linkers put the name of the loader right behind the
# program headers, so one page has it as a rule.
_BEGINNING = 4096

# `O_NONBLOCK` and `O_NOCTTY`: the path may be a FIFO or a terminal.
_CONTENT = CachedLookup(os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)

# Seconds for which an interpreter that was found in the cache is taken to be there still.
_FRESH = 1.0

# Entries of each table below. A full table is emptied: clients choose the paths in it.
_MAX_KNOWN = 1024

# First bytes of a 64-bit little-endian ELF file. Others are left to a thread.
_ELF_64 = b"\x7fELF\x02\x01"

_PT_INTERP = 3

# Interpreters by path, size and modification time of the program; empty for programs without.
_known: dict[tuple[str, int, int, int], str] = {}

# Times of the monotonic clock at which interpreters were found in the kernel's cache.
_cached_at: dict[str, float] = {}


def is_interpreter_cached(path: str, facts: StatxFields, kind_of: Callable[[str], str]) -> bool:
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
    if now - _cached_at.get(interpreter, -_FRESH) < _FRESH:
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
