"""
What the kernel keeps a command to: limits of each process, and of all of them together.

They have to be set before the command runs, and between a fork and an exec no Python
can: a limit that is set on this process, however short, would hit its threads. So a child
with limits begins as a small program that sets them (`sandbox.bubblewrap.init.program`). In a
sandbox there is such a program anyway; here is the one for commands without.

Each such child is marked, too (`limits.rlimit_marks`): limits hold for all that a command
started, also after its own end.

Memory and processes are limited for a command as a whole, by a cgroup that the child is
put into while it waits. Without one, the first cannot be, and the second is by what the
kernel counts for the user.
"""

import os
import platform
import resource
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple, TypeAlias

import msgspec

from holdfast.errors import InvalidParams, SpawnFailed
from holdfast.process.child import Child
from holdfast.process.executable_lookup import Launch
from holdfast.process.limits.cgroup import CommandCgroup, shared_cgroups
from holdfast.process.limits.rlimit_marks import mark_limit, new_mark
from holdfast.process.spawn import needs_descriptor_limit, refuse_nul
from holdfast.protocol.process import ProcessLimits
from holdfast.sandbox.bubblewrap.init.program import GO, make_prologue
from holdfast.sandbox.bubblewrap.init.syscall_numbers import MACHINES
from holdfast.sandbox.bubblewrap.memory_files import program_file
from holdfast.system_text import system_text

__all__ = ["Bounds", "KernelLimit", "check_limits", "has_bounds", "make_bounds", "start_bounded"]

KernelLimit: TypeAlias = tuple[int, int, int]
"""A resource, the limit, and what the process itself could raise it to."""

# What the child finds beside its standard streams.
_IMAGE_FD, _REPORT_FD = 3, 4

_ITSELF = f"/proc/self/fd/{_IMAGE_FD}"

# Seconds for the child to get to its command; it needs some ten-thousandths.
_START_LIMIT = 10.0

_ERROR = struct.Struct("=i")


class Bounds(NamedTuple):
    """What has been made of the limits of one command."""

    each: list[KernelLimit]
    """Of each of its processes."""
    cgroup: CommandCgroup | None
    """Of all of them; nothing is in it yet."""


def has_bounds(limits: ProcessLimits) -> bool:
    """Whether any of them is the kernel's to keep."""
    return any(
        value is not None
        for value in (
            limits.memory_bytes,
            limits.address_space_bytes,
            limits.cpu_seconds,
            limits.processes,
            limits.open_files,
        )
    )


def check_limits(limits: ProcessLimits) -> None:
    """
    Refuse what cannot be kept here. The first time it may ask systemd, so not in the loop.

    Raises:
        InvalidParams: With the reason and what to change.
    """
    if has_bounds(limits) and platform.machine() not in MACHINES:
        raise InvalidParams(f"limits of the kernel cannot be set on {platform.machine()}")
    if limits.memory_bytes is None and limits.processes is None:
        return
    place = shared_cgroups().place()
    if limits.memory_bytes is not None:
        problem = place.why_not("memory")
        if problem is not None:
            raise InvalidParams(
                "a limit on the memory of all processes together (memoryBytes,"
                f" --limit-total-memory) needs a cgroup of its own for a command: {problem}"
            )


def make_bounds(
    limits: ProcessLimits, *, extra_processes: int = 0, most_open_files: int | None = None
) -> Bounds:
    """
    Make what the kernel has to be told, and a cgroup if one is needed and can be had.

    Args:
        limits: What may be used.
        extra_processes: How many of ours are counted with those of the command.
        most_open_files: What the command may raise its limit on open files to; what it is
            unless given.

    Raises:
        OSError: The kernel refused.
    """
    cgroup = _make_cgroup(limits, extra_processes)
    counted = cgroup is not None and cgroup.counts_processes
    wanted = [
        (resource.RLIMIT_AS, limits.address_space_bytes, 0, 0),
        # At the first number the kernel sends a signal that says why, at the second it kills.
        (resource.RLIMIT_CPU, limits.cpu_seconds, 0, 1),
        (resource.RLIMIT_NPROC, None if counted else limits.processes, extra_processes, 0),
        (resource.RLIMIT_NOFILE, limits.open_files, 0, (most_open_files or 0)),
    ]
    each: list[KernelLimit] = []
    for kind, value, more, above in wanted:
        if value is None:
            continue
        hard = resource.getrlimit(kind)[1]
        most = value + more + above
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        each.append((kind, min(value + more, most), most))
    return Bounds(each, cgroup)


