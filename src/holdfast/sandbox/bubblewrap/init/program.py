"""
What is done right before a command: inside a sandbox, and beside the command there.

The launcher has made the mounts and the namespaces, has given up all privileges, and is
the first process inside. What is left is to apply Landlock, to load the filter of system
calls, and to start the command, with its terminal if it has one. The first process then
stays: it takes in and reaps what is orphaned, and tells how the command ended. It is under
the same rules as the command, which could gain nothing by it, and cannot get at it either.

A command without a sandbox that has limits needs some of this too (`make_prologue`).

Pure: this makes the program that does it (`init.assembler`). The launcher copies it into
the sandbox, where it removes its own file first of all.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import termios
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from holdfast.sandbox.bubblewrap.init.assembler import (
    ANY,
    ENVIRONMENT,
    RESULT,
    At,
    Beginning,
    CallProgram,
    Label,
)
from holdfast.sandbox.bubblewrap.landlock import WRITE_FILE, Ruleset

__all__ = [
    "BUILT",
    "END_SIZE",
    "EXEC_ERROR_SIZE",
    "GO",
    "READY",
    "STAGE_PATH",
    "CallersSession",
    "ended",
    "make_prologue",
    "make_stage",
]

STAGE_PATH: Final = "/dev/.holdfast"
"""Where the launcher puts it: in a directory that every sandbox has for itself."""

BUILT: Final = b"b"
"""What it says first of all, if it is to wait: all is mounted. `GO` lets it start the command."""

GO: Final = b"g"

READY: Final = b"r"
"""
What it says when the command is about to be executed, with the descriptor of the filter if
there is one. If something could not be applied, it says 8 bytes instead, the first 4 of
which are the error as a negative number.
"""

EXEC_ERROR_SIZE: Final = 4
"""After that come as many bytes, such a number, if the command cannot be executed; and"""

END_SIZE: Final = 28
"""so many when the command has ended: the beginning of a `siginfo_t`."""

_END: Final = struct.Struct("=iii4xiii")
"""Of that: a signal, an error, a code; of the process its pid, user and status."""

_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
"""How it ends if there is no such program or it cannot be executed, as in a shell."""

_REPORT: Final = 3
"""The number of the descriptor that is kept while all others are closed."""

_HIGHEST: Final = 0xFFFFFFFF
_HERE: Final = -100 & 0xFFFFFFFFFFFFFFFF
_DUMPABLE: Final = 4
_NO_NEW_PRIVILEGES: Final = 38
_PATH_BENEATH: Final = 1
_LOAD_FILTER: Final = 1
_WITH_LISTENER: Final = 1 << 3

_TOLD_ERRORS: Final = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.E2BIG)
"""What an exec fails with that can be told in the words of the system; of others less is said."""

_RESET_SIGNALS: Final = (signal.SIGHUP, signal.SIGQUIT)
"""What the server may have been told to ignore, which a command would inherit."""

_SETUP_FAILED: Final = 1

_PAUSE: Final = 1_000_000
"""Nanoseconds between two attempts to hand over a descriptor."""

_ALL: Final = 0
_ONE: Final = 1
"""Of whom `waitid` is to wait for."""
_LOOK: Final = os.WEXITED | os.WNOHANG | os.WNOWAIT
_SIGACTION: Final = 32
"""Bytes of what says how to take a signal; zeros are the default."""
_SIGINFO: Final = 128
_PID_AT: Final = 16
_STATUS_AT: Final = 24
"""Where a `siginfo_t` has them, and how large it is."""


class CallersSession(NamedTuple):
    """For a command that belongs to the process group and the terminal of its caller."""

    signal_mask: int
    """The signals that were blocked in the caller; the sandbox is built with all blocked."""
    terminal: int | None = None
    """The standard descriptor that is the controlling terminal."""
    empty_streams: tuple[int, ...] = ()
    """The standard descriptors that are `/dev/null`, see `make_stage`."""


def ended(told: bytes) -> tuple[int, int]:
    """The code and the status in what it tells of the end of a command (`END_SIZE`)."""
    _, _, code, _, _, status = _END.unpack(told)
    return code, status


def make_stage(
    machine: str,
    *,
    program: str,
    argv: Sequence[str],
    report: int,
    filter_program: bytes,
    listen: bool = False,
    landlock: Ruleset | None = None,
    terminal: bool = False,
    limits: Sequence[tuple[int, int, int]] = (),
    wait: bool = False,
    caller: CallersSession | None = None,
    empty_streams: Sequence[int] = (),
) -> bytes:
    """
    The program that sets up the rest and executes the command.

    Args:
        machine: The processor.
        program: The file to execute; one without a name is one that is not there.
        argv: What the command sees, its own name first.
        report: The descriptor of a connected socket to tell how it went. Not 3.
        filter_program: The filter of system calls.
        listen: Whether that filter tells somebody of some calls, and so has a descriptor.
        landlock: What is to be refused beyond the mounts.
        terminal: Whether its input is a terminal, to become its own.
        limits: What the command may use: resources, limits, and what it may raise them to.
        wait: Whether somebody looks at what is mounted before the command is started.
        caller: Whose signals and terminal the command has, instead of fresh ones.
        empty_streams: The standard descriptors that are to be `/dev/null`: that of the
            sandbox, not the one of the host that they were opened from.

    Raises:
        KeyError: Nothing is known of that processor.
    """
    beginning = _beginning(
        *(machine, report, filter_program, listen, landlock, terminal, tuple(limits), wait),
        caller,
        tuple(empty_streams),
    )
    made = CallProgram(machine, beginning)
    _execute(made, program, argv)
    return made.image()


def make_prologue(
    machine: str,
    *,
    program: str,
    argv: Sequence[str],
    report: int,
    limits: Sequence[tuple[int, int, int]] = (),
    wait: bool = False,
) -> bytes:
    """
    The program for a command without a sandbox, which sets its limits and executes it.

    It says `BUILT` and waits, if it is to; then nothing, or what error there was. Of the
    descriptors beyond the standard ones it knows 3 and `report`, and leaves none.
    """
    made = CallProgram(machine)
    failed = Label()
    made.call("dup3", report, _REPORT, os.O_CLOEXEC, failed=failed)
    made.call("close", report)
    if wait:
        _say_built(made, failed)
        _wait_for_word(made, failed)
    _set_limits(made, limits, failed)
    words = [made.text(word) for word in argv]
    made.call("execve", made.text(program), _list(made, words), ENVIRONMENT, failed=failed)
    made.place(failed)
    made.call("write", _REPORT, RESULT, EXEC_ERROR_SIZE)
    made.call("exit_group", _NOT_EXECUTABLE)
    return made.image()


def _say_built(made: CallProgram, failed: Label) -> None:
    made.call("write", _REPORT, made.data(BUILT), len(BUILT), failed=failed)


def _wait_for_word(made: CallProgram, failed: Label) -> None:
    """Wait for `GO`; without it, nobody is there any more."""
    got = At(made.data(bytes(8)))
    made.call("read", _REPORT, made.data(GO), len(GO), result=got.address, failed=failed)
    made.go_if_zero(got, failed)


def _set_limits(made: CallProgram, limits: Sequence[tuple[int, int, int]], failed: Label) -> None:
    for resource, soft, hard in limits:
        limit = made.data(struct.pack("<QQ", soft, hard))
        made.call("prlimit64", 0, resource, limit, failed=failed)


@lru_cache(maxsize=128)
def _beginning(
    machine: str,
    report: int,
    filter_program: bytes,
    listen: bool,
    landlock: Ruleset | None,
    terminal: bool,
    limits: tuple[tuple[int, int, int], ...],
    wait: bool,
    caller: CallersSession | None,
    empty_streams: tuple[int, ...],
) -> Beginning:
    """All but the exec; the same for each command of a sandbox."""
    assert report != _REPORT  # it is moved there
    made = CallProgram(machine)
    failed, command = Label(), Label()
    made.call("unlinkat", _HERE, made.text(STAGE_PATH), 0, failed=failed)
    made.call("dup3", report, _REPORT, os.O_CLOEXEC, failed=failed)
    made.call("close", report)
    made.call("close_range", _REPORT + 1, _HIGHEST, 0)
    _empty(made, empty_streams, failed)
    # Its memory and all else of it that `/proc` shows is nobody's to touch, until an exec.
    made.call("prctl", _DUMPABLE, 0, failed=failed)
    if wait:
        _say_built(made, failed)
    made.call("prctl", _NO_NEW_PRIVILEGES, 1, failed=failed)
    if landlock is not None:
        tty = 0 if terminal else None
        if caller is not None:
            tty = caller.terminal
        _apply_landlock(made, landlock, tty, failed)
    message, listener = _ready_message(made) if listen else (0, None)
    _load_filter(made, filter_program, listener, failed)
    if wait:
        # So late: whoever looks at what is built has done so meanwhile.
        _wait_for_word(made, failed)
    child = At(made.data(bytes(8)))
    made.call("clone", signal.SIGCHLD, result=child.address, failed=failed)
    made.go_if_zero(child, command)
    _stay(made, child, listener, failed)
    made.place(failed)
    made.call("write", _REPORT, RESULT, 8)
    made.call("exit_group", _SETUP_FAILED)
    made.place(command)
    if caller is None:
        default = made.data(bytes(_SIGACTION))
        for number in _RESET_SIGNALS:
            made.call("rt_sigaction", number, default, 0, 8)
    else:
        mask = made.data(struct.pack("<Q", caller.signal_mask))
        made.call("rt_sigprocmask", signal.SIG_SETMASK, mask, 0, 8)
    if terminal:
        made.call("setsid")
        made.call("ioctl", 0, termios.TIOCSCTTY, 0)
    if listen:
        _hand_over(made, message, failed)
    else:
        made.call("write", _REPORT, made.data(READY), len(READY), failed=failed)
    # Only now: they would count for what comes before, too.
    _set_limits(made, limits, failed)
    return made.as_beginning()


def _empty(made: CallProgram, streams: Sequence[int], failed: Label) -> None:
    """Open `/dev/null` for these standard descriptors, as it is in the sandbox."""
    fd = At(made.data(bytes(8)))
    for stream in streams:
        path = made.text("/dev/null")
        made.call("openat", _HERE, path, os.O_RDWR, result=fd.address, failed=failed)
        made.call("dup3", fd, stream, 0, failed=failed)
        made.call("close", fd)


def _apply_landlock(made: CallProgram, rules: Ruleset, terminal: int | None, failed: Label) -> None:
    attributes, size = made.data(rules.attributes), len(rules.attributes)
    fd = At(made.data(bytes(8)))
    made.call("landlock_create_ruleset", attributes, size, 0, result=fd.address, failed=failed)
    for path, access in rules.rules:
        rule = made.data(struct.pack("<Qi", access, 0))
        beneath = At(rule + 8)
        missing = Label()
        made.call(
            *("openat", _HERE, made.text(path), os.O_PATH | os.O_CLOEXEC),
            result=beneath.address,
            failed=missing,
        )
        made.call("landlock_add_rule", fd, _PATH_BENEATH, rule, 0, failed=failed)
        made.call("close", beneath)
        made.place(missing)
    if terminal is not None:
        # It belongs to the host's `/dev`: it could not be opened again by its name.
        write = made.data(struct.pack("<Qi", WRITE_FILE, terminal))
        made.call("landlock_add_rule", fd, _PATH_BENEATH, write, 0, failed=failed)
    made.call("landlock_restrict_self", fd, 0, failed=failed)
    made.call("close", fd)


def _load_filter(made: CallProgram, program: bytes, listener: At | None, failed: Label) -> None:
    size = len(program) // 8
    whole = made.data(struct.pack("<HxxxxxxQ", size, made.data(program)))
    if listener is None:
        made.call("seccomp", _LOAD_FILTER, 0, whole, failed=failed)
    else:
        made.call(
            *("seccomp", _LOAD_FILTER, _WITH_LISTENER, whole),
            result=listener.address,
            failed=failed,
        )


def _stay(made: CallProgram, child: At, listener: At | None, failed: Label) -> None:
    """Be the first process: reap whatever ends, until the command is among it."""
    if listener is not None:
        made.call("close", listener)
    waiting, gone, scrap = (made.data(bytes(_SIGINFO)) for _ in range(3))
    again, done = Label(), Label()
    made.place(again)
    made.call("waitid", _ALL, 0, waiting, os.WEXITED | os.WNOWAIT, failed=failed)
    made.call("waitid", _ONE, At(waiting + _PID_AT), gone, os.WEXITED, failed=failed)
    # Whether the command is still ours to wait for.
    made.call("waitid", _ONE, child, scrap, _LOOK, failed=done)
    made.go_to(again)
    made.place(done)
    made.call("write", _REPORT, gone, END_SIZE)
    made.call("exit_group", At(gone + _STATUS_AT))


def _ready_message(made: CallProgram) -> tuple[int, At]:
    """Where the message is, and where in it the descriptor has to be that goes along."""
    part = made.data(struct.pack("<QQ", made.data(READY), len(READY)))
    head = struct.pack("<Qii", 20, socket.SOL_SOCKET, socket.SCM_RIGHTS)
    control = made.data(head + bytes(8))
    message = made.data(struct.pack("<QQQQQQQ", 0, 0, part, 1, control, len(head) + 8, 0))
    return message, At(control + len(head))


def _hand_over(made: CallProgram, message: int, failed: Label) -> None:
    """Send it. Of a user, only so many descriptors may be on their way at once: then wait."""
    send, crowded, sent = Label(), Label(), Label()
    made.place(send)
    made.call(
        *("sendmsg", _REPORT, message, socket.MSG_NOSIGNAL),
        failed={errno.ETOOMANYREFS: crowded, ANY: failed},
    )
    made.go_to(sent)
    made.place(crowded)
    made.call("nanosleep", made.data(struct.pack("<QQ", 0, _PAUSE)))
    made.go_to(send)
    made.place(sent)


def _execute(made: CallProgram, program: str, argv: Sequence[str]) -> None:
    words = [made.text(word) for word in argv]
    reasons = {error: Label() for error in (*_TOLD_ERRORS, ANY)}
    made.call("execve", made.text(program), _list(made, words), ENVIRONMENT, failed=reasons)
    for error, label in reasons.items():
        made.place(label)
        why = os.strerror(error) if error != ANY else "it cannot be executed"
        said = os.fsencode(f"holdfast: {program or argv[0]}: {why}\n")
        made.call("write", _REPORT, RESULT, EXEC_ERROR_SIZE)
        made.call("write", 2, made.data(said), len(said))
        made.call("exit_group", _NOT_FOUND if error == errno.ENOENT else _NOT_EXECUTABLE)


def _list(made: CallProgram, addresses: Sequence[int]) -> int:
    return made.data(struct.pack(f"<{len(addresses) + 1}Q", *addresses, 0))
