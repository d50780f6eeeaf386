"""
Kernel-enforced limits: rlimits per process, cgroup limits per command.

They have to be set before the command runs, but no Python may run between fork and exec. A limit
set on this process, however briefly, would hit its own threads. So a child with limits first
executes a small program that sets them (`limits.prologue`). A sandbox has such a
program anyway; this module has the one for commands without a sandbox.

Each such child gets a mark too (`limits.rlimit_marks`): limits hold for all descendants of a
command, also after its exit.

Memory and processes are limited for a command as a whole, by a cgroup that the child is moved
into while it waits. Without a cgroup, memory cannot be limited, and processes only by
RLIMIT_NPROC, which counts all processes of the user.
"""

import os
import platform
import resource
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import msgspec

from holdfast.base.errors import InvalidParams, SpawnFailed
from holdfast.base.system_text import system_text
from holdfast.engine.linux.memory_files import program_file
from holdfast.engine.linux.syscall_numbers import MACHINES
from holdfast.engine.process.child import Child
from holdfast.engine.process.executable_lookup import Launch
from holdfast.engine.process.limits.cgroup import CommandCgroup, shared_cgroups
from holdfast.engine.process.limits.prologue import GO, make_prologue
from holdfast.engine.process.limits.rlimit_marks import mark_limit, new_mark
from holdfast.engine.process.spawn import needs_descriptor_limit, refuse_nul
from holdfast.wire.protocol.limits import LIMITS, Limit, LimitKind
from holdfast.wire.protocol.process import ProcessLimits

__all__ = [
    "KernelLimit",
    "PreparedLimits",
    "check_limits",
    "has_kernel_limits",
    "may_need_cgroup",
    "prepare_limits",
    "start_limited",
]

KernelLimit: TypeAlias = tuple[int, int, int]
"""An rlimit: the resource, its soft limit and its hard limit."""

# Descriptors of the child in addition to its standard streams: the prologue program and the socket.
_IMAGE_FD, _REPORT_FD = 3, 4

_ITSELF = f"/proc/self/fd/{_IMAGE_FD}"

# Seconds for the child to execute its command; it usually needs less than a millisecond.
_START_LIMIT = 10.0

# The child reports a failed system call as its negative errno.
_ERROR = struct.Struct("=i")

# Rows of the table of limits by what enforces them, for the checks that each start makes.
_RLIMITS: Sequence[tuple[Limit, int]] = [
    (limit, getattr(resource, limit.rlimit)) for limit in LIMITS if limit.rlimit is not None
]
_BY_CGROUP = [limit for limit in LIMITS if limit.controller is not None]
_BY_KERNEL = [limit for limit in LIMITS if limit.is_kernel_enforced]

# Their values as tuples, compared with those of no limits: one call, for every start.
_cgroup_values = attrgetter(*(limit.field for limit in _BY_CGROUP))
_NO_CGROUP_VALUES = (None,) * len(_BY_CGROUP)
_kernel_values = attrgetter(*(limit.field for limit in _BY_KERNEL))
_NO_KERNEL_VALUES = (None,) * len(_BY_KERNEL)


class PreparedLimits(NamedTuple):
    """Limits of one command in the kernel's terms."""

    each: list[KernelLimit]
    """The rlimits of each process."""
    cgroup: CommandCgroup | None
    """The cgroup for all processes together, still empty; None if none is needed."""


def has_kernel_limits(limits: ProcessLimits) -> bool:
    """Return True if the kernel has to enforce one of the limits."""
    return _kernel_values(limits) != _NO_KERNEL_VALUES


def may_need_cgroup(limits: ProcessLimits) -> bool:
    """Return True if a cgroup would enforce one of the limits: `check_limits` may block then."""
    return _cgroup_values(limits) != _NO_CGROUP_VALUES


def check_limits(limits: ProcessLimits) -> None:
    """
    Refuse limits that cannot be enforced here. May ask systemd, so call it in a thread.

    Raises:
        InvalidParams: The message has the reason and the remedy.
    """
    if has_kernel_limits(limits) and platform.machine() not in MACHINES:
        raise InvalidParams(f"limits of the kernel cannot be set on {platform.machine()}")
    if not may_need_cgroup(limits):
        return
    location = shared_cgroups().location()
    for limit in _BY_CGROUP:
        if not limit.needs_cgroup or getattr(limits, limit.field) is None:
            continue
        # Rows that need a cgroup have a controller.
        problem = location.why_not(limit.controller or "")
        if problem is not None:
            raise InvalidParams(
                f"a limit on the {limit.about} ({limit.wire_name}, {limit.option})"
                f" needs a separate cgroup for a command: {problem}"
            )


