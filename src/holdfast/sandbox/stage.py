"""
What is done inside a sandbox right before the command: the last stage of a start.

The launcher has made the mounts and the namespaces and has given up all privileges. What
is left is to apply Landlock, to take the terminal, to load the filter of system calls, to
say that all this is done, and to become the command. Pure: this makes the program that
does it (`sandbox.calls`); the launcher copies it into the sandbox, where it removes its own
file first of all.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import termios
from collections.abc import Sequence
from typing import Final

from holdfast.sandbox.calls import ANY, RESULT, CallProgram, Label
from holdfast.sandbox.landlock import Ruleset

__all__ = ["BUILT", "GO", "NOT_EXECUTABLE", "NOT_FOUND", "READY", "STAGE_PATH", "make_stage"]

STAGE_PATH: Final = "/dev/.holdfast"
"""Where the launcher puts it: in a directory that every sandbox has for itself."""

BUILT: Final = b"b"
"""What it says first of all, if it is to wait: all is mounted. `GO` lets it go on."""

GO: Final = b"g"

READY: Final = b"r"
"""
What it says when all is applied, with the descriptor of the filter if there is one.

After that there is nothing more if it became the command, and otherwise the error as a
negative number of 4 bytes. If something could not be applied, it says 8 bytes instead, the
first 4 of which are the error.
"""

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
"""How it exits if there is no such program or it cannot be executed, as a shell does."""

_REPORT: Final = 3
_RULESET: Final = 4
_BENEATH: Final = 5
"""
Numbers of descriptors. The first is kept while everything else is closed, and what is
opened after that gets the lowest number that is free.
"""

_HIGHEST: Final = 0xFFFFFFFF
_HERE: Final = -100 & 0xFFFFFFFFFFFFFFFF
_NO_NEW_PRIVILEGES: Final = 38
_PATH_BENEATH: Final = 1
_LOAD_FILTER: Final = 1
_WITH_LISTENER: Final = 1 << 3

_SHELL: Final = "/bin/sh"
"""Runs what is executable but of no format that the kernel knows, as `execvp` has it."""

_SETUP_FAILED: Final = 1


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
    wait: bool = False,
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
        wait: Whether somebody looks at what is mounted before it goes on.

    Raises:
        KeyError: Nothing is known of that processor.
    """
    assert report != _REPORT  # it is moved there
    made = CallProgram(machine)
    failed = Label()
    made.call("unlinkat", _HERE, made.text(STAGE_PATH), 0, failed=failed)
    made.call("dup3", report, _REPORT, os.O_CLOEXEC, failed=failed)
    made.call("close", report)
    made.call("close_range", _REPORT + 1, _HIGHEST, 0)
    if terminal:
        made.call("setsid")
        made.call("ioctl", 0, termios.TIOCSCTTY, 0)
    if wait:
        made.call("write", _REPORT, made.data(BUILT), len(BUILT), failed=failed)
        # If there is nobody any more, what is read is 0 bytes, which the next call refuses.
        made.call("read", _REPORT, made.data(GO), len(GO), into_next=1, failed=failed)
    made.call("prctl", _NO_NEW_PRIVILEGES, 0 if wait else 1, 0, 0, 0, failed=failed)
    if landlock is not None:
        _apply_landlock(made, landlock, terminal, failed)
    _load_filter(made, filter_program, listen, failed)
    _execute(made, program, argv)
    made.place(failed)
    made.call("write", _REPORT, RESULT, 8)
    made.call("exit_group", _SETUP_FAILED)
    return made.image()


def _apply_landlock(made: CallProgram, rules: Ruleset, terminal: bool, failed: Label) -> None:
    attributes = made.data(rules.attributes)
    made.call("landlock_create_ruleset", attributes, len(rules.attributes), 0, failed=failed)
    for path, access in rules.rules:
        rule = made.data(struct.pack("<Qi", access, _BENEATH))
        missing = Label()
        made.call("openat", _HERE, made.text(path), os.O_PATH | os.O_CLOEXEC, 0, failed=missing)
        made.call("landlock_add_rule", _RULESET, _PATH_BENEATH, rule, 0, failed=failed)
        made.call("close", _BENEATH)
        made.place(missing)
    if terminal:
        # It belongs to the host's `/dev`: it could not be opened again by its name.
        write = made.data(struct.pack("<Qi", 1 << 1, 0))
        made.call("landlock_add_rule", _RULESET, _PATH_BENEATH, write, 0, failed=failed)
    made.call("landlock_restrict_self", _RULESET, 0, failed=failed)
    made.call("close", _RULESET)


def _load_filter(made: CallProgram, program: bytes, listen: bool, failed: Label) -> None:
    size = len(program) // 8
    whole = made.data(struct.pack("<HxxxxxxQ", size, made.data(program)))
    ready = made.data(READY)
    if not listen:
        made.call("seccomp", _LOAD_FILTER, 0, whole, failed=failed)
        made.call("write", _REPORT, ready, len(READY), failed=failed)
        return
    head = struct.pack("<Qii", 20, socket.SOL_SOCKET, socket.SCM_RIGHTS)
    control = made.data(head + bytes(8))
    part = made.data(struct.pack("<QQ", ready, len(READY)))
    message = made.data(struct.pack("<QQQQQQQ", 0, 0, part, 1, control, len(head) + 8, 0))
    listener = control + len(head)
    made.call("seccomp", _LOAD_FILTER, _WITH_LISTENER, whole, result=listener, failed=failed)
    made.call("sendmsg", _REPORT, message, socket.MSG_NOSIGNAL, failed=failed)


def _execute(made: CallProgram, program: str, argv: Sequence[str]) -> None:
    words = [made.text(word) for word in argv]
    path = made.text(program)
    foreign = Label()
    reasons = {error: Label() for error in (errno.ENOENT, errno.EACCES, errno.E2BIG, ANY)}
    made.call("execve", path, _list(made, words), failed={errno.ENOEXEC: foreign, **reasons})
    made.place(foreign)
    shell = made.text(_SHELL)
    made.call("execve", shell, _list(made, [shell, path, *words[1:]]), failed=reasons)
    for error, label in reasons.items():
        made.place(label)
        why = os.strerror(error) if error != ANY else "it cannot be executed"
        said = os.fsencode(f"holdfast: {program or argv[0]}: {why}\n")
        made.call("write", _REPORT, RESULT, 4)
        made.call("write", 2, made.data(said), len(said))
        made.call("exit_group", NOT_FOUND if error == errno.ENOENT else NOT_EXECUTABLE)


def _list(made: CallProgram, addresses: Sequence[int]) -> int:
    return made.data(struct.pack(f"<{len(addresses) + 1}Q", *addresses, 0))
