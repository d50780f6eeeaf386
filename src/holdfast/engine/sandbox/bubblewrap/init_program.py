"""
Builds the init program: PID 1 of a sandbox, which starts the command and reaps processes.

Bubblewrap has made the mounts and namespaces and dropped all capabilities by then. The init
program applies Landlock, loads the seccomp filter and starts the command, with its controlling
terminal if there is one. It then stays as PID 1: it reaps orphans and reports the exit status of
the command. It runs under the same rules as the command, which gains nothing by attacking it.

The sandbox has an owner, the server in most cases, and PID 1 exits when the owner has ended. The
kernel then kills all other processes inside, and bubblewrap exits. Bubblewrap's own option
`--die-with-parent` may kill it while PID 1 waits for its message, which then waits for ever.

A command without a sandbox but with rlimits needs some of these steps, too
(`process.limits.prologue`).

This module only assembles the program (`linux.assembler`). Bubblewrap copies it into the sandbox,
where the program removes its own file first.
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
from itertools import accumulate
from typing import Final, NamedTuple

from holdfast.engine.linux.assembler import (
    ANY,
    ENVIRONMENT,
    RESULT,
    At,
    CallProgram,
    Label,
    Template,
)
from holdfast.engine.process.limits.prologue import (
    EXEC_ERROR_SIZE,
    NOT_EXECUTABLE,
    REPORT,
    say_built,
    set_limits,
    wait_for_go,
)
from holdfast.engine.sandbox.bubblewrap.landlock import WRITE_FILE, Ruleset

__all__ = [
    "END_SIZE",
    "INIT_PATH",
    "READY",
    "CallersSession",
    "ended",
    "make_init_program",
]

INIT_PATH: Final = "/dev/.holdfast"
"""Path of the program in the sandbox, in a tmpfs that is private to each sandbox."""

READY: Final = b"r"
"""
Message right before the exec, with the seccomp listener as SCM_RIGHTS if there is one.

If a step failed, the message has 8 bytes instead: the negative errno in the first 4.
"""

END_SIZE: Final = 28
"""Size of the message after the end of the command: the first bytes of its `siginfo_t`."""

# si_signo, si_errno, si_code, then si_pid, si_uid and si_status.
_END: Final = struct.Struct("=iii4xiii")

# Exit status of a shell for a program that is missing.
_NOT_FOUND: Final = 127

# Arguments of system calls, by their names in the kernel: the last descriptor of `close_range`,
# AT_FDCWD, PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, LANDLOCK_RULE_PATH_BENEATH,
# SECCOMP_SET_MODE_FILTER and SECCOMP_FILTER_FLAG_NEW_LISTENER.
_HIGHEST: Final = 0xFFFFFFFF
_HERE: Final = -100 & 0xFFFFFFFFFFFFFFFF
_PARENT_DEATH_SIGNAL: Final = 1
_DUMPABLE: Final = 4
_NO_NEW_PRIVILEGES: Final = 38
_PATH_BENEATH: Final = 1
_LOAD_FILTER: Final = 1
_WITH_LISTENER: Final = 1 << 3

# Errors of `execve` with a separate message; each takes room in the program.
_TOLD_ERRORS: Final = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.E2BIG)

# Descriptor of the owner: the lowest after the report socket.
_OWNER: Final = REPORT + 1

# Signals that the server may ignore (nohup, a background job), and a command would inherit that.
_RESET_SIGNALS: Final = (signal.SIGHUP, signal.SIGQUIT)

# Exit status of PID 1 if a step fails; the message says which error it was.
_SETUP_FAILED: Final = 1

# Nanoseconds between two attempts to send a descriptor.
_PAUSE: Final = 1_000_000

# P_ALL and P_PID of `waitid`, and the flags to look without waiting and without reaping.
_ALL: Final = 0
_ONE: Final = 1
_LOOK: Final = os.WEXITED | os.WNOHANG | os.WNOWAIT
_POLL_IN: Final = 1
# All descriptors of `signalfd4`: a new one. Size of a `signalfd_siginfo`.
_NEW: Final = 0xFFFFFFFF
_SIGNAL: Final = 128
# Size of the kernel's `struct sigaction`; all zeros is SIG_DFL.
_SIGACTION: Final = 32
# Size of `siginfo_t`, and the offsets of si_pid and si_status.
_SIGINFO: Final = 128
_PID_AT: Final = 16
_STATUS_AT: Final = 24


class CallersSession(NamedTuple):
    """Session of a caller whose process group and terminal the command shares."""

    signal_mask: int
    """Signals that were blocked in the caller; the sandbox is built with all blocked."""
    terminal: int | None = None
    """Standard descriptor of the controlling terminal, or None."""
    empty_streams: tuple[int, ...] = ()
    """Standard descriptors that are `/dev/null`, see `make_init_program`."""


def ended(message: bytes) -> tuple[int, int]:
    """Return si_code and si_status of the message about the end (`END_SIZE` bytes)."""
    _, _, code, _, _, status = _END.unpack(message)
    return code, status


def make_init_program(
    machine: str,
    *,
    program: str,
    argv: Sequence[str],
    report: int,
    owner: int,
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
    Return the init program of a sandbox, an executable file.

    Args:
        machine: Architecture, as `uname -m` prints it.
        program: Path to execute; an empty one fails with ENOENT.
        argv: Arguments of the command, its own name first.
        report: Descriptor of a connected SOCK_SEQPACKET socket for the messages; not 3.
        owner: Pidfd of the process that the sandbox ends with; neither 3 nor 4.
        filter_program: Seccomp filter.
        listen: True if the filter sends notifications, and so has a listener descriptor.
        landlock: Landlock ruleset, or None.
        terminal: True to make standard input the controlling terminal.
        limits: Rlimits of the command: resource, soft limit, hard limit.
        wait: True to wait for `GO` after `BUILT`, while the server checks the mounts.
        caller: Session whose signal mask and terminal the command takes over.
        empty_streams: Standard descriptors to reopen as the sandbox's `/dev/null`, since the
            host's node would let a command of root change its metadata.

    Raises:
        KeyError: The architecture is not supported.
    """
    template = _template(
        *(machine, report, owner, filter_program, listen, landlock, terminal, tuple(limits), wait),
        caller,
        tuple(empty_streams),
    )
    return _fill_in(template, program, argv)


