"""
Starts a command in a new sandbox, and waits until the sandbox is built.

The launcher, bubblewrap (`bwrap`), makes namespaces and mounts. It then executes a small init
program as PID 1 (`sandbox.bubblewrap.init_program`), which does the rest from inside and reports
the result. So a sandbox that cannot be built is an error of the start, not of the command. If
mounts have to be checked, or a cgroup has to be joined, the init program waits for our go-ahead.
"""

import asyncio
import errno
import os
import platform
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial

import msgspec

from holdfast.base.errors import SpawnFailed
from holdfast.engine.linux.memory_files import data_file
from holdfast.engine.process.executable_lookup import Launch
from holdfast.engine.process.limits.rlimits import PreparedLimits, prepare_limits
from holdfast.engine.process.sandbox_source import SandboxOutdated
from holdfast.engine.process.spawn import Caller
from holdfast.engine.process.start_threads import call_in_daemon
from holdfast.engine.sandbox.bubblewrap.init_channel import InitChannel
from holdfast.engine.sandbox.bubblewrap.init_program import (
    INIT_PATH,
    CallersSession,
    make_init_program,
)
from holdfast.engine.sandbox.bubblewrap.landlock import Ruleset
from holdfast.engine.sandbox.bubblewrap.mount_check import (
    MountsByPoint,
    Planned,
    first_mismatch,
    led_elsewhere,
    read_table,
)
from holdfast.engine.sandbox.bubblewrap.network_denials import NetworkAttempts
from holdfast.engine.sandbox.bubblewrap.sandboxed_child import SandboxedChild
from holdfast.engine.sandbox.bubblewrap.strays import remove_strays
from holdfast.wire.protocol.process import ProcessLimits

__all__ = ["DESCRIPTORS", "EMPTY_FD", "BwrapStart", "SandboxSpec", "start_sandboxed"]

# Seconds to build a sandbox. bwrap hangs on a file system that does not answer.
_BUILD_LIMIT = 30.0

# Seconds to wait for the exit of a bwrap that has reported a failure.
_END_LIMIT = 5.0

# Bytes of bwrap's stderr that become the text of an error.
_MAX_MESSAGE = 4096

# Errors of reading the mountinfo of a process that has exited.
_GONE = (errno.ENOENT, errno.ESRCH, errno.EINVAL)

_MACHINE = platform.machine()

# The first descriptor of bwrap behind its standard streams.
_FIRST_FD = 3

# Descriptors of bwrap beside the empty ones: its options, the init program, what that inherits (the
# channel, and a pidfd of the process that the sandbox ends with), and bwrap's `--info-fd`.
DESCRIPTORS = 5

# The first of the descriptors that are `/dev/null`, for files that a profile denies.
EMPTY_FD = _FIRST_FD + DESCRIPTORS - 1


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Description of one sandbox, for bwrap and the init program."""

    launcher: str
    """Path of bwrap."""
    options: Sequence[str]
    """Options of bwrap; descriptors in them begin at `EMPTY_FD`."""
    empty_fds: int = 0
    """Number of `/dev/null` descriptors that the options refer to."""
    filter: bytes
    """The seccomp filter, as BPF instructions."""
    listen: bool = False
    """True if the filter notifies us of attempts to reach the network."""
    landlock: Ruleset | None = None
    """Landlock rules for what mounts cannot express."""
    call: Caller | None = None
    """Calls the start of bwrap, if it needs other namespaces than those of the server."""
    tells_end: bool = False
    """True if the close waits until the sandbox is empty; see `SandboxedChild.call_when_empty`."""


class _BwrapInfo(msgspec.Struct):
    """The part of bwrap's `--info-fd` message that is used here."""

    pid: int = msgspec.field(name="child-pid")


