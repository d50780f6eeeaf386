"""
Attempts of a command to reach the network that its sandbox refused, as the kernel tells them.

The filter of system calls hands such a call over to us while the process that made it
waits. It is refused all the same; but who tried what is known for certain, also where the
command says nothing of it, or speaks of a host that cannot be found.
"""

import asyncio
import errno
import fcntl
import os
import select
import socket
import struct
from contextlib import suppress

from holdfast.protocol.process import NetworkAttempt

__all__ = ["NetworkAttempts"]

_RECEIVE = 0xC0502100
# Requests to the kernel, which have the sizes of what they carry in them.
_ANSWER = 0xC0182101

# A number of this call, pid, flags; then call, processor, place in the program, arguments.
_CALL = struct.Struct("=QII iIQ6Q")
# The number, a result, an error, flags.
_REFUSAL = struct.Struct("=QqiI")

# Different attempts of one command; a program that tries a thousand times tries the same.
_MOST_KEPT = 16

# Calls that are answered before others have their turn in the loop.
_TURN = 64

_SOCK_TYPE_MASK = 0xF
_KINDS: dict[int, str] = {
    socket.SOCK_STREAM: "stream",
    socket.SOCK_DGRAM: "datagram",
    socket.SOCK_RAW: "raw",
}


class NetworkAttempts:
    """Refuses them, and keeps who tried."""

    def __init__(self, fd: int) -> None:
        """`fd` is the descriptor of the filter, which belongs to this object from now on."""
        self._fd = fd
        self._open = True
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._answer)
        # In the order in which they came.
        self._made: dict[NetworkAttempt, None] = {}

    @property
    def made(self) -> tuple[NetworkAttempt, ...]:
        """Each once, the first one first."""
        return tuple(self._made)

    def close(self) -> None:
        """Nobody is left to make one; whoever is all the same, gets ENOSYS."""
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
                # The last process inside is gone.
                self._loop.remove_reader(self._fd)
                return
            call = bytearray(_CALL.size)
            try:
                fcntl.ioctl(self._fd, _RECEIVE, call)
            except OSError:
                # Whoever waited was killed meanwhile.
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
    # A process may call itself what it likes, and the name will be shown to people.
    program = "".join(
        [letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in program]
    )
    return NetworkAttempt(
        program=program,
        family="IPv6" if family == socket.AF_INET6 else "IPv4",
        kind=_KINDS.get(kind & _SOCK_TYPE_MASK, "other"),
    )
