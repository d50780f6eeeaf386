"""
Builds the tables of system calls that the server sends to the launcher.

Each table is a `continuation` of the launcher's own list. Nothing is run here.
"""

import errno
import os
import platform
import signal
import struct
import termios
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from holdfast.engine.linux.assembler import (
    ARGUMENTS,
    ENVIRONMENT,
    At,
    CallProgram,
    Label,
)
from holdfast.front.drop_in.launcher import FINAL, FINAL_SIZE, INBOX, INBOX_SIZE, SOCKET

__all__ = [
    "CANNOT_RUN",
    "NOT_FOUND",
    "SIGNAL_SIZE",
    "TooLarge",
    "become",
    "enclose",
    "finish",
    "refuse",
    "run_instead",
]

CANNOT_RUN: Final = 126
NOT_FOUND: Final = 127
"""Exit statuses of a shell for a program that cannot be executed, or is missing."""

SIGNAL_SIZE: Final = 128
"""Size of a message of the launcher about a signal: a `signalfd_siginfo`."""

# Signals that the launcher forwards. SIGCONT continues a shell that has stopped itself.
_FORWARDED: Final = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)

_ALL_BUT_CHILD: Final = 0xFFFFFFFFFFFFFFFF & ~(1 << (signal.SIGCHLD - 1))
_SIGNALFD_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
_POLL_IN: Final = 1
# F_DUPFD_CLOEXEC.
_DUPLICATE: Final = 1030
# CLONE_NEWNS of `unshare`, and MS_REC | MS_PRIVATE of `mount`.
_NEW_MOUNTS: Final = 0x20000
_PRIVATE: Final = 16384 | 1 << 18
# Size of the kernel's `struct sigaction`; all zeros is SIG_DFL.
_SIGACTION: Final = 32
# AT_FDCWD, P_ALL of `waitid`, and the offset of si_status in a `siginfo_t`.
_HERE: Final = -100 & 0xFFFFFFFFFFFFFFFF
_ALL: Final = 0
_STATUS_AT: Final = 24

_MACHINE: Final = platform.machine()


class TooLarge(ValueError):
    """The arguments and variables of a command do not fit into the launcher's memory."""


def refuse(text: str, status: int = CANNOT_RUN) -> bytes:
    """Return a table that writes a line to stderr and exits."""
    made = CallProgram(_MACHINE, at=INBOX)
    _say(made, text)
    made.call("exit_group", status)
    return made.continuation()


@lru_cache(maxsize=16)
def become(program: str) -> bytes:
    """Return a table that executes a program with the launcher's arguments and environment."""
    made = CallProgram(_MACHINE, at=INBOX)
    _execute(made, program, ARGUMENTS, ENVIRONMENT)
    return made.continuation()