async def start_sandboxed(
    spec: SandboxSpec,
    launch: Launch,
    env: Mapping[str, str],
    *,
    terminal: tuple[int, int] | None = None,
    pipe_stdin: bool = False,
    pipe_stderr: bool = True,
    limits: ProcessLimits | None = None,
    to_verify: Sequence[Planned] = (),
) -> SandboxedChild:
    """
    Start a command in a sandbox and wait until the sandbox is built.

    Args:
        spec: The sandbox.
        launch: The command; its program and its directory are paths inside the sandbox.
        env: The complete environment of the command.
        terminal: Rows and columns, if it gets a terminal.
        pipe_stdin: True if its stdin is a pipe.
        pipe_stderr: True if its stderr is a pipe.
        limits: Limits of the command.
        to_verify: All mounts, if other processes may interfere with them: the command runs
            only if they are as planned.

    Raises:
        SpawnFailed: The sandbox could not be built; nothing is left of it.
        OSError: No descriptor is left to start it with.
    """
    # Gets the child as soon as it is spawned, so that a failure after that can wait for its end.
    failed: list[SandboxedChild] = []
    try:
        return await _start(
            *(spec, launch, env, terminal, pipe_stdin, pipe_stderr, limits, to_verify),
            failed.append,
        )
    except BaseException:
        # When the error is raised, no process is left that could touch the disk.
        for child in failed:
            await child.wait_reaped()
        raise


async def _start(
    spec: SandboxSpec,
    launch: Launch,
    env: Mapping[str, str],
    terminal: tuple[int, int] | None,
    pipe_stdin: bool,
    pipe_stderr: bool,
    limits: ProcessLimits | None,
    to_verify: Sequence[Planned],
    begun: Callable[[SandboxedChild], None],
) -> SandboxedChild:
    start = BwrapStart(
        spec,
        launch,
        env,
        numbers=range(_FIRST_FD, _FIRST_FD + DESCRIPTORS + spec.empty_fds),
        owner=os.getpid(),
        limits=limits,
        to_verify=to_verify,
        terminal=terminal is not None,
        empty_streams=_empty_streams(terminal is not None, pipe_stdin, pipe_stderr),
    )
    with ExitStack() as undo:
        undo.callback(start.close)
        bwrap = Launch(spec.launcher, start.argv, launch.cwd)
        child = _spawn(
            bwrap, start.env, terminal, pipe_stdin, pipe_stderr, start.descriptors, spec.call
        )
        begun(child)
        child.cgroup = start.cgroup
        undo.callback(child.discard)
        start.sent()
        if not await start.built(kill=child.kill_unbuilt):
            raise SandboxOutdated(await _launcher_error(child))
        child.report = start.channel
        child.attempts = start.take_attempts()
        if spec.tells_end:
            _, child.init_fd = start.take_init()
        undo.pop_all()
    return child


