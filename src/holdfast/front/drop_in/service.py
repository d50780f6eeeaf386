"""
The server of `holdfast-sh`, one per user.

It responds to each launcher with a table of system calls. For a command in a sandbox it stays
connected: it forwards signals, records network attempts, waits for the exit status and sends the
last table. It exits after a while without callers.
"""

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from holdfast.base.errors import CannotEnforce, HoldfastError, InvalidParams, SpawnFailed
from holdfast.base.late_import import late_module
from holdfast.base.own_files import OwnFiles, own_files
from holdfast.engine.linux.memory_files import data_file
from holdfast.engine.process.executable_lookup import Launch
from holdfast.engine.process.limits.rlimits import has_kernel_limits, prepare_limits
from holdfast.engine.process.start_threads import call_in_daemon
from holdfast.engine.process.variables import without_tokens
from holdfast.engine.sandbox.bubblewrap.bubblewrap_enforcer import BubblewrapSandbox
from holdfast.engine.sandbox.bubblewrap.delegated_start import DelegatedStart
from holdfast.engine.sandbox.bubblewrap.init_program import CallersSession
from holdfast.engine.sandbox.factory import shared_sandboxes
from holdfast.environments.sandbox import ProfileContext, also_writing, resolve_sandbox
from holdfast.environments.wide_workspace import wide_workspace
from holdfast.front.drop_in import tables
from holdfast.front.drop_in.caller import Caller, CallerGone, namespaces, read_caller
from holdfast.front.drop_in.denied_stderr import StderrFile
from holdfast.front.drop_in.quiet_terminal import Terminals
from holdfast.front.drop_in.settings import InvalidSettings, ShellSettings, read_settings
from holdfast.front.drop_in.shell_paths import ShellPaths
from holdfast.front.drop_in.unenclosed import elsewhere, environment_of, outside
from holdfast.wire.protocol.limits import LIMITS, LimitKind, limit_of
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import ProcessLimits
from holdfast.wire.protocol.sandbox import SandboxContext
from holdfast.wire.protocol.secret_variables import TOKEN_VARIABLE

if TYPE_CHECKING:
    from holdfast.agent.approvals.start_permission import Clearance
    from holdfast.front.drop_in import judging
else:
    # Imports all approvals, which only users with a policy need: the first caller waits while the
    # server starts.
    judging = late_module("holdfast.front.drop_in.judging")

__all__ = ["IDLE", "ShellServer", "run_server", "serve"]

logger = logging.getLogger(__name__)

IDLE = 900.0
"""Seconds without callers after which the server exits."""

# Connections that wait for `accept`; further callers wait in `connect`.
_BACKLOG = 256

# Callers at a time; further ones wait for their response.
_MOST_CALLERS = 512

# Seconds to wait while too many descriptors of this user are in flight.
_SEND_LIMIT = 60.0

# `struct ucred` of SO_PEERCRED: pid, uid, gid.
_CREDENTIALS = struct.Struct("=3i")
# First fields of a `signalfd_siginfo`: ssi_signo, ssi_errno, ssi_code, ssi_pid.
_SIGNAL = struct.Struct("=IiiI")

# SI_KERNEL: a terminal sent the signal, to its whole foreground group.
_FROM_KERNEL = 0x80

# SCM_MAX_FD: descriptors of one message.
_MOST_FDS = 253


class _LineNotRun(Exception):
    """The command line is not run; the text is for the caller."""