def run_instead(program: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> bytes:
    """
    Return a table that executes a program with these arguments.

    Args:
        program: Path to execute.
        argv: Arguments of the program.
        env: Environment of the program; None for the launcher's.
    """
    made = CallProgram(_MACHINE, at=INBOX)
    variables = ENVIRONMENT if env is None else _variables(made, env)
    _execute(made, program, _list(made, argv), variables)
    return _bounded(made.continuation())


def enclose(
    program: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    descriptors: Sequence[int],
    *,
    closed_stream: bool = False,
    private_mounts: bool = False,
) -> bytes:
    """
    Return a table that starts a program, forwards signals and waits for the last table.

    Args:
        program: Path to execute.
        argv: Arguments of the program.
        env: Environment of the program.
        descriptors: Descriptors that the program needs and the launcher closes.
        closed_stream: True if a standard stream was closed. The table had its number; it
            becomes `/dev/null`, so that bubblewrap cannot get it for another file.
        private_mounts: True to start it in a private mount namespace, as `mount_namespace` does.
    """
    made = CallProgram(_MACHINE, at=INBOX)
    if closed_stream:
        made.call("openat", _HERE, made.text(os.devnull), os.O_RDWR)
    failed, started = Label(), Label()
    before = made.data(bytes(8))
    waited = _watch_signals(made, before, failed)
    child = At(made.data(bytes(8)))
    # A caller may ignore SIGCHLD. Inherited, that would make the kernel reap all children, so
    # that no exit status could be read.
    made.call("rt_sigaction", signal.SIGCHLD, made.data(bytes(_SIGACTION)), 0, 8)
    made.call("clone", signal.SIGCHLD, result=child.address, failed=failed)
    made.go_if_zero(child, started)
    for number in descriptors:
        made.call("close", number)
    _forward_signals(made, waited, before)

    made.bind(failed)
    _say(made, "holdfast-sh: the command cannot be started")
    made.call("exit_group", CANNOT_RUN)

    made.bind(started)
    # Signals that a terminal sends to the whole group are for the command, not for bubblewrap.
    made.call("rt_sigprocmask", signal.SIG_SETMASK, made.data(_WORD.pack(_ALL_BUT_CHILD)), 0, 8)
    if private_mounts:
        # A caller without the capability has the gap of an ordinary user.
        made.call("unshare", _NEW_MOUNTS)
        made.call("mount", 0, made.text("/"), 0, _PRIVATE)
    _execute(made, program, _list(made, argv), _variables(made, env))
    return _bounded(made.continuation())


def _watch_signals(made: CallProgram, before: int, failed: Label) -> int:
    """
    Add calls that block the forwarded signals and open a signalfd for them.

    Args:
        made: Table to add to.
        before: Address for the signal mask as it was.
        failed: Label for errors.

    Returns:
        The address of two `struct pollfd`: the socket, and the signalfd.
    """
    forwarded = made.data(_mask(*_FORWARDED))
    made.call("rt_sigprocmask", signal.SIG_BLOCK, forwarded, before, 8)
    waited = made.data(struct.pack("<iHHiHH", 0, _POLL_IN, 0, 0, _POLL_IN, 0))
    signals = At(waited + 8)
    made.call(
        *("signalfd4", 0xFFFFFFFF, forwarded, 8, _SIGNALFD_FLAGS),
        result=signals.address,
        failed=failed,
    )
    # A number gets into memory only as the result of a call, so the socket is duplicated.
    made.call("fcntl", SOCKET, _DUPLICATE, 3, result=waited, failed=failed)
    return waited


def _forward_signals(made: CallProgram, waited: int, before: int) -> None:
    """Add the loop that forwards signals to the server until the last table arrives."""
    again, nothing, lost = Label(), Label(), Label()
    signals = At(waited + 8)
    received = made.data(bytes(SIGNAL_SIZE))
    got = At(made.data(bytes(8)))
    made.bind(again)
    made.call("ppoll", waited, 2, 0, 0, failed=again)
    made.call("read", signals, received, SIGNAL_SIZE, failed=nothing)
    made.call("write", SOCKET, received, SIGNAL_SIZE)
    made.go_to(again)
    made.bind(nothing)
    made.call("read", SOCKET, FINAL, FINAL_SIZE, result=got.address, failed=lost)
    made.go_if_zero(got, lost)
    made.leave_to(FINAL)

    # The server is gone, but the command goes on. With the old signal mask, a signal ends the
    # launcher, which owns the sandbox, and so the command.
    made.bind(lost)
    ended = made.data(bytes(SIGNAL_SIZE))
    made.call("rt_sigprocmask", signal.SIG_SETMASK, before, 0, 8)
    made.call("waitid", _ALL, 0, ended, os.WEXITED, failed={errno.EINTR: lost})
    made.call("exit_group", At(ended + _STATUS_AT))


def finish(
    status: int, text: str | None, *, terminal: int | None = None, group: int | None = None
) -> bytes:
    """
    Return the table that ends the launcher, the last one after `enclose`.

    Args:
        status: Exit status.
        text: Line for stderr, or None.
        terminal: Descriptor of the terminal, if the command may have taken it.
        group: Process group that had the terminal before.
    """
    made = CallProgram(_MACHINE, at=FINAL)
    # SIGTTOU would stop a background process that sets the foreground group.
    if terminal is not None and group is not None:
        made.call("rt_sigprocmask", signal.SIG_BLOCK, made.data(_mask(signal.SIGTTOU)), 0, 8)
        made.call("ioctl", terminal, termios.TIOCSPGRP, made.data(struct.pack("<i", group)))
    if text is not None:
        _say(made, text)
    again = Label()
    made.bind(again)
    scrap = made.data(bytes(SIGNAL_SIZE))
    made.call("waitid", _ALL, 0, scrap, os.WEXITED, failed={errno.EINTR: again})
    made.call("exit_group", status)
    content = made.continuation()
    # `_say` limits the length of the line.
    assert len(content) <= FINAL_SIZE
    return content


_WORD: Final = struct.Struct("<Q")


def _mask(*signals: int) -> bytes:
    return _WORD.pack(sum(1 << (number - 1) for number in signals))


def _bounded(content: bytes) -> bytes:
    if len(content) > INBOX_SIZE:
        raise TooLarge("its arguments and variables are too large")
    return content


def _say(made: CallProgram, text: str) -> None:
    line = os.fsencode(text[:4096].replace("\n", " ")) + b"\n"
    made.call("write", 2, made.data(line), len(line))


def _list(made: CallProgram, words: Sequence[str]) -> int:
    addresses = [made.text(word) for word in words]
    return made.data(struct.pack(f"<{len(addresses) + 1}Q", *addresses, 0))


def _variables(made: CallProgram, env: Mapping[str, str]) -> int:
    return _list(made, [f"{name}={value}" for name, value in env.items()])


def _execute(made: CallProgram, program: str, argv: int | At, env: int | At) -> None:
    missing, large, failed = Label(), Label(), Label()
    made.call(
        *("execve", made.text(program), argv, env),
        failed={errno.ENOENT: missing, errno.E2BIG: large, 0: failed},
    )
    for label, why, status in (
        (missing, errno.ENOENT, NOT_FOUND),
        (large, errno.E2BIG, CANNOT_RUN),
        (failed, errno.EACCES, CANNOT_RUN),
    ):
        made.bind(label)
        said = os.strerror(why) if label is not failed else "it cannot be executed"
        _say(made, f"holdfast-sh: {program}: {said}")
        made.call("exit_group", status)