@lru_cache(maxsize=128)
def _template(
    machine: str,
    report: int,
    owner: int,
    filter_program: bytes,
    listen: bool,
    landlock: Ruleset | None,
    terminal: bool,
    limits: tuple[tuple[int, int, int], ...],
    wait: bool,
    caller: CallersSession | None,
    empty_streams: tuple[int, ...],
) -> Template:
    """Return the program for each command of a sandbox, which is filled in for one of them."""
    # `dup3` refuses to move a descriptor to itself, and closes what has the number.
    assert report != REPORT
    assert owner not in (REPORT, _OWNER)
    made = CallProgram(machine)
    failed, command = Label(), Label()
    _close_descriptors(made, report, owner, empty_streams, failed)
    # If bubblewrap is killed, so is this process.
    made.call("prctl", _PARENT_DEATH_SIGNAL, signal.SIGKILL, failed=failed)
    # PR_SET_DUMPABLE 0: no process inside can trace PID 1 or open its files in `/proc`.
    made.call("prctl", _DUMPABLE, 0, failed=failed)
    if wait:
        say_built(made, failed)
    # Landlock and seccomp require it of a process without capabilities.
    made.call("prctl", _NO_NEW_PRIVILEGES, 1, failed=failed)
    if landlock is not None:
        tty = 0 if terminal else None
        if caller is not None:
            tty = caller.terminal
        _apply_landlock(made, landlock, tty, failed)
    # Laid out before the filter is loaded, whose result is stored in it.
    message, listener = _ready_message(made) if listen else (0, None)
    _load_filter(made, filter_program, listener, failed)
    if wait:
        # As late as possible: the server checks the mounts during the steps above.
        made.call("ppoll", made.data(_pollfds(_OWNER, REPORT)), 2, 0, 0)
    _exit_without_owner(made)
    if wait:
        wait_for_go(made, failed)
    waited = _watch_exits(made, failed)
    child = At(made.data(bytes(8)))
    # The command is a child, not PID 1 itself: PID 1 ignores signals without a handler, and
    # would have to reap orphans.
    made.call("clone", signal.SIGCHLD, result=child.address, failed=failed)
    made.go_if_zero(child, command)
    _stay(made, child, waited, listener, failed)
    made.bind(failed)
    made.call("write", REPORT, RESULT, 8)
    made.call("exit_group", _SETUP_FAILED)
    made.bind(command)
    _restore_session(made, caller, terminal)
    if listen:
        _hand_over(made, message, failed)
    else:
        made.call("write", REPORT, made.data(READY), len(READY), failed=failed)
    _execute(made, limits, failed)
    return made.template()


