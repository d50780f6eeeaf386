"""
Drops the capabilities of a thread temporarily.

A command in a sandbox has no capabilities, even if its server runs as root: it reads only what the
owner, the group and the permission bits of a file allow. A file operation for the same profile runs
in the server, which may have all capabilities. In Linux they belong to a thread, not to a process,
so the operation drops them in its thread.

Only the effective set changes. The permitted set stays, so that the thread can restore what it had;
the dumpable flag and the owner of this process's files in `/proc` stay, too.
"""

import ctypes
import os
import threading
from contextlib import AbstractContextManager
from typing import NoReturn

__all__ = ["WITHOUT_CAPABILITIES", "has_capabilities"]

# The calls never wait, so they keep the GIL: releasing it would take longer than the call.
_libc = ctypes.PyDLL(None, use_errno=True)

# _LINUX_CAPABILITY_VERSION_3, which has 64 bits: two structures per call.
_VERSION = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


# Pid 0 stands for the calling thread. The kernel only reads it.
_header = ctypes.byref(_Header(_VERSION, 0))
_BothSets = _Sets * 2
_capset = _libc.capset


class _OfThread(threading.local):
    """The sets of a thread, read once: few programs ever change them."""

    def __init__(self) -> None:
        self.blocks = 0
        self.read()

    def read(self) -> None:
        """Read the sets of the calling thread."""
        full = _sets()
        none = _BothSets.from_buffer_copy(full)
        none[0].effective = none[1].effective = 0
        self.has_any = _is_any(full)
        # Prepared references: making one takes a noticeable part of the call.
        self.full, self.none = ctypes.byref(full), ctypes.byref(none)


def has_capabilities() -> bool:
    """Return True if this thread has an effective capability."""
    return _is_any(_sets())


class _WithoutCapabilities(AbstractContextManager[None]):
    """Block in which the calling thread has no effective capability."""

    def __enter__(self) -> None:
        mine = _of_thread
        if not mine.has_any:
            return
        if not mine.blocks and _capset(_header, mine.none):
            # The program may have given some up, or switched to another user.
            mine.read()
            if _capset(_header, mine.none):
                _fail()
        mine.blocks += 1

    def __exit__(self, *exc: object) -> None:
        mine = _of_thread
        if mine.blocks:
            mine.blocks -= 1
            if not mine.blocks and _capset(_header, mine.full):
                _fail()


def _sets() -> "ctypes.Array[_Sets]":
    found = _BothSets()
    if _libc.capget(_header, found):
        _fail()
    return found


def _is_any(sets: "ctypes.Array[_Sets]") -> bool:
    return bool(sets[0].effective or sets[1].effective)


def _fail() -> NoReturn:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


_of_thread = _OfThread()

WITHOUT_CAPABILITIES: AbstractContextManager[None] = _WithoutCapabilities()
"""
Block in which the calling thread has no effective capability; it must not await.

It can be entered repeatedly, by several threads at once, and nested. An `OSError` means that the
kernel refuses, and the block is not entered.
"""
