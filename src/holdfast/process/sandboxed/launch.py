"""
Builds a sandbox around a command, and waits until it is built.

The launcher makes namespaces and mounts. It then executes a small program that does the
rest from inside (`sandbox.bubblewrap.init.program`) and tells us how that went: so a sandbox
that cannot be built is an error of the start, not of the command. Where the mounts are to be
looked at first, or it has to be put into a cgroup, that program waits for our word.
"""

import asyncio
import errno
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial

import msgspec

from holdfast.errors import SpawnFailed
from holdfast.process.executable_lookup import Launch
from holdfast.process.limits.cgroup import CommandCgroup
from holdfast.process.limits.rlimits import Bounds, make_bounds
from holdfast.process.sandboxed.child import EnclosedChild
from holdfast.process.sandboxed.init_channel import StageReport
from holdfast.process.sandboxed.network_denials import NetworkAttempts
from holdfast.process.start_threads import call_in_daemon
from holdfast.protocol.process import ProcessLimits
from holdfast.sandbox.bubblewrap.init.program import STAGE_PATH, make_stage
from holdfast.sandbox.bubblewrap.landlock import Ruleset
from holdfast.sandbox.bubblewrap.memory_files import data_file
from holdfast.sandbox.bubblewrap.mount_check import (
    MountTable,
    Planned,
    first_mismatch,
    led_elsewhere,
    read_table,
)
from holdfast.sandbox.bubblewrap.strays import remove_strays

__all__ = [
    "EMPTY_FD",
    "Enclosure",
    "complete",
    "first_process",
    "readable",
    "split_environment",
    "start_enclosed",
]

_BUILD_LIMIT = 30.0
"""Seconds a sandbox may take to be built; a file system that does not answer can hang it."""

_END_LIMIT = 5.0
"""Seconds to wait for the end of a launcher that has failed."""

_MAX_COMPLAINT = 4096
"""Bytes of what a launcher says that become the text of an error."""

_GONE = (errno.ENOENT, errno.ESRCH, errno.EINVAL)
"""What the kernel says of the mounts of a process that has ended."""

_MACHINE = platform.machine()

_FIRST_FD = 3
_ARGS_FD, _STAGE_FD, _REPORT_FD = range(_FIRST_FD, _FIRST_FD + 3)

EMPTY_FD = _REPORT_FD + 1
"""The first of the descriptors that are empty to read."""

_WITH_STAGE = ("--as-pid-1", "--perms", "0500", "--file", str(_STAGE_FD), STAGE_PATH)


class Enclosure(msgspec.Struct, frozen=True, kw_only=True):
    """How to build one sandbox."""

    launcher: str
    options: Sequence[str]
    """Of the launcher; what they say of descriptors begins at `EMPTY_FD`."""
    empty_fds: int = 0
    """How many descriptors they name that are empty to read."""
    filter: bytes
    """Of system calls."""
    listen: bool = False
    """Whether that tells us of attempts to reach the network."""
    landlock: Ruleset | None = None
    """What is refused beyond the mounts."""
    tells_end: bool = False
    """Whether it matters when the last process inside is gone; see `EnclosedChild.lingers`."""


class _Told(msgspec.Struct):
    """What a launcher tells of a sandbox that it is about to build."""

    pid: int = msgspec.field(name="child-pid")


async def start_enclosed(
    enclosure: Enclosure,
    launch: Launch,
    env: Mapping[str, str],
    *,
    terminal: tuple[int, int] | None = None,
    pipe_stdin: bool = False,
    pipe_stderr: bool = True,
    limits: ProcessLimits | None = None,
    to_verify: Sequence[Planned] = (),
) -> EnclosedChild:
    """
    Start a command in a sandbox and wait until that is built.

    Args:
        enclosure: The sandbox.
        launch: The command; its program and its folder are paths as they are inside.
        env: All of the command's environment.
        terminal: Rows and columns, if it is to have a terminal.
        pipe_stdin: Whether its input is a pipe.
        pipe_stderr: Whether its error output is one.
        limits: What it may use.
        to_verify: All mounts, if others may interfere with them: the command runs only
            once they are found to be as planned.

    Raises:
        SpawnFailed: It could not be built; nothing is left of it.
        OSError: No descriptor is left to start it with.
    """
    failed: list[EnclosedChild] = []
    try:
        return await _start_enclosed(
            *(enclosure, launch, env, terminal, pipe_stdin, pipe_stderr, limits, to_verify),
            failed.append,
        )
    except BaseException:
        for child in failed:
            await child.wait_reaped()
        raise


