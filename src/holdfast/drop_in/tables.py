"""
The lists of system calls that the server answers with, for the launcher to make.

Each is a `continuation` of the launcher's own list. Pure: nothing is run here.
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

from holdfast.drop_in.launcher import FINAL, FINAL_SIZE, INBOX, INBOX_SIZE, SOCKET
from holdfast.sandbox.bubblewrap.init.assembler import (
    ARGUMENTS,
    ENVIRONMENT,
    At,
    CallProgram,
    Label,
)

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
"""How a shell ends that cannot execute a program, or does not find it."""

SIGNAL_SIZE: Final = 128
"""Bytes of what the launcher sends for each signal: a `signalfd_siginfo`."""

_FORWARDED: Final = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)
"""Signals that the launcher passes on. A shell that has stopped itself goes on with the last."""

_ALL_BUT_CHILD: Final = 0xFFFFFFFFFFFFFFFF & ~(1 << (signal.SIGCHLD - 1))
_SIGNALFD_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
_POLL_IN: Final = 1
_DUPLICATE: Final = 1030
"""`F_DUPFD_CLOEXEC`."""
_SIGACTION: Final = 32
"""Bytes of what says how to take a signal; zeros are the default."""
_HERE: Final = -100 & 0xFFFFFFFFFFFFFFFF
_ALL: Final = 0
_STATUS_AT: Final = 24
"""Where a `siginfo_t` has how a process ended."""

_MACHINE: Final = platform.machine()


class TooLarge(ValueError):
    """What the command is given does not fit into the launcher."""


def refuse(text: str, status: int = CANNOT_RUN) -> bytes:
    """Say a line on stderr and end."""
    made = CallProgram(_MACHINE, at=INBOX)
    _say(made, text)
    made.call("exit_group", status)
    return made.continuation()


@lru_cache(maxsize=16)
def become(program: str) -> bytes:
    """Execute a program with the arguments and the environment of the launcher."""
    made = CallProgram(_MACHINE, at=INBOX)
    _execute(made, program, ARGUMENTS, ENVIRONMENT)
    return made.continuation()


def run_instead(program: str, argv: Sequence[str]) -> bytes:
    """Execute a program with other arguments and the environment of the launcher."""
    made = CallProgram(_MACHINE, at=INBOX)
    _execute(made, program, _list(made, argv), ENVIRONMENT)
    return _bounded(made.continuation())


def enclose(
    program: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    descriptors: Sequence[int],
    *,
    closed_stream: bool = False,
) -> bytes:
    """
    Start a program, pass signals on, and go on with what the server sends at its end.

    Args:
        program: The file to execute.
        argv: Its arguments.
        env: Its variables.
        descriptors: The numbers that it needs and the launcher does not.
        closed_stream: Whether a standard stream was closed, whose number the table had. What
            bubblewrap opens must not get it, so `/dev/null` does.
    """
    made = CallProgram(_MACHINE, at=INBOX)
    if closed_stream:
        made.call("openat", _HERE, made.text(os.devnull), os.O_RDWR)
    failed, started, lost = Label(), Label(), Label()
    forwarded = made.data(_mask(*_FORWARDED))
    before = made.data(bytes(8))
    made.call("rt_sigprocmask", signal.SIG_BLOCK, forwarded, before, 8)
    # poll's list: a descriptor, what is waited for, what came.
    waited = made.data(struct.pack("<iHHiHH", 0, _POLL_IN, 0, 0, _POLL_IN, 0))
    signals = At(waited + 8)
    made.call(
        *("signalfd4", 0xFFFFFFFF, forwarded, 8, _SIGNALFD_FLAGS),
        result=signals.address,
        failed=failed,
    )
    made.call("fcntl", SOCKET, _DUPLICATE, 3, result=waited, failed=failed)
    child = At(made.data(bytes(8)))
    # Inherited as ignored it would have the kernel reap the children of all, unseen.
    made.call("rt_sigaction", signal.SIGCHLD, made.data(bytes(_SIGACTION)), 0, 8)
    made.call("clone", signal.SIGCHLD, result=child.address, failed=failed)
    made.go_if_zero(child, started)
    for number in descriptors:
        made.call("close", number)

    again, nothing = Label(), Label()
    told = made.data(bytes(SIGNAL_SIZE))
    got = At(made.data(bytes(8)))
    made.place(again)
    made.call("ppoll", waited, 2, 0, 0, failed=again)
    made.call("read", signals, told, SIGNAL_SIZE, failed=nothing)
    made.call("write", SOCKET, told, SIGNAL_SIZE)
    made.go_to(again)
    made.place(nothing)
    made.call("read", SOCKET, FINAL, FINAL_SIZE, result=got.address, failed=lost)
    made.go_if_zero(got, lost)
    made.leave_to(FINAL)

    # Without a server the command goes on. Signals end the launcher, and that the command.
    made.place(lost)
    ended = made.data(bytes(SIGNAL_SIZE))
    made.call("rt_sigprocmask", signal.SIG_SETMASK, before, 0, 8)
    made.call("waitid", _ALL, 0, ended, os.WEXITED, failed={errno.EINTR: lost})
    made.call("exit_group", At(ended + _STATUS_AT))

    made.place(failed)
    _say(made, "holdfast-sh: the command cannot be started")
    made.call("exit_group", CANNOT_RUN)

    made.place(started)
    # What a terminal or a caller sends to the group is for the command, not for bubblewrap.
    made.call("rt_sigprocmask", signal.SIG_SETMASK, made.data(_WORD.pack(_ALL_BUT_CHILD)), 0, 8)
    variables = [f"{name}={value}" for name, value in env.items()]
    _execute(made, program, _list(made, argv), _list(made, variables))
    return _bounded(made.continuation())


def finish(
    status: int, text: str | None, *, terminal: int | None = None, group: int | None = None
) -> bytes:
    """
    End the launcher, as the last table of `enclose`.

    Args:
        status: The exit status.
        text: A line for stderr.
        terminal: The descriptor of the terminal, if the command may have taken it.
        group: The process group that had the terminal before.
    """
    made = CallProgram(_MACHINE, at=FINAL)
    if terminal is not None and group is not None:
        made.call("rt_sigprocmask", signal.SIG_BLOCK, made.data(_mask(signal.SIGTTOU)), 0, 8)
        made.call("ioctl", terminal, termios.TIOCSPGRP, made.data(struct.pack("<i", group)))
    if text is not None:
        _say(made, text)
    again = Label()
    made.place(again)
    scrap = made.data(bytes(SIGNAL_SIZE))
    made.call("waitid", _ALL, 0, scrap, os.WEXITED, failed={errno.EINTR: again})
    made.call("exit_group", status)
    content = made.continuation()
    assert len(content) <= FINAL_SIZE  # the line is bounded
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
        made.place(label)
        said = os.strerror(why) if label is not failed else "it cannot be executed"
        _say(made, f"holdfast-sh: {program}: {said}")
        made.call("exit_group", status)
