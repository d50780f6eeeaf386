"""
What Landlock adds to the mounts [sandbox.fifos].

A read-only mount keeps nobody from writing into a FIFO that lies there, and a network
that is shared is shared with all abstract sockets. Landlock closes both. Whatever else a
profile says is enforced by mounts, which Landlock alone could not: it knows no exceptions
from what it allows.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from holdfast.sandbox.bubblewrap.init.syscall_numbers import MACHINES
from holdfast.sandbox.policy.policy import Policy

__all__ = ["OLDEST_ABI", "SCOPING_ABI", "WRITE_FILE", "Ruleset", "landlock_abi", "ruleset"]

OLDEST_ABI: Final = 2
"""Before it, nothing could be moved from one directory to another (Linux 5.19)."""

SCOPING_ABI: Final = 6
"""From it on, abstract sockets can be kept apart (Linux 6.12)."""

WRITE_FILE: Final = 1 << 1
"""To open something that is no directory for writing."""
_REFER: Final = 1 << 13
"""Moving and linking between directories; refused by every ruleset that does not allow it."""
_FOLDER: Final = WRITE_FILE | _REFER

_ABSTRACT_SOCKETS: Final = 1

_ASK_VERSION: Final = 1


class Ruleset(NamedTuple):
    """What is refused unless a rule allows it, and the rules."""

    attributes: bytes
    """As the kernel takes them."""
    rules: tuple[tuple[str, int], ...]
    """A path, and what is allowed at it and below."""


def landlock_abi() -> int:
    """The version of Landlock in this kernel; 0 if it has none or it is off."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = next(iter(MACHINES.values())).numbers["landlock_create_ruleset"]
    return max(0, int(libc.syscall(number, None, 0, _ASK_VERSION)))


def ruleset(policy: Policy, abi: int) -> Ruleset | None:
    """
    The rules for a policy; none if the kernel is too old or there is nothing to refuse.

    Args:
        abi: The version of Landlock.
    """
    if abi < OLDEST_ABI or policy.full_write:
        return None
    scoped = _ABSTRACT_SOCKETS if abi >= SCOPING_ABI else 0
    # Older kernels take fewer fields, and none of those that they do not know.
    attributes = struct.pack("<QQQ", _FOLDER, 0, scoped)
    return Ruleset(attributes if scoped else attributes[:8], tuple(_rules(policy)))


def _rules(policy: Policy) -> Iterator[tuple[str, int]]:
    # These are private, and what of them must not be written is mounted read-only. So is
    # the root directory itself, where no rule puts the host's in its place.
    yield "/dev", _FOLDER
    yield "/proc", WRITE_FILE
    if "/" not in policy.rules:
        yield "/", _FOLDER
    for rule in policy.rules.values():
        if rule.access == "write" and rule.kind is not None:
            yield rule.path, _FOLDER if rule.kind == "directory" else WRITE_FILE