async def _start_enclosed(
    enclosure: Enclosure,
    launch: Launch,
    env: Mapping[str, str],
    terminal: tuple[int, int] | None,
    pipe_stdin: bool,
    pipe_stderr: bool,
    limits: ProcessLimits | None,
    to_verify: Sequence[Planned],
    begun: Callable[[EnclosedChild], None],
) -> EnclosedChild:
    with ExitStack() as theirs, ExitStack() as ours, ExitStack() as undo:
        # The first process inside is counted, too.
        bounds = _NO_BOUNDS if limits is None else make_bounds(limits, extra_processes=1)
        if bounds.cgroup is not None:
            undo.callback(bounds.cgroup.release)
        report = StageReport()
        undo.callback(report.close)
        theirs.callback(report.theirs.close)
        plain, moved = split_environment(env, launch.cwd)
        # Where the folder cannot be had inside, the launcher would take the user's home.
        options = [*enclosure.options, *_WITH_STAGE, *moved, "--chdir", launch.cwd]
        fds = [report.theirs.fileno(), *[_EMPTY] * enclosure.empty_fds]
        told = None
        if enclosure.tells_end:
            told, their_end = os.pipe()
            os.set_blocking(told, False)
            ours.callback(os.close, told)
            theirs.callback(os.close, their_end)
            options += ["--info-fd", str(_REPORT_FD + len(fds))]
            fds.append(their_end)
        # Each would end there, and what follows would be something of its own.
        if any("\0" in word for word in (launch.program, *launch.argv)):
            raise SpawnFailed("nul byte found in provided data", program=launch.program)
        if any("\0" in option for option in options):
            raise SpawnFailed("data provided contains a nul byte", program=launch.program)
        arguments = b"".join([os.fsencode(option) + b"\0" for option in options])
        stage = make_stage(
            _MACHINE,
            program=launch.program,
            argv=launch.argv,
            report=_REPORT_FD,
            filter_program=enclosure.filter,
            listen=enclosure.listen,
            landlock=enclosure.landlock,
            terminal=terminal is not None,
            limits=bounds.each,
            wait=bool(to_verify) or bounds.cgroup is not None,
            empty_streams=_empty_streams(terminal is not None, pipe_stdin, pipe_stderr),
        )
        fds = [readable(arguments, theirs), readable(stage, theirs), *fds]
        since = time.time()
        outer = Launch(
            enclosure.launcher, ["bwrap", "--args", str(_ARGS_FD), "--", STAGE_PATH], launch.cwd
        )
        if terminal is None:
            child = EnclosedChild.on_pipes(
                outer, plain, pipe_stdin=pipe_stdin, pipe_stderr=pipe_stderr, pass_fds=fds
            )
        else:
            rows, cols = terminal
            child = EnclosedChild.on_terminal(
                outer, plain, rows=rows, cols=cols, pass_fds=fds, controlling=False
            )
        begun(child)
        child.cgroup = bounds.cgroup
        undo.callback(child.discard)
        theirs.close()
        try:
            async with asyncio.timeout(_BUILD_LIMIT):
                ready = await complete(report, to_verify, bounds.cgroup, since=since)
        except TimeoutError:
            raise SpawnFailed(
                f"the sandbox was not built within {_BUILD_LIMIT:.0f} seconds"
            ) from None
        if not ready:
            raise SpawnFailed(await _complaint(child))
        child.report = report
        listener = report.take_listener()
        if listener is not None:
            child.attempts = NetworkAttempts(listener)
        if told is not None:
            _, child.first = first_process(told)
        undo.pop_all()
    return child


def _empty_streams(terminal: bool, pipe_stdin: bool, pipe_stderr: bool) -> list[int]:
    """The standard descriptors that lead nowhere."""
    if terminal:
        return []
    return [fd for fd, piped in ((0, pipe_stdin), (2, pipe_stderr)) if not piped]


async def complete(
    report: StageReport,
    to_verify: Sequence[Planned],
    cgroup: CommandCgroup | None,
    *,
    since: float,
) -> bool:
    """
    Wait until the sandbox is built, and see to it that it may be used.

    Args:
        report: Our end of the line to it.
        to_verify: All mounts, if others may interfere with them.
        cgroup: What it has to be put into.
        since: When the launcher was started, or a moment before.

    Returns:
        False if the launcher has failed.

    Raises:
        SpawnFailed: It is not as it has to be.
        OSError: The kernel does not let it into its cgroup.
    """
    # Directories that turned out to be others, and where those are.
    led: list[tuple[str, str]] = []
    try:
        return await _complete(report, to_verify, cgroup, led)
    finally:
        if to_verify:
            # Also where all is well in the end: the link was there for a moment. And nobody
            # waits for a disk that does not answer.
            with suppress(TimeoutError):
                await call_in_daemon(partial(remove_strays, to_verify, since, led))


