"""Switching the kernel's auditing on, for tests of what it logs."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.sandbox.bubblewrap.audit import LOGGING_ABI, can_read_log
from holdfast.sandbox.bubblewrap.landlock import landlock_abi

__all__ = ["auditing"]

_SET = 1001
_WITH_ANSWER = 5


def _switch(on: bool) -> None:
    status = struct.pack("=11I", 1, on, *[0] * 9)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9) as asking:
        asking.settimeout(5)
        head = struct.pack("=IHHII", 16 + len(status), _SET, _WITH_ANSWER, 1, 0)
        asking.send(head + status)
        (error,) = struct.unpack_from("=i", asking.recv(4096), 16)
    if error:
        raise OSError(-error, os.strerror(-error))


@contextmanager
def auditing() -> Iterator[None]:
    """Have it on; a test that cannot is skipped."""
    if landlock_abi() < LOGGING_ABI:
        pytest.skip("this kernel does not log what Landlock refuses")
    if can_read_log():
        yield
        return
    try:
        _switch(True)
    except OSError as error:
        pytest.skip(f"auditing cannot be switched on: {error.strerror}")
    try:
        yield
    finally:
        _switch(False)