class BwrapStart:
    """
    One start of bwrap, which this process or another one executes.

    It has what bwrap gets, and waits until the sandbox is built. `close` releases all of it.
    """

    def __init__(
        self,
        spec: SandboxSpec,
        launch: Launch,
        env: Mapping[str, str],
        *,
        numbers: Sequence[int],
        owner: int,
        limits: ProcessLimits | None,
        to_verify: Sequence[Planned],
        terminal: bool = False,
        empty_streams: Sequence[int] = (),
        caller: CallersSession | None = None,
        mounts: Sequence[str] = (),
    ) -> None:
        """
        Args:
            spec: The sandbox.
            launch: The command, by paths inside.
            env: The complete environment of the command.
            numbers: Numbers of `descriptors` in bwrap's process.
            owner: Pid of the process that the sandbox ends with.
            limits: Limits of the command.
            to_verify: All mounts, if other processes may interfere with them.
            terminal: True if standard input becomes the controlling terminal.
            empty_streams: Standard descriptors that are `/dev/null`.
            caller: The session of the process that executes bwrap, if that is another one.
            mounts: Further options of bwrap.

        Raises:
            SpawnFailed: A text has a NUL.
            OSError: No descriptor is left, or the kernel refused a cgroup.
        """
        args_fd, program_fd, report_fd, owner_fd, *_, info_fd = numbers
        # What bwrap inherits: open here until it has it.
        self._theirs, self._to_verify = ExitStack(), to_verify
        with ExitStack() as undo:
            undo.callback(self._theirs.close)
            prepared = _prepare_limits(limits, undo)
            self.cgroup = prepared.cgroup
            """The cgroup of the command, if it has one."""
            self.channel = InitChannel()
            """Our end of the channel to the init program."""
            undo.callback(self.channel.close)
            self._theirs.callback(self.channel.theirs.close)
            self.env, moved = _split_environment(env, launch.cwd)
            """The environment of bwrap."""
            # Without `--chdir`, bwrap uses the user's home if the cwd does not exist inside.
            options = [*spec.options, *mounts, *moved, "--chdir", launch.cwd]
            tells_pid = spec.tells_end or caller is not None
            # Not a pipe: without a reader it would end bwrap, while PID 1 waits for it.
            self._info = _memory_fd(b"", undo) if tells_pid else None
            options += _init_options(program_fd, info_fd if tells_pid else None)
            program = make_init_program(
                _MACHINE,
                program=launch.program,
                argv=launch.argv,
                report=report_fd,
                owner=owner_fd,
                filter_program=spec.filter,
                listen=spec.listen,
                landlock=spec.landlock,
                terminal=terminal,
                limits=prepared.each,
                # Only a command with a cgroup, or mounts to check, has to wait for our go-ahead.
                wait=bool(to_verify) or prepared.cgroup is not None,
                caller=caller,
                empty_streams=empty_streams,
            )
            empty = _EMPTY if caller is None else self._open_empty()
            encoded = _encode_options(options, launch)
            self.descriptors = self._open(encoded, program, owner, [empty] * spec.empty_fds)
            """The descriptors that bwrap inherits, in the order of `numbers`."""
            self.argv = ["bwrap", "--args", str(args_fd), "--", INIT_PATH]
            """The arguments of bwrap."""
            # Before the spawn: whatever bwrap makes on the disk is newer.
            self._since = time.time()
            undo.pop_all()

    def _open(self, options: bytes, program: bytes, owner: int, empty: Sequence[int]) -> list[int]:
        """Open the descriptors of bwrap; `_theirs` closes them."""
        pidfd = os.pidfd_open(owner)
        self._theirs.callback(os.close, pidfd)
        memory = [_memory_fd(data, self._theirs) for data in (options, program)]
        info = [] if self._info is None else [self._info]
        return [*memory, self.channel.theirs.fileno(), pidfd, *empty, *info]

    def _open_empty(self) -> int:
        # Descriptors of another process are sent, so all have to be open here.
        empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._theirs.callback(os.close, empty)
        return empty

    def sent(self) -> None:
        """Close our copies of what bwrap has inherited."""
        # As long as they are open, we would not see its end.
        self._theirs.close()

    async def built(self, kill: Callable[[], None] | None = None) -> bool:
        """
        Wait until the sandbox is built, check its mounts, and move it into its cgroup.

        Args:
            kill: Kills bwrap; called if the sandbox is given up.

        Returns:
            False if bwrap has failed.

        Raises:
            SpawnFailed: The sandbox is not as planned, or takes too long.
            OSError: The kernel refused to move it into its cgroup.
        """
        try:
            async with asyncio.timeout(_BUILD_LIMIT):
                return await self._complete(kill)
        except TimeoutError:
            text = f"the sandbox was not built within {_BUILD_LIMIT:.0f} seconds"
            raise SpawnFailed(text) from None

    async def _complete(self, kill: Callable[[], None] | None) -> bool:
        channel, to_verify = self.channel, self._to_verify
        # Directories that bwrap reached through a link, and the targets of these links.
        led: list[tuple[str, str]] = []
        removal: Awaitable[None] | None = None
        try:
            if to_verify or self.cgroup is not None:
                if not await self._check(led):
                    return False
                if to_verify:
                    # bwrap has made all mounts. This takes about as long as the start.
                    removal = asyncio.ensure_future(self._remove_strays(led))
                channel.go()
            return await channel.ready()
        except BaseException:
            if kill is not None:
                # After a cancellation bwrap may be at work, and must create nothing after the
                # removal. Its process that makes the mounts has the channel open until it exits.
                kill()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_END_LIMIT):
                        await channel.hung_up()
            raise
        finally:
            # Even if the check passes in the end: a link may have been there for a moment, and
            # bwrap may have made files behind it.
            if to_verify:
                await (removal or self._remove_strays(led))

    async def _remove_strays(self, led: Sequence[tuple[str, str]]) -> None:
        # A disk that does not answer is not waited for.
        with suppress(TimeoutError):
            await call_in_daemon(partial(remove_strays, self._to_verify, self._since, led))

    async def _check(self, led: list[tuple[str, str]]) -> bool:
        """Check the mounts and move PID 1 into its cgroup; return False if bwrap has failed."""
        # Read while bwrap works: it takes as long as the building.
        host = read_table(_mounts("self")) if self._to_verify else {}
        init = await self.channel.built()
        if init is None:
            return False
        if self.cgroup is not None:
            self.cgroup.admit(init)
        if self._to_verify:
            _verify(init, self._to_verify, host, led)
        return True

    def take_attempts(self) -> NetworkAttempts | None:
        """Return what records refused network attempts of a sandbox that is built, if anything."""
        listener = self.channel.take_listener()
        return None if listener is None else NetworkAttempts(listener)

    def take_init(self) -> tuple[int, int | None]:
        """
        Return pid and pidfd of the PID 1 of a sandbox that is built.

        The pidfd is None if PID 1 has exited, and the kernel has killed all others with it.
        """
        # Called once, and only if the sandbox tells its end or another process starts it.
        assert self._info is not None
        # bwrap writes the message before it lets PID 1 go on, so it is complete by now.
        message = os.pread(self._info, _MAX_MESSAGE, 0)
        os.close(self._info)
        self._info = None
        pid = msgspec.json.decode(message, type=_BwrapInfo).pid
        with suppress(ProcessLookupError):
            return pid, os.pidfd_open(pid)
        return pid, None

    def close(self) -> None:
        """Release all descriptors and the cgroup."""
        self._theirs.close()
        # An init program that is not ready yet fails to send its message, and exits.
        self.channel.close()
        if self._info is not None:
            os.close(self._info)
            self._info = None
        if self.cgroup is not None:
            self.cgroup.release()