def _make_cgroup(limits: ProcessLimits, extra_processes: int) -> CommandCgroup | None:
    if limits.memory_bytes is None and limits.processes is None:
        return None
    cgroups = shared_cgroups()
    counted = limits.processes is not None and "pids" in cgroups.place().controllers
    if limits.memory_bytes is None and not counted:
        return None
    cgroup = cgroups.make()
    try:
        if limits.memory_bytes is not None:
            cgroup.limit_memory(limits.memory_bytes)
        if limits.processes is not None and counted:
            cgroup.limit_processes(limits.processes, extra_processes)
    except BaseException:
        cgroup.release()
        raise
    return cgroup


def start_bounded(
    start: Callable[[Launch, Sequence[int]], Child], launch: Launch, limits: ProcessLimits
) -> Child:
    """
    Start a command without a sandbox, with its limits set. Waits for it, so not in the loop.

    Args:
        start: Starts a child, with descriptors that it finds as 3 and so on.
        launch: The command.
        limits: What it may use.

    Raises:
        SpawnFailed: It could not be executed; nothing is left of it.
        OSError: The kernel refused something on the way.
    """
    is_known = platform.machine() in MACHINES
    mark = new_mark() if is_known else None
    descriptors = needs_descriptor_limit() if is_known else None
    if descriptors is not None and limits.open_files is None:
        limits = msgspec.structs.replace(limits, open_files=descriptors[0])
    else:
        descriptors = None
    if mark is None and not has_bounds(limits):
        return start(launch, ())
    # Before it is part of a program.
    refuse_nul(launch.program, launch.argv, launch.cwd)
    with ExitStack() as stack, ExitStack() as undo:
        bounds = make_bounds(limits, most_open_files=descriptors and descriptors[1])
        if bounds.cgroup is not None:
            undo.callback(bounds.cgroup.release)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.callback(ours.close)
        stack.callback(theirs.close)
        ours.settimeout(_START_LIMIT)
        prologue = make_prologue(
            platform.machine(),
            program=launch.program,
            argv=launch.argv,
            report=_REPORT_FD,
            limits=bounds.each if mark is None else [*bounds.each, mark_limit(mark)],
            wait=bounds.cgroup is not None,
        )
        image = program_file(prologue)
        stack.callback(os.close, image)
        try:
            child = start(Launch(_ITSELF, ["holdfast"], launch.cwd), (image, theirs.fileno()))
        except SpawnFailed as error:
            # The one that was asked for, not the way to it.
            error.program = launch.program
            raise
        child.cgroup = bounds.cgroup
        child.mark = mark
        undo.callback(child.discard)
        theirs.close()
        if bounds.cgroup is not None:
            _hear(ours, launch.program)
            bounds.cgroup.admit(child.pid)
            ours.send(GO)
        if _hear(ours, launch.program):
            raise SpawnFailed("the limits of the command could not be set", program=launch.program)
        undo.pop_all()
    return child


def _hear(report: socket.socket, program: str) -> bytes:
    """
    What the child says next; nothing when it has become its command.

    Raises:
        SpawnFailed: It could not.
    """
    try:
        said = report.recv(64)
    except TimeoutError:
        raise SpawnFailed(
            f"it did not start within {_START_LIMIT:.0f} seconds", program=program
        ) from None
    if len(said) >= _ERROR.size:
        number = -_ERROR.unpack_from(said)[0]
        raise SpawnFailed(system_text(number), errno=number, program=program)
    return said
