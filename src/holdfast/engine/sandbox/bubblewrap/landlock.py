"""
Builds the Landlock ruleset that complements the mounts [sandbox.fifos].

A FIFO on a read-only mount can still be written to, and a shared network namespace shares all
abstract sockets. Landlock closes both gaps. Mounts enforce the rest of a profile. Landlock alone
could not, since it cannot deny a path below one that it allows.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from holdfast.engine.linux.syscall_numbers import MACHINES
from holdfast.engine.sandbox.policy.policy import Policy

__all__ = ["OLDEST_ABI", "SCOPING_ABI", "WRITE_FILE", "Ruleset", "landlock_abi", "ruleset"]

OLDEST_ABI: Final = 2
"""Oldest usable ABI (Linux 5.19): ABI 1 forbids all renames between directories."""

SCOPING_ABI: Final = 6
"""First ABI that can separate abstract sockets (Linux 6.12)."""

WRITE_FILE: Final = 1 << 1
"""LANDLOCK_ACCESS_FS_WRITE_FILE: open a file, FIFO or device for writing."""

# LANDLOCK_ACCESS_FS_REFER: rename and link between directories. Every ruleset refuses it
# unless a rule allows it.
_REFER: Final = 1 << 13
_FOLDER: Final = WRITE_FILE | _REFER

# LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET.
_ABSTRACT_SOCKETS: Final = 1

# LANDLOCK_CREATE_RULESET_VERSION: return the ABI instead of a ruleset.
_ASK_VERSION: Final = 1


class Ruleset(NamedTuple):
    """Landlock ruleset: the accesses that it controls, and the rules that allow them."""

    attributes: bytes
    """`struct landlock_ruleset_attr`."""
    rules: tuple[tuple[str, int], ...]
    """Paths, each with the accesses that are allowed at and below it."""


def landlock_abi() -> int:
    """Return the Landlock ABI of this kernel; 0 if Landlock is missing or off."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = next(iter(MACHINES.values())).numbers["landlock_create_ruleset"]
    return max(0, int(libc.syscall(number, None, 0, _ASK_VERSION)))


def ruleset(policy: Policy, abi: int) -> Ruleset | None:
    """
    Return the ruleset for a policy; None if the kernel is too old or all writing is allowed.

    Args:
        policy: Rules of the sandbox.
        abi: Landlock ABI of the kernel.
    """
    # Where everything may be written, FIFOs may be, too.
    if abi < OLDEST_ABI or policy.full_write:
        return None
    scoped = _ABSTRACT_SOCKETS if abi >= SCOPING_ABI else 0
    # A kernel refuses a structure with fields that it does not know.
    attributes = struct.pack("<QQQ", _FOLDER, 0, scoped)
    return Ruleset(attributes if scoped else attributes[:8], tuple(_rules(policy)))


def _rules(policy: Policy) -> Iterator[tuple[str, int]]:
    # `/dev` and `/proc` are private to the sandbox, and their parts that must not be written
    # are read-only mounts. So is `/`, if it is the sandbox's own tmpfs and not the host's.
    yield "/dev", _FOLDER
    yield "/proc", WRITE_FILE
    if "/" not in policy.rules:
        yield "/", _FOLDER
    for rule in policy.rules.values():
        # A missing path gets no rule, since there is nothing to open.
        if rule.access == "write" and rule.kind is not None:
            yield rule.path, _FOLDER if rule.kind == "directory" else WRITE_FILE