def _prepare_limits(limits: ProcessLimits | None, undo: ExitStack) -> PreparedLimits:
    if limits is None:
        return PreparedLimits([], None)
    # PID 1 of the sandbox counts as a process of the command.
    prepared = prepare_limits(limits, extra_processes=1)
    if prepared.cgroup is not None:
        undo.callback(prepared.cgroup.release)
    return prepared


def _init_options(program_fd: int, info_fd: int | None) -> list[str]:
    """Return the options that make the init program PID 1, and tell its pid."""
    # Without `--as-pid-1`, it would be a child of a process of bwrap's own.
    made = ["--as-pid-1", "--perms", "0500", "--file", str(program_fd), INIT_PATH]
    return made if info_fd is None else [*made, "--info-fd", str(info_fd)]


def _encode_options(options: Sequence[str], launch: Launch) -> bytes:
    """
    Return options in the format of bwrap's `--args`: each followed by a NUL.

    A NUL of a text would end the argument early and turn the rest into another one.

    Raises:
        SpawnFailed: The command or an option has a NUL.
    """
    if "\0" in "".join([launch.program, *launch.argv]):
        raise SpawnFailed("nul byte found in provided data", program=launch.program)
    if "\0" in "".join(options):
        raise SpawnFailed("data provided contains a nul byte", program=launch.program)
    return b"".join([os.fsencode(option) + b"\0" for option in options])