def _close_descriptors(
    made: CallProgram, report: int, owner: int, empty_streams: Sequence[int], failed: Label
) -> None:
    """Remove the program's own file; keep only the report, the owner and the streams."""
    made.call("unlinkat", _HERE, made.text(INIT_PATH), 0, failed=failed)
    made.call("dup3", report, REPORT, os.O_CLOEXEC, failed=failed)
    made.call("close", report)
    made.call("dup3", owner, _OWNER, os.O_CLOEXEC, failed=failed)
    made.call("close", owner)
    # An error is ignored: kernels before 5.9 lack the call.
    made.call("close_range", _OWNER + 1, _HIGHEST, 0)
    _empty(made, empty_streams, failed)


def _restore_session(made: CallProgram, caller: CallersSession | None, terminal: bool) -> None:
    """Set signals and controlling terminal of the command, as a shell would."""
    if caller is None:
        default = made.data(bytes(_SIGACTION))
        for number in _RESET_SIGNALS:
            made.call("rt_sigaction", number, default, 0, 8)
    # PID 1 has SIGCHLD blocked.
    mask = made.data(struct.pack("<Q", 0 if caller is None else caller.signal_mask))
    made.call("rt_sigprocmask", signal.SIG_SETMASK, mask, 0, 8)
    # In a session without PID 1: a signal that stops the command's group must not stop PID 1, which
    # would miss the end of its owner. A controlling terminal needs that, too.
    if caller is None or caller.terminal is None:
        made.call("setsid")
    if terminal:
        made.call("ioctl", 0, termios.TIOCSCTTY, 0)


def _empty(made: CallProgram, streams: Sequence[int], failed: Label) -> None:
    """Reopen standard descriptors as the `/dev/null` of the sandbox."""
    fd = At(made.data(bytes(8)))
    # Opened first and then moved: the lowest free number need not be that of the stream.
    for stream in streams:
        path = made.text("/dev/null")
        made.call("openat", _HERE, path, os.O_RDWR, result=fd.address, failed=failed)
        made.call("dup3", fd, stream, 0, failed=failed)
        made.call("close", fd)


def _apply_landlock(made: CallProgram, rules: Ruleset, terminal: int | None, failed: Label) -> None:
    """Restrict this process, and all that it starts, by a Landlock ruleset."""
    attributes, size = made.data(rules.attributes), len(rules.attributes)
    fd = At(made.data(bytes(8)))
    made.call("landlock_create_ruleset", attributes, size, 0, result=fd.address, failed=failed)
    for path, access in rules.rules:
        rule = made.data(struct.pack("<Qi", access, 0))
        beneath = At(rule + 8)
        # A path of the policy that is gone now needs no rule.
        missing = Label()
        made.call(
            *("openat", _HERE, made.text(path), os.O_PATH | os.O_CLOEXEC),
            result=beneath.address,
            failed=missing,
        )
        made.call("landlock_add_rule", fd, _PATH_BENEATH, rule, 0, failed=failed)
        made.call("close", beneath)
        made.bind(missing)
    if terminal is not None:
        # The terminal is on the host's devpts, which no rule above covers. Without a separate rule
        # it could not be opened again, for example by `/dev/stdin`.
        write = made.data(struct.pack("<Qi", WRITE_FILE, terminal))
        made.call("landlock_add_rule", fd, _PATH_BENEATH, write, 0, failed=failed)
    made.call("landlock_restrict_self", fd, 0, failed=failed)
    made.call("close", fd)


def _load_filter(made: CallProgram, program: bytes, listener: At | None, failed: Label) -> None:
    # `struct sock_fprog`: the number of instructions, and their address.
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


def _pollfds(*descriptors: int) -> bytes:
    """Return an array of `struct pollfd`, to wait until one of them is readable."""
    return b"".join([struct.pack("<iHH", fd, _POLL_IN, 0) for fd in descriptors])


def _watch_exits(made: CallProgram, failed: Label) -> int:
    """Block SIGCHLD and open a signalfd for it; return two `pollfd`: the owner, the signalfd."""
    waited = made.data(_pollfds(_OWNER, 0))
    exits = made.data(struct.pack("<Q", 1 << (signal.SIGCHLD - 1)))
    made.call("rt_sigprocmask", signal.SIG_BLOCK, exits, 0, 8, failed=failed)
    flags = os.O_NONBLOCK | os.O_CLOEXEC
    made.call("signalfd4", _NEW, exits, 8, flags, result=waited + 8, failed=failed)
    return waited


def _exit_without_owner(made: CallProgram) -> None:
    """Exit if the owner has ended."""
    ended, lives = At(made.data(bytes(8))), Label()
    now = made.data(bytes(16))
    made.call("ppoll", made.data(_pollfds(_OWNER)), 1, now, 0, result=ended.address)
    made.go_if_zero(ended, lives)
    made.call("exit_group", _SETUP_FAILED)
    made.bind(lives)