def prepare_limits(
    limits: ProcessLimits, *, extra_processes: int = 0, most_open_files: int | None = None
) -> PreparedLimits:
    """
    Return the rlimits of a command, and make its cgroup if one is needed and possible.

    Args:
        limits: The limits of the request.
        extra_processes: Number of our own processes that count with those of the command.
        most_open_files: Hard limit of open files; by default the same as the soft limit.

    Raises:
        OSError: The kernel refused.
    """
    cgroup = _make_cgroup(limits, extra_processes)
    counted = cgroup is not None and cgroup.counts_processes
    each: list[KernelLimit] = []
    for limit, kind in _RLIMITS:
        value = getattr(limits, limit.field)
        if value is None or (counted and limit.kind is LimitKind.PROCESSES):
            continue
        above = limit.above
        if limit.kind is LimitKind.PROCESSES:
            value += extra_processes
        elif limit.kind is LimitKind.OPEN_FILES:
            above = most_open_files or 0
        # Without privileges a hard limit can only be lowered.
        hard = resource.getrlimit(kind)[1]
        most = value + above
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        each.append((kind, min(value, most), most))
    return PreparedLimits(each, cgroup)


def _make_cgroup(limits: ProcessLimits, extra_processes: int) -> CommandCgroup | None:
    if not may_need_cgroup(limits):
        return None
    cgroups = shared_cgroups()
    counted = limits.processes is not None and "pids" in cgroups.location().controllers
    if limits.memory_bytes is None and not counted:
        return None
    cgroup = cgroups.make()
    # Both limits before the child is admitted: a process inside may exceed them at once.
    try:
        if limits.memory_bytes is not None:
            cgroup.limit_memory(limits.memory_bytes)
        if limits.processes is not None and counted:
            cgroup.limit_processes(limits.processes, extra_processes)
    except BaseException:
        cgroup.release()
        raise
    return cgroup


def start_limited(
    start: Callable[[Launch, Sequence[int]], Child], launch: Launch, limits: ProcessLimits
) -> Child:
    """
    Start a command without a sandbox, with its limits set. Blocks, so call it in a thread.

    Args:
        start: Starts a child, with descriptors that it gets as 3 and so on.
        launch: The command.
        limits: The limits of the request.

    Raises:
        SpawnFailed: The command could not be executed; nothing is left of it.
        OSError: The kernel refused a step before that.
    """
    mark = new_mark() if platform.machine() in MACHINES else None
    limits, most_open_files = _with_descriptor_limit(limits)
    if mark is None and not has_kernel_limits(limits):
        return start(launch, ())
    # Before the texts become part of a machine program, in which a NUL would end them early.
    refuse_nul(launch.program, launch.argv, launch.cwd)
    with ExitStack() as stack, ExitStack() as undo:
        prepared = prepare_limits(limits, most_open_files=most_open_files)
        if prepared.cgroup is not None:
            undo.callback(prepared.cgroup.release)
        # SEQPACKET keeps messages apart, and reports end of file when the exec closes it.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.callback(ours.close)
        stack.callback(theirs.close)
        ours.settimeout(_START_LIMIT)
        prologue = make_prologue(
            platform.machine(),
            program=launch.program,
            argv=launch.argv,
            report=_REPORT_FD,
            limits=prepared.each if mark is None else [*prepared.each, mark_limit(mark)],
            wait=prepared.cgroup is not None,
        )
        image = program_file(prologue)
        stack.callback(os.close, image)
        try:
            child = start(Launch(_ITSELF, ["holdfast"], launch.cwd), (image, theirs.fileno()))
        except SpawnFailed as error:
            # Name the requested program, not the prologue.
            error.program = launch.program
            raise
        child.cgroup = prepared.cgroup
        child.mark = mark
        undo.callback(child.discard)
        # Our copy of the child's end would keep `recv` from seeing the end.
        theirs.close()
        # The child waits until it is in its cgroup: its own children must be in it, too.
        if prepared.cgroup is not None:
            _receive(ours, launch.program)
            prepared.cgroup.admit(child.pid)
            ours.send(GO)
        if _receive(ours, launch.program):
            raise SpawnFailed("the limits of the command could not be set", program=launch.program)
        undo.pop_all()
    return child


def _with_descriptor_limit(limits: ProcessLimits) -> tuple[ProcessLimits, int | None]:
    """Return the limits with the soft limit of open files for a child to set, and the hard one."""
    # A thread cannot lower RLIMIT_NOFILE for a child (see `spawn`), so the child does it itself.
    descriptors = needs_descriptor_limit() if platform.machine() in MACHINES else None
    if descriptors is None or limits.open_files is not None:
        return limits, None
    return msgspec.structs.replace(limits, open_files=descriptors[0]), descriptors[1]


def _receive(report: socket.socket, program: str) -> bytes:
    """
    Return the child's next message; empty once it has executed its command.

    Raises:
        SpawnFailed: The child reports an error, or nothing in time.
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
