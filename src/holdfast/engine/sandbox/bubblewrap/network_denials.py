"""
Refused attempts of a command to reach the network, reported by the kernel.

The seccomp filter notifies us of such a system call while its process waits (seccomp_unotify(2)).
We refuse it. So it is certain which program tried what, even if the command reports nothing, or
only that a host cannot be found.
"""

import asyncio
import errno
import fcntl
import os
import select
import socket
import struct
from contextlib import suppress

from holdfast.wire.protocol.process import NetworkAttempt

__all__ = ["NetworkAttempts"]

# SECCOMP_IOCTL_NOTIF_RECV and SECCOMP_IOCTL_NOTIF_SEND. These ioctl numbers contain the sizes of
# the two structures below.
_RECEIVE = 0xC0502100
_ANSWER = 0xC0182101

# struct seccomp_notif: id, pid, flags; then number, architecture, instruction pointer, arguments.
_CALL = struct.Struct("=QII iIQ6Q")
# struct seccomp_notif_resp: id, return value, error, flags.
_REFUSAL = struct.Struct("=QqiI")

# Most different attempts to keep for one command. A program that tries a thousand times usually
# tries the same thing.
_MOST_KEPT = 16

# Calls to answer before other callbacks of the event loop run.
_TURN = 64

# The rest of the type of a socket are flags such as SOCK_CLOEXEC.
_SOCK_TYPE_MASK = 0xF
_KINDS: dict[int, str] = {
    socket.SOCK_STREAM: "stream",
    socket.SOCK_DGRAM: "datagram",
    socket.SOCK_RAW: "raw",
}


class NetworkAttempts:
    """Listener of a seccomp filter that refuses every reported call and records it."""

    def __init__(self, fd: int) -> None:
        """`fd` is the listener's descriptor, which this object owns from now on."""
        self._fd = fd
        self._open = True
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._answer)
        # In order of arrival.
        self._made: dict[NetworkAttempt, None] = {}

    @property
    def made(self) -> tuple[NetworkAttempt, ...]:
        """The different attempts, in the order in which they were first made."""
        return tuple(self._made)

    def close(self) -> None:
        """Stop listening; a process that still makes such a call gets ENOSYS."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def _answer(self) -> None:
        for _ in range(_TURN):
            events = self._poll.poll(0)
            if not events:
                return
            if not events[0][1] & select.POLLIN:
                # POLLHUP: no process has the filter now.
                self._loop.remove_reader(self._fd)
                return
            call = bytearray(_CALL.size)
            try:
                fcntl.ioctl(self._fd, _RECEIVE, call)
            except OSError:
                # ENOENT: the process was killed while it waited.
                continue
            number, pid, _, _, _, _, family, kind, *_ = _CALL.unpack(call)
            if len(self._made) < _MOST_KEPT:
                self._made[_attempt(pid, family, kind)] = None
            with suppress(OSError):
                fcntl.ioctl(self._fd, _ANSWER, _REFUSAL.pack(number, 0, -errno.EPERM, 0))


def _attempt(pid: int, family: int, kind: int) -> NetworkAttempt:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            program = file.read().rstrip("\n")
    except OSError:
        program = ""
    # A process chooses its own name, and the name is shown on people's terminals.
    program = "".join(
        [letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in program]
    )
    return NetworkAttempt(
        program=program,
        family="IPv6" if family == socket.AF_INET6 else "IPv4",
        kind=_KINDS.get(kind & _SOCK_TYPE_MASK, "other"),
    )