class ShellServer:
    """Server for the launchers of one user."""

    def __init__(self, files: ShellPaths, *, idle: float = IDLE) -> None:
        self._files = files
        self._idle = idle
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_MOST_CALLERS)
        self._own = namespaces("self")
        # PID namespaces of running sandboxes, by the pid of PID 1: shells in them may call.
        self._inside: dict[int, int] = {}
        # Starts of sandboxes that are not in `_inside` yet; done when they are, or have failed.
        self._starting: dict[DelegatedStart, asyncio.Future[None]] = {}
        self._terminals = Terminals()
        # Imported with the first policy, which most users do not have.
        self._judge: judging.Judge | None = None

    async def prepare(self) -> None:
        """Probe the sandbox support of this machine before the first caller needs it."""
        await shared_sandboxes().support()

    async def serve(self, listener: socket.socket) -> None:
        """Serve callers until none has come for `idle` seconds and none is connected."""
        loop = asyncio.get_running_loop()
        while True:
            await self._slots.acquire()
            try:
                async with asyncio.timeout(self._idle):
                    connection, _ = await loop.sock_accept(listener)
            except TimeoutError:
                self._slots.release()
                if not self._tasks:
                    return
                continue
            self._take(connection)

    async def serve_left(self, listener: socket.socket) -> None:
        """Serve the callers that are already connected; return when all are done."""
        # The listener does not block, so `accept` raises when its queue is empty.
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                await self._slots.acquire()
                self._take(connection)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _take(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        task = asyncio.create_task(self._attend(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self, connection: socket.socket) -> None:
        try:
            with connection:
                await self._answer(connection)
        except (ConnectionError, CallerGone) as error:
            logger.info("a caller is gone: %s", error)
        except Exception:
            logger.exception("a caller was not served")
        finally:
            self._slots.release()

    async def _answer(self, connection: socket.socket) -> None:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(raw)
        if uid != os.geteuid() or pid <= 0:
            # Closing the connection notifies the launcher.
            return
        # The launcher waits for the response, so its pid is not reused meanwhile.
        caller = read_caller(pid)
        try:
            await self._decide(connection, caller)
        except (_LineNotRun, InvalidSettings) as error:
            await self._send(connection, tables.refuse(f"holdfast-sh: {error}"), [])
        except tables.TooLarge as error:
            await self._send(connection, tables.refuse(f"holdfast-sh: {error}"), [])

    async def _decide(self, connection: socket.socket, caller: Caller) -> None:
        settings = read_settings(caller.environ)
        if caller.namespaces != self._own:
            if not await self._has_sandbox(caller.namespaces[1]):
                raise _LineNotRun("called from another container than its server runs in")
            # The caller is in a sandbox of this server. Its shell needs no other one.
            await self._send(connection, _shell_itself(caller, settings), [])
            return
        if settings.environment != "local":
            if settings.policy not in (None, "off"):
                raise _LineNotRun("a policy needs the environment `local`")
            await self._send(connection, elsewhere(caller, settings), [])
            return
        limits = settings.limits.on_wire()
        context = _sandbox_of(caller, settings)
        if settings.policy is not None and settings.policy != "off":
            clearance = await self._admit(connection, caller, settings, context)
            if clearance.program is not None:
                _limit(caller, limits)
                await self._send(connection, outside(caller, settings, clearance.program), [])
                return
            context = clearance.sandbox
        sandbox = None
        if context is not None:
            own = _own_files(caller, settings, self._files)
            try:
                sandbox = await _build(context, caller, own)
            except _LineNotRun:
                # In `/`, links of the system would be writable: the workspace is the better reason.
                if settings.workspace is None:
                    await _check_workspace(caller)
                raise
        if sandbox is None:
            _limit(caller, limits)
            await self._send(connection, _shell_itself(caller, settings), [])
            return
        try:
            _check_folder(caller)
            if settings.workspace is None and sandbox.access(caller.cwd) == "write":
                await _check_workspace(caller)
            await self._enclose(connection, caller, settings, sandbox, limits)
        finally:
            sandbox.close()

    async def _has_sandbox(self, namespace: int) -> bool:
        """Return True if a PID namespace is that of a sandbox of this server."""
        # A command runs, and may call, before the message that its sandbox is built has been read.
        # Its start is one of these. Each of them succeeds or fails in a bounded time.
        starting = set(self._starting.values())
        while starting and namespace not in self._inside.values():
            _, starting = await asyncio.wait(starting, return_when=asyncio.FIRST_COMPLETED)
        return namespace in self._inside.values()

    def _end_start(self, handed: DelegatedStart) -> None:
        """Release callers that wait for a start; idempotent."""
        starting = self._starting.pop(handed, None)
        if starting is not None:
            starting.set_result(None)

    async def _admit(
        self,
        connection: socket.socket,
        caller: Caller,
        settings: ShellSettings,
        context: SandboxContext | None,
    ) -> "Clearance":
        if self._judge is None:
            self._judge = judging.Judge(self._terminals)
        asking = asyncio.create_task(self._judge.admit(caller, settings, context))
        # The launcher sends nothing yet, so a read returns only when it has ended, for
        # example by Ctrl-C at a question.
        gone = asyncio.create_task(asyncio.get_running_loop().sock_recv(connection, 1))
        try:
            await asyncio.wait((asking, gone), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise CallerGone("while it was asked about")
            return asking.result()
        except judging.LineRefused as error:
            raise _LineNotRun(f"denied by the policy: {error}") from error
        finally:
            for task in (asking, gone):
                task.cancel()
            await asyncio.gather(asking, gone, return_exceptions=True)

    async def _enclose(
        self,
        connection: socket.socket,
        caller: Caller,
        settings: ShellSettings,
        sandbox: BubblewrapSandbox,
        limits: ProcessLimits | None,
    ) -> None:
        numbers, closed = _numbers(caller, sandbox.descriptors)
        session = CallersSession(caller.signal_mask, caller.terminal, caller.empty_streams)
        launch = Launch(settings.shell, list(caller.argv), caller.cwd)
        started = await self._terminals.begin_start(caller.terminals)
        try:
            handed = sandbox.delegate_start(
                launch,
                environment_of(caller, settings),
                numbers=numbers,
                owner=caller.pid,
                caller=session,
                limits=limits,
                stand_in=_stand_in(sandbox, settings, self._files),
            )
        except BaseException as error:
            started.set_result(None)
            if isinstance(error, SpawnFailed | OSError | InvalidParams):
                raise _LineNotRun(f"the sandbox cannot be built: {error}") from error
            raise
        # Before the launcher has the table: from then on, the command may call.
        self._starting[handed] = started
        try:
            table = tables.enclose(
                *(handed.program, handed.argv, handed.env, numbers),
                closed_stream=bool(closed),
                private_mounts=handed.private_mounts,
            )
            fillers = max(closed - 1, 0)
            await self._send(connection, table, handed.descriptors, fillers=fillers)
            handed.sent()
            with StderrFile(caller.pid) as stderr:
                await self._follow(connection, caller, handed, limits, stderr, sandbox.reasons)
        finally:
            self._end_start(handed)
            handed.close()
            self._terminals.remove_command(handed.init_pid)

    async def _follow(
        self,
        connection: socket.socket,
        caller: Caller,
        handed: DelegatedStart,
        limits: ProcessLimits | None,
        stderr: StderrFile,
        reasons: Mapping[str, str],
    ) -> None:
        """Follow a command until it exits, or until its launcher has ended."""
        listening = asyncio.create_task(_pass_signals(connection, caller, handed))
        running = asyncio.create_task(self._run(handed, limits, caller.terminals))
        try:
            await asyncio.wait((listening, running), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                # The launcher was killed.
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await handed.abandon()
                return
            status, text = running.result()
            text = text or stderr.denial(status, reasons, caller.cwd)
        finally:
            for task in (listening, running):
                task.cancel()
            await asyncio.gather(listening, running, return_exceptions=True)
        group = caller.group if caller.group == caller.terminal_group else None
        await asyncio.get_running_loop().sock_sendall(
            connection, tables.finish(status, text, terminal=caller.terminal, group=group)
        )

    async def _run(
        self, handed: DelegatedStart, limits: ProcessLimits | None, terminals: frozenset[int]
    ) -> tuple[int, str | None]:
        """Return the exit status of a command, and a line about a denial or None."""
        try:
            if not await handed.built():
                # bubblewrap has reported the reason on the same stderr.
                return tables.CANNOT_RUN, "holdfast-sh: the sandbox could not be built"
        except (SpawnFailed, OSError) as error:
            return tables.CANNOT_RUN, f"holdfast-sh: {error}"
        first = handed.init_pid
        # Set when the sandbox is built.
        assert first is not None
        with suppress(OSError):
            self._inside[first] = namespaces(first)[1]
        self._terminals.add_command(first, terminals)
        self._end_start(handed)
        wall = None if limits is None else limits.wall_time_ms
        late = False
        try:
            async with asyncio.timeout(None if wall is None else wall / 1000):
                end = await handed.ended()
        except TimeoutError:
            late = True
            handed.kill()
            end = await handed.ended()
        finally:
            self._inside.pop(first, None)
        if late:
            # Only a wall time can have timed out.
            assert wall is not None
            late_text = limit_of(LimitKind.WALL_TIME).exceeded(wall)
            return 128 + signal.SIGKILL, f"holdfast-sh: ended by a limit: it {late_text}"
        if end is None:
            return 128 + signal.SIGKILL, None
        if end.si_code != os.CLD_EXITED:
            text = None
            if end.si_status == signal.SIGSYS:
                text = "holdfast-sh: denied by the sandbox: a system call"
            return 128 + end.si_status, text
        if end.si_status and handed.network_attempts:
            tried = handed.network_attempts[0]
            return end.si_status, f"holdfast-sh: denied by the sandbox: the network ({tried})"
        return end.si_status, None

    async def _send(
        self, connection: socket.socket, table: bytes, fds: list[int], *, fillers: int = 0
    ) -> None:
        """
        Send a table, as a memory file, and descriptors.

        Args:
            connection: Socket to the launcher.
            table: System calls for the launcher.
            fds: Descriptors that the table uses.
            fillers: Number of `/dev/null` descriptors before those, for closed streams.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _SEND_LIMIT
        made = data_file(table)
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            every = [made, *[nothing] * fillers, *fds]
            if len(every) > _MOST_FDS:
                raise _LineNotRun("the profile hides more paths than one sandbox can")
            while True:
                try:
                    socket.send_fds(connection, [b"table\0\0\0"], every)
                except OSError as error:
                    # The kernel limits the descriptors of a user that are in flight.
                    if error.errno != errno.ETOOMANYREFS or loop.time() > deadline:
                        raise
                    await asyncio.sleep(0.01)
                else:
                    return
        finally:
            os.close(nothing)
            os.close(made)


def _stand_in(
    sandbox: BubblewrapSandbox, settings: ShellSettings, files: ShellPaths
) -> tuple[str, str] | None:
    """
    Return the mount of the shell over the launcher for a sandbox, or None.

    A command that calls the launcher in a sandbox, for example by a link in `PATH`, could reach
    no server and needs no second sandbox.
    """
    launcher, shell = os.path.realpath(files.launcher), os.path.realpath(settings.shell)
    if not (os.path.isfile(launcher) and os.path.isfile(shell)):
        return None
    return None if sandbox.access(launcher) == "deny" else (shell, launcher)


def _numbers(caller: Caller, count: int) -> tuple[list[int], int]:
    """Return the descriptor numbers for a sandbox, and the number of closed streams."""
    free = caller.free_numbers(count + 4)
    closed = sum(number < 3 for number in free)
    # The table gets the first free number, `/dev/null` those of other closed streams.
    behind = max(closed, 1)
    return free[behind : behind + count], closed


def _sandbox_of(caller: Caller, settings: ShellSettings) -> SandboxContext | None:
    if settings.sandbox == "none":
        return None
    if not caller.cwd_exists:
        raise _LineNotRun(f"the working directory is gone: {caller.cwd}")
    home = caller.environ.get("HOME") or os.path.expanduser("~")
    try:
        context = ProfileContext(
            folder=PathUri.from_path(settings.workspace or caller.cwd),
            home=PathUri.from_path(home) if os.path.isabs(home) else None,
        )
        return resolve_sandbox(also_writing(settings.sandbox, settings.sandbox_write), context)
    except (InvalidParams, ValueError) as error:
        raise _LineNotRun(f"sandbox: {error}") from error


def _own_files(caller: Caller, settings: ShellSettings, paths: ShellPaths) -> OwnFiles:
    """
    Return the files that decide about later shells of this caller, which no command may write.

    Those of this process are read-only in every sandbox.
    """
    named = caller.environ.get("HOLDFAST_SH_CONFIG")
    profile = settings.sandbox if "/" in settings.sandbox else None
    files = (path for path in (named, profile, *settings.rules) if path is not None)
    folders = map(os.fspath, (paths.launcher.parent, paths.socket.parent))
    return OwnFiles(
        folders=(*own_files(caller.environ).folders, *folders),
        files=tuple(os.path.join(caller.cwd, path) for path in (settings.shell, *files)),
    )


async def _check_workspace(caller: Caller) -> None:
    """Refuse a working directory that is more than a project."""
    try:
        # The home that the caller names may be on a mount that does not answer.
        said = await call_in_daemon(partial(wide_workspace, caller.cwd, caller.environ))
    except TimeoutError as error:
        raise _LineNotRun("the home directory does not answer") from error
    if said is not None:
        why = f"the workspace would be {caller.cwd}, {said}; change to a project, or name it"
        raise _LineNotRun(f"{why}: HOLDFAST_SH_WORKSPACE={caller.cwd}")


def _check_folder(caller: Caller) -> None:
    """Refuse a working directory whose path leads to another directory by now."""
    try:
        same = os.path.samestat(os.stat(f"/proc/{caller.pid}/cwd"), os.stat(caller.cwd))
    except OSError as error:
        raise _LineNotRun(f"the working directory is gone: {caller.cwd}") from error
    if not same or os.path.realpath(caller.cwd) != caller.cwd:
        raise _LineNotRun(f"the working directory was replaced: {caller.cwd}")


async def _build(
    context: SandboxContext, caller: Caller, own: OwnFiles
) -> BubblewrapSandbox | None:
    """Return the sandbox for a profile, in which the files of `own` are read-only."""
    try:
        found = await shared_sandboxes().get(
            context, cwd=caller.cwd, env=caller.environ, settings=own
        )
    except CannotEnforce as error:
        raise _LineNotRun(f"the sandbox cannot be kept: {error}") from error
    except HoldfastError as error:
        raise _LineNotRun(f"{error}; HOLDFAST_SH_SANDBOX=none runs without one") from error
    # The factory of this process: only that one starts commands for another process.
    assert found is None or isinstance(found, BubblewrapSandbox)
    return found


def _shell_itself(caller: Caller, settings: ShellSettings) -> bytes:
    """Return a table that executes the shell without a sandbox, as it was called."""
    if TOKEN_VARIABLE not in caller.environ:
        return tables.become(settings.shell)
    env = without_tokens(caller.environ)
    return tables.run_instead(settings.shell, caller.argv, env)


def _limit(caller: Caller, limits: ProcessLimits | None) -> None:
    """Set the rlimits of the launcher, before it executes a shell without a sandbox."""
    if limits is None:
        return
    for limit in LIMITS:
        # An rlimit can be set on another process. The others need a process of ours above it.
        if getattr(limits, limit.field) is not None and (limit.controller or not limit.rlimit):
            raise _LineNotRun(f"the limit {limit.name} needs a sandbox")
    if not has_kernel_limits(limits):
        return
    prepared = prepare_limits(limits)
    for kind, soft, hard in prepared.each:
        try:
            resource.prlimit(caller.pid, kind, (soft, hard))
        except (OSError, ValueError) as error:
            raise _LineNotRun(f"a limit cannot be set: {error}") from error


async def _pass_signals(connection: socket.socket, caller: Caller, handed: DelegatedStart) -> None:
    """Forward the signals of the launcher to the command, until the launcher ends."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            received = await loop.sock_recv(connection, tables.SIGNAL_SIZE)
        except ConnectionError:
            return
        if len(received) < _SIGNAL.size:
            return
        number, _, code, _ = _SIGNAL.unpack_from(received)
        # The terminal sends Ctrl-C to its whole foreground group, the command included. But it
        # sends SIGHUP to the session leader only, which may be the launcher.
        typed = caller.terminal is not None and code == _FROM_KERNEL and number != signal.SIGHUP
        if not typed:
            handed.signal(number)


def run_server(paths: ShellPaths, ready: int, *, idle: float | None = None) -> None:
    """Run the server: listen, report that, and serve until callers stop coming."""
    # Left behind by a server that was killed: the lock guarantees that none listens.
    with suppress(FileNotFoundError):
        os.unlink(paths.socket)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    with listener:
        listener.bind(os.fspath(paths.socket))
        os.chmod(paths.socket, 0o600)
        listener.listen(_BACKLOG)
        os.write(ready, b"r")
        os.close(ready)
        asyncio.run(serve(paths, listener, idle=IDLE if idle is None else idle))


async def serve(paths: ShellPaths, listener: socket.socket, *, idle: float = IDLE) -> None:
    """
    Serve callers, and remove the socket after `idle` seconds without one.

    Args:
        paths: Paths of the server's files.
        listener: Socket that is bound to `paths.socket`.
        idle: Seconds without callers.
    """
    server = ShellServer(paths, idle=idle)
    await server.prepare()
    try:
        await server.serve(listener)
    finally:
        with suppress(OSError):
            os.unlink(paths.socket)
    # After the unlink no caller can connect; earlier ones are still served.
    await server.serve_left(listener)
