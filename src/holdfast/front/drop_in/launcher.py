"""
Builds the launcher: the executable that an agent calls as its shell.

The launcher is a program of `linux.assembler`, a list of system calls.

It connects to the server's socket, receives a table of system calls with descriptors, and goes
on with that table. If no server listens, it runs a command that starts one, and tries again
once. Nothing is run here.
"""

import errno
import os
import signal
import socket
import struct
from collections.abc import Sequence
from typing import Final

from holdfast.engine.linux.assembler import ANY, ENVIRONMENT, At, CallProgram, Label

__all__ = ["FINAL", "FINAL_SIZE", "INBOX", "INBOX_SIZE", "SOCKET", "make_launcher"]

INBOX: Final = 0x600000
INBOX_SIZE: Final = 8 << 20
"""Address and size of the launcher's memory for the first table of the server."""

FINAL: Final = INBOX + INBOX_SIZE
FINAL_SIZE: Final = 1 << 16
"""Size of the memory for the last table, after a command in a sandbox has ended."""

SOCKET: Final = At(FINAL + FINAL_SIZE)
"""Address of the descriptor number of the connected socket."""

_MEMORY_END: Final = SOCKET.address + 8

# SCM_MAX_FD: descriptors of one message.
_MOST_FDS: Final = 253

# Lowest number for the socket: a caller may have closed its standard streams, whose numbers
# must stay free.
_FIRST_FD: Final = 3

# F_DUPFD_CLOEXEC.
_DUPLICATE: Final = 1030

# Seconds to wait for the response, longer than a person has to answer a question.
_ANSWER_LIMIT: Final = 600

_ONE: Final = 1
_SIGINFO: Final = 128

_UNREACHABLE: Final = b"holdfast-sh: its server cannot be reached, so nothing was run\n"
_CANNOT_RUN: Final = 126


def make_launcher(machine: str, *, socket_path: str, starter: Sequence[str]) -> bytes:
    """
    Return the launcher, an executable file.

    Args:
        machine: Architecture, as `uname -m` prints it.
        socket_path: Path of the server's socket.
        starter: Command that starts a server and exits when it listens; an absolute path first.

    Raises:
        KeyError: The architecture is not supported.
        ValueError: The path is too long for the address of a socket.
    """
    name = os.fsencode(socket_path)
    # `sun_path` has 108 bytes, one of them for the NUL.
    if len(name) > 107:
        raise ValueError(f"{socket_path}: too long for the address of a socket")
    made = CallProgram(machine)
    missing, broken = Label(), Label()
    _ask(made, name, missing)
    made.bind(missing)
    made.call("close", SOCKET)
    _run(made, starter, broken)
    _ask(made, name, broken)
    made.bind(broken)
    made.call("write", 2, made.data(_UNREACHABLE), len(_UNREACHABLE))
    made.call("exit_group", _CANNOT_RUN)
    return made.image(memory_end=_MEMORY_END)


def _ask(made: CallProgram, name: bytes, failed: Label) -> None:
    """Add the calls that connect, receive a table and jump to it."""
    first, got = At(made.data(bytes(8))), At(made.data(bytes(8)))
    kind = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
    made.call("socket", socket.AF_UNIX, kind, 0, result=first.address, failed=failed)
    made.call("fcntl", first, _DUPLICATE, _FIRST_FD, result=SOCKET.address, failed=failed)
    made.call("close", first)
    limit = made.data(struct.pack("<qq", _ANSWER_LIMIT, 0))
    made.call("setsockopt", SOCKET, socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit, 16)
    address = struct.pack("<H", socket.AF_UNIX) + name + b"\0"
    made.call("connect", SOCKET, made.data(address), len(address), failed=failed)
    part = made.data(struct.pack("<QQ", made.data(bytes(8)), 8))
    control = made.data(bytes(16 + 4 * _MOST_FDS))
    size = 16 + 4 * _MOST_FDS
    message = made.data(struct.pack("<QQQQQQQ", 0, 0, part, 1, control, size, 0))
    waiting = Label()
    made.bind(waiting)
    # A call with a timeout fails like this after a stop (Ctrl-Z), although no handler ran.
    interrupted = {errno.EINTR: waiting, ANY: failed}
    made.call("recvmsg", SOCKET, message, 0, result=got.address, failed=interrupted)
    made.go_if_zero(got, failed)
    # The first descriptor of the message is a memory file with the table. Its number has 4
    # bytes in the message, and the kernel uses only 4 bytes of the argument.
    table = At(control + 16)
    made.call("read", table, INBOX, INBOX_SIZE, failed=failed)
    made.call("close", table)
    made.leave_to(INBOX)


def _run(made: CallProgram, command: Sequence[str], failed: Label) -> None:
    """Add the calls that run a command and wait for its exit."""
    child, started = At(made.data(bytes(8))), Label()
    made.call("clone", signal.SIGCHLD, result=child.address, failed=failed)
    made.go_if_zero(child, started)
    scrap = made.data(bytes(_SIGINFO))
    again, over = Label(), Label()
    made.bind(again)
    made.call("waitid", _ONE, child, scrap, os.WEXITED, failed={errno.EINTR: again})
    made.go_to(over)
    made.bind(started)
    words = [made.text(word) for word in command]
    argv = made.data(struct.pack(f"<{len(words) + 1}Q", *words, 0))
    made.call("execve", words[0], argv, ENVIRONMENT)
    made.call("exit_group", _CANNOT_RUN)
    made.bind(over)