def _spawn(
    bwrap: Launch,
    env: Mapping[str, str],
    terminal: tuple[int, int] | None,
    pipe_stdin: bool,
    pipe_stderr: bool,
    fds: Sequence[int],
    call: Caller | None,
) -> SandboxedChild:
    if terminal is None:
        return SandboxedChild.on_pipes(
            bwrap, env, pipe_stdin=pipe_stdin, pipe_stderr=pipe_stderr, pass_fds=fds, call=call
        )
    rows, cols = terminal
    # Not the controlling terminal of bwrap: the command's own session takes it.
    return SandboxedChild.on_terminal(
        bwrap, env, rows=rows, cols=cols, pass_fds=fds, controlling=False, call=call
    )


def _empty_streams(terminal: bool, pipe_stdin: bool, pipe_stderr: bool) -> list[int]:
    """Return the standard descriptors that are `/dev/null`."""
    if terminal:
        return []
    return [fd for fd, piped in ((0, pipe_stdin), (2, pipe_stderr)) if not piped]


# Stands for `/dev/null` in the descriptors of `spawn`.
_EMPTY = -1

# Prefixes of variables that change the behaviour of bwrap itself. bwrap runs outside of the
# sandbox: it must not load a library from a directory that commands may write to. It sets these
# variables for the command only.
_LAUNCHER_VARIABLES = (
    # Of the dynamic loader and the C library.
    *("LD_", "GLIBC_", "MALLOC_", "MUSL_", "GCONV_PATH", "LOCPATH", "NLSPATH", "TZ"),
    # Of sanitizers and profilers that bwrap may be compiled with: these name files to write.
    *("ASAN_", "LSAN_", "MSAN_", "TSAN_", "UBSAN_", "GCOV_", "GMON_", "LLVM_PROFILE_"),
    "BASH_FUNC_",
)


def _split_environment(env: Mapping[str, str], cwd: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables of bwrap, and the options that set the others for the command."""
    # The command can read the environment of PID 1. Without PWD there, it would differ from the
    # command's own, which always has it. bwrap changes to that directory itself.
    plain = {"PWD": cwd} | {name: env[name] for name in env if name != "PWD"}
    moved: list[str] = []
    for name in env:
        if name.startswith(_LAUNCHER_VARIABLES):
            value = plain.pop(name)
            # `--setenv` refuses a name with `=`, but a request may have one. The environment is
            # a list of `NAME=VALUE`, so the part behind the first `=` belongs to the value.
            real, equals, rest = name.partition("=")
            moved += ("--setenv", real, f"{rest}={value}" if equals else value)
    return plain, moved


def _memory_fd(data: bytes, stack: ExitStack) -> int:
    """Return a memfd with some content; the stack closes it."""
    fd = data_file(data)
    stack.callback(os.close, fd)
    return fd


def _verify(
    pid: int, planned: Sequence[Planned], host: MountsByPoint, led: list[tuple[str, str]]
) -> None:
    """
    Compare the mounts of a process inside with the plan.

    Appends to `led` the directories that were reached through a link.

    Raises:
        SpawnFailed: A path was changed while bwrap mounted it.
    """
    inside = read_table(_mounts(pid))
    path = first_mismatch(planned, inside, host, hidden=lambda path: not os.path.lexists(path))
    # An empty table means that the process has exited, which `ready` reports.
    if path is not None and inside:
        led += led_elsewhere(planned, inside, host)
        text = f"{path} was changed while the sandbox was built: try again"
        raise SandboxOutdated(text, path=path)


def _mounts(process: int | str) -> str:
    """Return the mountinfo of a process; empty if it has exited."""
    try:
        with open(f"/proc/{process}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        if error.errno in _GONE:
            return ""
        raise


async def _launcher_error(child: SandboxedChild) -> str:
    """Return the error message of a bwrap that has failed, once it has exited."""
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
    # stderr comes last in `outputs`; a terminal has only one.
    for _, fd in reversed(child.outputs):
        with suppress(OSError):
            said += os.read(fd, _MAX_MESSAGE)
    return said.decode("utf-8", "replace").strip() or "the sandbox could not be built"
