"""
Finds what a program is run by, without waiting for a file system.

To execute a script the kernel opens its interpreter, and for most other programs the dynamic
loader that their header names. Either may be on another mount than the program.
"""

import os
import struct
import time
from collections.abc import Callable

from holdfast.linux.kernel_cache import Facts, How, open_cached

__all__ = ["is_interpreter_at_hand"]

_BEGINNING = 4096
"""Bytes of a program that are read; what its header names is among them as a rule."""

_CONTENT = How(os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)

_FRESH = 1.0
"""Seconds for which an interpreter that was at hand is believed to be."""

_MAX_KNOWN = 1024

_ELF_64 = b"\x7fELF\x02\x01"
"""The beginning of a program for a 64-bit processor with the lowest byte first."""

_PT_INTERP = 3

_known: dict[tuple[str, int, int, int], str] = {}
"""Interpreters by path, size and time of change of the program; empty if there is none."""

_at_hand: dict[str, float] = {}
"""The times at which interpreters were found to be at hand."""


def is_interpreter_at_hand(path: str, facts: Facts, kind_of: Callable[[str], str]) -> bool:
    """
    Return True if a program can be executed without waiting for what it is run by.

    Args:
        path: Of the program.
        facts: What the kernel remembers of it.
        kind_of: Says `?` of a path that is not at hand.
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
        return False  # found from the folder of the start; hardly anybody does that
    now = time.monotonic()
    if now - _at_hand.get(interpreter, -_FRESH) < _FRESH:
        return True
    # A chain that leads back to itself ends here: the kernel follows only a few.
    _remember(_at_hand, interpreter, now)
    if kind_of(interpreter) == "?":
        del _at_hand[interpreter]
        return False
    return True


def _remember(known: dict, key: object, value: object) -> None:  # type: ignore[type-arg]
    if len(known) >= _MAX_KNOWN:
        known.clear()
    known[key] = value


def _read_interpreter(path: str) -> str | None:
    """Return what the beginning of a program names; `None` if it cannot be read at once."""
    try:
        descriptor = open_cached(os.fsencode(path), _CONTENT)
    except FileNotFoundError:
        return ""  # gone meanwhile: the start will say so
    if descriptor is None:
        return None
    try:
        room = bytearray(_BEGINNING)
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
    return ""  # the kernel knows no such program, and says so


def _loader(beginning: bytes) -> str | None:
    """Return the loader that an ELF file names; `None` if that is not in its beginning."""
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
