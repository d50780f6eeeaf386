"""
A child inside a sandbox, and the wait until it is really inside.

Three processes make up a sandbox: the launcher, which is our child; the first
process inside, which the kernel kills all others with; and the command. The
launcher holds no signal and no terminal: those belong to the command.

The launcher is given a socket to wait on before it executes the command, with a
byte in it. If it gets there, it takes the byte and closes the socket. If it fails
before, the socket is closed with the byte still in it, which the kernel tells us:
so a sandbox that cannot be built is an error of the start, not of the command.
"""

import asyncio
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

import msgspec

from holdfast.errors import SpawnFailed
from holdfast.process.child import Child
from holdfast.process.limits import apply_limits
from holdfast.process.program import Launch
from holdfast.protocol.process import OutputStream, ProcessLimits

__all__ = ["EMPTY_FD", "EnclosedChild", "Enclosure", "start_enclosed"]

_BUILD_LIMIT = 30.0
"""Seconds a sandbox may take to be built; a file system that does not answer can hang it."""

_END_LIMIT = 5.0
"""Seconds to wait for the end of a launcher that has failed."""

_COMMAND_LIMIT = 0.01
"""Seconds to wait for the command, which is forked right after the sandbox was built."""

_LOOK_AGAIN = 0.0005
"""Seconds until it is looked again whether a process is there; about what it takes."""

_MAX_COMPLAINT = 4096
"""Bytes of what a launcher says that become the text of an error."""

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


class EnclosedChild(Child):
    """The launcher of a sandbox, which stands for the command inside."""

    __slots__ = ("_waits", "ended", "first")

    def __init__(
        self, pid: int, pidfd: int, stdin: int | None, outputs: list[tuple[OutputStream, int]]
    ) -> None:
        super().__init__(pid, pidfd, stdin, outputs)
        self.ended: Callable[[], None] = lambda: None
        """Called when it is reaped."""
        self.first: int | None = None
        """A descriptor of the first process inside: readable once all of them are gone."""
        self._waits = False

    def signal(self, number: int) -> None:
        first = _first_child(self.pid)
        if first is None:
            os.killpg(self.pid, number)  # it has ended, or is about to begin
        elif number == signal.SIGKILL:
            # The kernel ends all the others with it, and the launcher waits for that.
            os.kill(first, number)
        else:
            # The first process is in the command's group on pipes, but nothing
            # that it does not handle reaches the first process of a namespace.
            os.killpg(_group_inside(first), number)

    def kill_tree(self) -> None:
        self.signal(signal.SIGKILL)  # nothing leaves a sandbox

    def kill_group(self) -> None:
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)

    def lingers(self, then: Callable[[], None]) -> bool:
        """
        Whether something inside may still run, although the command has ended.

        The launcher exits when the command does, which is a moment before the kernel
        has ended the rest.
        """
        if self.first is None or self._waits:
            return self._waits
        first = self.first
        ready = select.poll()
        ready.register(first, select.POLLIN)
        if ready.poll(0):
            return False
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(first)
            self._waits = False
            then()

        self._waits = True
        loop.add_reader(first, gone)
        return True

    def reap(self) -> None:
        super().reap()
        if self.first is not None:
            if self._waits:
                asyncio.get_running_loop().remove_reader(self.first)
            os.close(self.first)
            self.first = None
        self.ended()

    def discard(self) -> None:
        """End it and let go of all it had: of a start that failed or is no longer wanted."""
        # A launcher that dies while it starts the first process leaves that waiting for
        # ever. One that is stopped starts nothing more, so what there is can be killed.
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
            first = _first_child(self.pid)
            if first is not None:
                os.kill(first, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for fd in {fd for _, fd in self.outputs} | ({self.stdin} - {None}):
            assert fd is not None  # taken out above
            os.close(fd)
        self.reap()


async def start_enclosed(
    enclosure: Enclosure,
    launch: Launch,
    env: Mapping[str, str],
    *,
    terminal: tuple[int, int] | None = None,
    pipe_stdin: bool = False,
    pipe_stderr: bool = True,
    limits: ProcessLimits | None = None,
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

    Raises:
        SpawnFailed: It could not be built; nothing is left of it.
        OSError: No descriptor is left to start it with.
    """
    with ExitStack() as theirs, ExitStack() as ours:
        gate, their_gate = socket.socketpair()
        ours.callback(gate.close)
        theirs.callback(their_gate.close)
        gate.setblocking(False)
        if limits is None:
            gate.send(b"\0")
        plain, moved = _split_environment(env, launch.cwd)
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
            launch.cwd,
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
                if limits is not None:
                    await _limit_first_process(child, limits)
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

_LOADER_VARIABLES = ("LD_", "GLIBC_", "MALLOC_", "GCONV_PATH", "LOCPATH", "NLSPATH", "BASH_FUNC_")
"""
Variables, by how they begin, that change what the launcher itself would do.

It runs outside of the sandbox: a library in a place that commands may write to must
not get into it. It sets them for the command only.
"""


def _split_environment(env: Mapping[str, str], cwd: str) -> tuple[dict[str, str], list[str]]:
    """What the launcher gets too, and the options that set the rest for the command alone."""
    # What the first process inside was started with can be read there: without the
    # folder it would differ from the command's own, which always has it.
    plain = {"PWD": cwd, **env}
    moved: list[str] = []
    for name in env:
        if name.startswith(_LOADER_VARIABLES):
            moved += ["--setenv", name, plain.pop(name)]
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


async def _limit_first_process(child: EnclosedChild, limits: ProcessLimits) -> None:
    """Set limits on the process that everything inside comes from; it waits at the gate."""
    while (first := _first_child(child.pid)) is None:
        if child.exit_status() is not None:
            return
        await asyncio.sleep(_LOOK_AGAIN)
    with suppress(ProcessLookupError):  # it has failed
        apply_limits(first, limits, extra_processes=1)


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


def _first_child(pid: int) -> int | None:
    """The oldest child of a process: orphans that it took in come after it."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            first = file.read().split(maxsplit=1)
    except OSError:
        return None
    return int(first[0]) if first else None


def _group_inside(first: int) -> int:
    """The group of the command, as this side sees it."""
    deadline = time.monotonic() + _COMMAND_LIMIT
    while (command := _first_child(first)) is None:
        if time.monotonic() > deadline:
            return first
        time.sleep(_LOOK_AGAIN)
    with suppress(ProcessLookupError):
        return os.getpgid(command)
    return first
