"""
Builds the program that sets the limits of a command, and then executes the command.

No Python may run between fork and exec, so the child executes this list of system calls
(`linux.assembler`) instead. The init program of a sandbox has the same steps among others, and
takes them from here.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Final

from holdfast.engine.linux.assembler import ENVIRONMENT, RESULT, At, CallProgram, Label

__all__ = [
    "BUILT",
    "EXEC_ERROR_SIZE",
    "GO",
    "NOT_EXECUTABLE",
    "REPORT",
    "make_prologue",
    "pointer_list",
    "say_built",
    "set_limits",
    "wait_for_go",
]

BUILT: Final = b"b"
"""First message of a program that has to wait: all is mounted. The answer is `GO`."""

GO: Final = b"g"
"""Answer of the server to `BUILT`: start the command."""

EXEC_ERROR_SIZE: Final = 4
"""Size of the message after a failed exec: the negative errno."""

NOT_EXECUTABLE: Final = 126
"""Exit status of a shell for a program that cannot be executed."""

REPORT: Final = 3
"""
Descriptor of the report socket: the lowest after the standard ones.

So one `close_range` closes all others.
"""


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
    Return the program for a command with rlimits but without a sandbox.

    The program sends `BUILT` and waits for `GO`, if `wait`. It then sets the limits and executes
    the command. It only sends errors, and leaves no descriptors but the standard ones.
    """
    made = CallProgram(machine)
    failed = Label()
    made.call("dup3", report, REPORT, os.O_CLOEXEC, failed=failed)
    made.call("close", report)
    # The server moves the process into its cgroup before it continues.
    if wait:
        say_built(made, failed)
        wait_for_go(made, failed)
    set_limits(made, limits, failed)
    words = [made.text(word) for word in argv]
    made.call("execve", made.text(program), pointer_list(made, words), ENVIRONMENT, failed=failed)
    made.bind(failed)
    made.call("write", REPORT, RESULT, EXEC_ERROR_SIZE)
    made.call("exit_group", NOT_EXECUTABLE)
    return made.image()


def say_built(made: CallProgram, failed: Label) -> None:
    """Add the message `BUILT`."""
    made.call("write", REPORT, made.data(BUILT), len(BUILT), failed=failed)


def wait_for_go(made: CallProgram, failed: Label) -> None:
    """Add a wait for `GO`; end of file means that the server is gone."""
    got = At(made.data(bytes(8)))
    made.call("read", REPORT, made.data(GO), len(GO), result=got.address, failed=failed)
    made.go_if_zero(got, failed)


def set_limits(made: CallProgram, limits: Sequence[tuple[int, int, int]], failed: Label) -> None:
    """Add the calls that set rlimits: resource, soft limit, hard limit."""
    for resource, soft, hard in limits:
        limit = made.data(struct.pack("<QQ", soft, hard))
        made.call("prlimit64", 0, resource, limit, failed=failed)


def pointer_list(made: CallProgram, addresses: Sequence[int]) -> int:
    """Add a NULL-terminated array of pointers; return its address."""
    return made.data(struct.pack(f"<{len(addresses) + 1}Q", *addresses, 0))
