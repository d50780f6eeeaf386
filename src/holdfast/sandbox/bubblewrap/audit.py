"""
The kernel's audit log, as far as it tells what Landlock refused (Linux 6.15).

Only privileged servers may read it, and only where auditing is switched on. Of all that
is logged on a machine, records of this one kind are let through to us.
"""

from __future__ import annotations

import ctypes
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

__all__ = ["LOGGING_ABI", "LandlockLog", "can_read_log", "read_fields"]

LOGGING_ABI: Final = 7
"""From it on, Landlock tells what it refuses."""

_NETLINK_AUDIT: Final = 9
_READERS: Final = 1
"""The group of those who only read along."""

_GET: Final = 1000
_ACCESS: Final = 1423
_DOMAIN: Final = 1424
"""Types of messages: how auditing stands, an access that was refused, who it was refused to."""

_HEAD: Final = struct.Struct("=IHHII")
"""Of a message: size, type, flags, number, sender."""
_STATUS: Final = struct.Struct("=II")
"""The beginning of how it stands: what of it counts, and whether it is on."""
_REQUEST: Final = 1

_WAIT: Final = 1.0
"""Seconds for the kernel to answer."""

_LARGEST: Final = 1 << 16
_MOST_READ: Final = 256
"""Records that are looked at for one process; one that is refused much does not hold us up."""

_FIELD: Final = re.compile(r'(\w+)=(?:"([^"]*)"|(\S+))')

_ATTACH_FILTER: Final = 26
_FILTER: Final = b"".join(
    struct.pack("=HBBI", *instruction)
    for instruction in (
        (0x28, 0, 0, 4),  # the type, which this machine reads in the order of the network
        (0x15, 1, 0, socket.htons(_ACCESS)),
        (0x15, 0, 1, socket.htons(_DOMAIN)),
        (0x06, 0, 0, 0xFFFFFFFF),
        (0x06, 0, 0, 0),
    )
)


def can_read_log() -> bool:
    """Whether auditing is on, and this process may read what it logs."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_AUDIT) as asking:
            asking.bind((0, _READERS))
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_AUDIT) as asking:
            asking.settimeout(_WAIT)
            asking.send(_HEAD.pack(_HEAD.size, _GET, _REQUEST, 1, 0))
            answer = asking.recv(_LARGEST)
    except OSError:
        return False
    if _HEAD.unpack_from(answer)[1] != _GET:
        return False
    return bool(_STATUS.unpack_from(answer, _HEAD.size)[1])


class LandlockLog:
    """Reads along from now on, for one sandbox."""

    def __init__(self) -> None:
        """
        Raises:
            OSError: It is not for this process to read.
        """
        self.pid: int | None = None
        """The first process inside, which has restricted itself and so all others."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_AUDIT)
        code = ctypes.create_string_buffer(_FILTER, len(_FILTER))
        whole = struct.pack("=HxxxxxxQ", len(_FILTER) // 8, ctypes.addressof(code))
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, whole)
            self._socket.setblocking(False)
            self._socket.bind((0, _READERS))  # last of all: nothing else can have come
        except OSError:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def paths(self) -> tuple[str, ...]:
        """
        What Landlock refused inside, the first path first.

        What was logged since the last look is used up. The kernel logs a moment after the
        call has failed, so the last of them may be missing.
        """
        paths: list[tuple[str, str]] = []
        domains: set[str] = set()
        for message in self._messages():
            fields = read_fields(message)
            domain = fields.get("domain", "")
            if fields.get("pid") == str(self.pid):
                domains.add(domain)
            elif "path" in fields:
                paths.append((domain, fields["path"]))
        return tuple(path for domain, path in paths if domain in domains)

    def _messages(self) -> Iterator[bytes]:
        for _ in range(_MOST_READ):
            try:
                yield self._socket.recv(_LARGEST)[_HEAD.size :]
            except BlockingIOError:
                return
            except OSError:
                continue  # some were lost


def read_fields(record: bytes) -> dict[str, str]:
    """What a record says; a path that is not plain text is written in hexadecimal digits."""
    text = record.decode("utf-8", "replace").rstrip("\0\n")
    found = {name: quoted or bare for name, quoted, bare in _FIELD.findall(text)}
    if "path" in found and not found["path"].startswith("/"):
        with suppress(ValueError):
            found["path"] = bytes.fromhex(found["path"]).decode("utf-8", "replace")
    return found