async def _complete(
    report: StageReport,
    to_verify: Sequence[Planned],
    cgroup: CommandCgroup | None,
    led: list[tuple[str, str]],
) -> bool:
    if to_verify or cgroup is not None:
        # While it is being built.
        host = read_table(_mounts("self")) if to_verify else {}
        first = await report.built()
        if first is None:
            return False
        if cgroup is not None:
            cgroup.admit(first)
        if to_verify:
            _verify(first, to_verify, host, led)
        report.go()
    return await report.ready()


_NO_BOUNDS = Bounds([], None)

_EMPTY = -1
"""Stands for `/dev/null` among descriptors."""

_LAUNCHER_VARIABLES = (
    # Of the loader and the C library.
    *("LD_", "GLIBC_", "MALLOC_", "MUSL_", "GCONV_PATH", "LOCPATH", "NLSPATH", "TZ"),
    # Of what a compiler may have put into it: these name files to be written.
    *("ASAN_", "LSAN_", "MSAN_", "TSAN_", "UBSAN_", "GCOV_", "GMON_", "LLVM_PROFILE_"),
    "BASH_FUNC_",
)
"""
Variables, by how they begin, that change what the launcher itself would do.

It runs outside of the sandbox: a library in a place that commands may write to must
not get into it. It sets them for the command only.
"""


def split_environment(env: Mapping[str, str], cwd: str) -> tuple[dict[str, str], list[str]]:
    """What the launcher gets too, and the options that set the rest for the command alone."""
    # What the first process inside was started with can be read there: without the
    # folder it would differ from the command's own, which always has it. The launcher
    # goes to where it says.
    plain = {"PWD": cwd} | {name: env[name] for name in env if name != "PWD"}
    moved: list[str] = []
    for name in env:
        if name.startswith(_LAUNCHER_VARIABLES):
            value = plain.pop(name)
            # A name with this in it is a shorter one, to whoever looks at what is set.
            real, equals, rest = name.partition("=")
            moved += ("--setenv", real, f"{rest}={value}" if equals else value)
    return plain, moved


def readable(data: bytes, stack: ExitStack) -> int:
    """A descriptor that reads as this, until the end of a stack."""
    fd = data_file(data)
    stack.callback(os.close, fd)
    return fd


def _verify(
    pid: int, planned: Sequence[Planned], host: MountTable, led: list[tuple[str, str]]
) -> None:
    """
    See that all is mounted as planned, for a process inside; what is not is added to `led`.

    Raises:
        SpawnFailed: Something was changed meanwhile.
    """
    inside = read_table(_mounts(pid))
    path = first_mismatch(planned, inside, host, hidden=lambda path: not os.path.lexists(path))
    if path is not None and inside:  # or it has ended, and that will be seen
        led += led_elsewhere(planned, inside, host)
        raise SpawnFailed(f"{path} was changed while the sandbox was built: try again", path=path)


def _mounts(process: int | str) -> str:
    """The mounts that a process sees; nothing if it has ended."""
    try:
        with open(f"/proc/{process}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        if error.errno in _GONE:
            return ""
        raise


async def _complaint(child: EnclosedChild) -> str:
    """What a launcher that failed has to say."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(child.pidfd, ended.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_LIMIT):
                await ended.wait()
    finally:
        loop.remove_reader(child.pidfd)
    said = b""
    for _, fd in reversed(child.outputs):  # what is wrong comes on the last of them
        with suppress(OSError):
            said += os.read(fd, _MAX_COMPLAINT)
    return said.decode("utf-8", "replace").strip() or "the sandbox could not be built"


def first_process(told: int) -> tuple[int, int | None]:
    """
    The pid and a descriptor, by what the launcher told before it let that process go on.

    No descriptor if it is gone, and with it all the others.
    """
    pid = msgspec.json.decode(os.read(told, _MAX_COMPLAINT), type=_Told).pid
    with suppress(ProcessLookupError):
        return pid, os.pidfd_open(pid)
    return pid, None