def _stay(made: CallProgram, child: At, waited: int, listener: At | None, failed: Label) -> None:
    """Stay as PID 1: reap every child until the command is among them, then report it."""
    # With a copy here, calls would wait for ever for an answer of a server that has died.
    if listener is not None:
        made.call("close", listener)
    # For a process to reap, for the last one that was reaped, and for unused results.
    waiting, gone, scrap = (made.data(bytes(_SIGINFO)) for _ in range(3))
    again, idle, done = Label(), Label(), Label()
    made.bind(again)
    made.call("waitid", _ALL, 0, waiting, _LOOK, failed=failed)
    made.go_if_zero(At(waiting + _PID_AT), idle)
    made.call("waitid", _ONE, At(waiting + _PID_AT), gone, os.WEXITED, failed=failed)
    # ECHILD if the command is the one that was just reaped.
    made.call("waitid", _ONE, child, scrap, _LOOK, failed=done)
    made.go_to(again)
    made.bind(idle)
    made.call("ppoll", waited, 2, 0, 0)
    _exit_without_owner(made)
    # Read before the check of all children: a later exit makes the descriptor readable again.
    made.call("read", At(waited + 8), made.data(bytes(_SIGNAL)), _SIGNAL)
    made.go_to(again)
    made.bind(done)
    made.call("write", REPORT, gone, END_SIZE)
    made.call("exit_group", At(gone + _STATUS_AT))


def _ready_message(made: CallProgram) -> tuple[int, At]:
    """Return the address of a `struct msghdr`, and that of the descriptor in its SCM_RIGHTS."""
    part = made.data(struct.pack("<QQ", made.data(READY), len(READY)))
    # `struct cmsghdr`: 16 bytes of header and 4 of data, padded to 8.
    head = struct.pack("<Qii", 20, socket.SOL_SOCKET, socket.SCM_RIGHTS)
    control = made.data(head + bytes(8))
    message = made.data(struct.pack("<QQQQQQQ", 0, 0, part, 1, control, len(head) + 8, 0))
    return message, At(control + len(head))


def _hand_over(made: CallProgram, message: int, failed: Label) -> None:
    """Send `READY` with the listener; repeat as long as too many descriptors are in flight."""
    send, crowded, sent = Label(), Label(), Label()
    made.bind(send)
    made.call(
        *("sendmsg", REPORT, message, socket.MSG_NOSIGNAL),
        failed={errno.ETOOMANYREFS: crowded, ANY: failed},
    )
    made.go_to(sent)
    made.bind(crowded)
    made.call("nanosleep", made.data(struct.pack("<QQ", 0, _PAUSE)))
    made.go_to(send)
    made.bind(sent)


def _execute(made: CallProgram, limits: Sequence[tuple[int, int, int]], failed: Label) -> None:
    """Execute the command; report an error, write it to stderr and exit as a shell does."""
    # Last: the limits would count for the steps before, too.
    set_limits(made, limits, failed)
    # One block of calls per error, since the program cannot format a text.
    reasons = {error: Label() for error in (*_TOLD_ERRORS, ANY)}
    program, argv = At(made.blank("program")), At(made.blank("argv"))
    made.call("execve", program, argv, ENVIRONMENT, failed=reasons)
    for error, label in reasons.items():
        made.bind(label)
        why = os.strerror(error) if error != ANY else "it cannot be executed"
        said = os.fsencode(f": {why}\n")
        rest = made.data(said)
        # Two `struct iovec`: the name of the program, and what is wrong with it.
        parts = made.blank("name")
        made.blank("name_size")
        made.data(struct.pack("<QQ", rest, len(said)))
        made.call("write", REPORT, RESULT, EXEC_ERROR_SIZE)
        made.call("writev", 2, parts, 2)
        made.call("exit_group", _NOT_FOUND if error == errno.ENOENT else NOT_EXECUTABLE)


def _fill_in(template: Template, program: str, argv: Sequence[str]) -> bytes:
    """Return the program of a template that executes a command."""
    name = os.fsencode(f"holdfast: {program or argv[0]}")
    texts = [name, *[text.encode("utf-8", "surrogateescape") for text in (program, *argv)]]
    # Each ends with a NUL. The list of pointers comes first, where it is aligned.
    begin = template.end
    sizes = [len(text) + 1 for text in texts]
    at = [*accumulate(sizes, initial=begin + 8 * (len(argv) + 1))]
    pointers = struct.pack(f"<{len(argv) + 1}Q", *at[2:-1], 0)
    words = {"program": at[1], "argv": begin, "name": at[0], "name_size": len(name)}
    return template.image(words, pointers + b"\0".join(texts) + b"\0")
