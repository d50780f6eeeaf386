"""
Builds a sandbox around a command, and waits until it is built.

The launcher is given a socket to wait on before it executes the command, with a
byte in it. If it gets there, it takes the byte and closes the socket. If it fails
before, the socket is closed with the byte still in it, which the kernel tells us:
so a sandbox that cannot be built is an error of the start, not of the command.
Where the limits of a command are to be set first, or its mounts looked at, the byte
comes after that.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

import msgspec

from holdfast.errors import SpawnFailed
from holdfast.process.enclosed import EnclosedChild, first_child
from holdfast.process.limits import apply_limits
from holdfast.process.program import Launch
from holdfast.protocol.process import ProcessLimits
from holdfast.sandbox.verify import Planned, fault, is_built, read_table

__all__ = ["EMPTY_FD", "Enclosure", "start_enclosed"]

_BUILD_LIMIT = 30.0
"""Seconds a sandbox may take to be built; a file system that does not answer can hang it."""

_END_LIMIT = 5.0
"""Seconds to wait for the end of a launcher that has failed."""

_LOOKS = 3
"""How often a sandbox may be found built otherwise than planned before it is given up."""

_NEXT_LOOK = 0.001
"""
Seconds until it is looked again how far a sandbox is.

To build one takes some of these, and each look at the mounts makes the one who mounts wait.
"""

_MAX_COMPLAINT = 4096
"""Bytes of what a launcher says that become the text of an error."""

_GONE = (errno.ENOENT, errno.ESRCH, errno.EINVAL)
"""What the kernel says of the mounts of a process that has ended."""

_FIRST_FD = 3
_ARGS_FD, _FILTER_FD, _GATE_FD = range(_FIRST_FD, _FIRST_FD + 3)

EMPTY_FD = _GATE_FD + 1
"""The first of the descriptors that are empty to read."""


class Enclosure(msgspec.Struct, frozen=True, kw_only=True):
    """How to build one sandbox."""

    launcher: str
    options: Sequence[str]
    """Of the launcher; what they say of descriptors begins at `EMPTY_FD`."""
    empty_fds: int = 0
    """How many descriptors they name that are empty to read."""
    filter: bytes
    """Of system calls."""
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
        launch: The command. Its program is looked for inside. A launcher without
            the option `--argv0` cannot give it another name.
        env: All of the command's environment.
        terminal: Rows and columns, if it is to have a terminal.
        pipe_stdin: Whether its input is a pipe.
        pipe_stderr: Whether its error output is one.
        limits: What each of its processes may use.
        to_verify: All mounts, if others may interfere with them: the command runs only
            once they are found to be as planned.

    Raises:
        SpawnFailed: It could not be built; nothing is left of it.
        OSError: No descriptor is left to start it with.
    """
    with ExitStack() as theirs, ExitStack() as ours:
        gate, their_gate = socket.socketpair()
        ours.callback(gate.close)
        theirs.callback(their_gate.close)
        gate.setblocking(False)
        held = limits is not None or bool(to_verify)
        if not held:
            gate.send(b"\0")
        cwd = _without_links(launch.cwd)
        plain, moved = _split_environment(env, cwd)
        options = [
            *("--block-fd", str(_GATE_FD), "--seccomp", str(_FILTER_FD)),
            *enclosure.options,
            *moved,
        ]
        fds = [their_gate.fileno(), *[_EMPTY] * enclosure.empty_fds]
        told = None
        if enclosure.tells_end:
            told, their_end = os.pipe()
            os.set_blocking(told, False)
            ours.callback(os.close, told)
            theirs.callback(os.close, their_end)
            options += ["--info-fd", str(_GATE_FD + len(fds))]
            fds.append(their_end)
        if any("\0" in option for option in options):
            # It would end there, and what follows would be an option of its own.
            raise SpawnFailed("data provided contains a nul byte")
        arguments = b"".join([os.fsencode(option) + b"\0" for option in options])
        fds = [_readable(arguments, theirs), _readable(enclosure.filter, theirs), *fds]
        named = launch.argv[0] != launch.program
        naming = ("--argv0", launch.argv[0]) if named else ()
        outer = Launch(
            enclosure.launcher,
            ["bwrap", "--args", str(_ARGS_FD), *naming, "--", launch.program, *launch.argv[1:]],
            cwd,
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
        theirs.close()
        try:
            async with asyncio.timeout(_BUILD_LIMIT):
                if held:
                    first = await _wait_for_first(child)
                    if first is not None and limits is not None:
                        _limit_first_process(first, limits)
                    if first is not None and to_verify:
                        await _verify(child, first, to_verify)
                    gate.send(b"\0")
                built = await _built(gate)
        except BrokenPipeError:
            built = False  # it failed before it could be told to go on
        except BaseException as error:
            child.discard()
            if isinstance(error, TimeoutError):
                raise SpawnFailed(
                    f"the sandbox was not built within {_BUILD_LIMIT:.0f} seconds"
                ) from None
            raise
        if not built:
            raise SpawnFailed(await _complaint(child))
        if told is not None:
            try:
                child.first = _first_process(told)
            except BaseException:
                child.discard()
                raise
    return child


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


def _without_links(folder: str) -> str:
    return os.path.realpath(folder)


def _split_environment(env: Mapping[str, str], cwd: str) -> tuple[dict[str, str], list[str]]:
    """What the launcher gets too, and the options that set the rest for the command alone."""
    # What the first process inside was started with can be read there: without the
    # folder it would differ from the command's own, which always has it. The launcher
    # goes to where it says, so it must say where the folder is inside: links on the
    # way to it may not be there.
    plain = {"PWD": cwd, **env}
    plain["PWD"] = cwd
    moved: list[str] = []
    for name in env:
        if name.startswith(_LAUNCHER_VARIABLES):
            value = plain.pop(name)
            # A name with this in it is a shorter one, to whoever looks at what is set.
            real, equals, rest = name.partition("=")
            moved += ("--setenv", real, f"{rest}={value}" if equals else value)
    return plain, moved


def _readable(data: bytes, stack: ExitStack) -> int:
    """A descriptor that reads as this; unlike a pipe it takes any amount at once."""
    fd = os.memfd_create("holdfast", os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def _built(gate: socket.socket) -> bool:
    loop = asyncio.get_running_loop()
    closed: asyncio.Future[bool] = loop.create_future()

    def look() -> None:
        try:
            gate.recv(1)
        except BlockingIOError:
            return
        except ConnectionResetError:
            result = False  # closed with the byte still in it
        else:
            result = True
        loop.remove_reader(gate.fileno())
        if not closed.done():
            closed.set_result(result)

    loop.add_reader(gate.fileno(), look)
    try:
        return await closed
    finally:
        loop.remove_reader(gate.fileno())


async def _wait_for_first(child: EnclosedChild) -> int | None:
    """The process that everything inside comes from; `None` if the launcher has failed."""
    while (first := first_child(child.pid)) is None:
        if child.exit_status() is not None:
            return None
        await asyncio.sleep(_NEXT_LOOK)
    return first


def _limit_first_process(first: int, limits: ProcessLimits) -> None:
    """Set limits on a process that waits at the gate, or will."""
    with suppress(ProcessLookupError):  # it has failed
        apply_limits(first, limits, extra_processes=1)


async def _verify(child: EnclosedChild, first: int, planned: Sequence[Planned]) -> None:
    """
    Wait until all is mounted, and see that it is as planned.

    Raises:
        SpawnFailed: Something was changed meanwhile.
    """
    host = read_table(_mounts("self"))
    looks = _LOOKS
    while child.exit_status() is None:  # or it has failed, and will say why
        inside = read_table(_mounts(first))
        if is_built(inside, host):
            path = fault(planned, inside, host, hidden=lambda path: not os.path.lexists(path))
            if path is None:
                return
            # The launcher may be about to let go of what it built upon.
            looks -= 1
            if not looks:
                raise SpawnFailed(f"{path} was changed while the sandbox was built: try again")
        await asyncio.sleep(_NEXT_LOOK)


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
    """What a launcher that failed has to say; nothing is left of it afterwards."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(child.pidfd, ended.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_LIMIT):
                await ended.wait()
        said = b""
        for _, fd in reversed(child.outputs):  # what is wrong comes on the last of them
            with suppress(OSError):
                said += os.read(fd, _MAX_COMPLAINT)
    finally:
        loop.remove_reader(child.pidfd)
        child.discard()
    return said.decode("utf-8", "replace").strip() or "the sandbox could not be built"


def _first_process(told: int) -> int | None:
    """
    The descriptor, by what the launcher told before it let that process go on.

    `None` if it is gone, and with it all the others.
    """
    pid = msgspec.json.decode(os.read(told, _MAX_COMPLAINT), type=_Told).pid
    with suppress(ProcessLookupError):
        return os.pidfd_open(pid)
    return None
