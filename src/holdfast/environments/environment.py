"""
One environment: its processes, files and HTTP calls, and facts about the machine.

Each kind of environment implements the three protocols of `holdfast.backends`. The convenience
methods build on those and are the same for all kinds.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NoReturn, Self

import msgspec

import holdfast
from holdfast import environments
from holdfast.backends import ExecBackend, ExecProcess, FileSystem, HttpClient
from holdfast.base.errors import EnvironmentClosed, InvalidParams, NotFound
from holdfast.engine.process.variable_marks import FirstCommand
from holdfast.environments.collect import QUIET
from holdfast.environments.commands.arguments import (
    Command,
    as_argv,
    as_names,
    as_terminal_size,
    as_variables,
)
from holdfast.environments.commands.command_starter import (
    CommandStarter,
    CommandToStart,
    Confinement,
)
from holdfast.environments.path_uris import AnyPath, below, folder_of_server
from holdfast.wire.protocol.handshake import Capabilities, EnvironmentInfo, ShellInfo
from holdfast.wire.protocol.paths import InvalidPathUri, PathUri
from holdfast.wire.protocol.sandbox import SandboxContext

if TYPE_CHECKING:
    from holdfast.environments.commands.commands import Commands
    from holdfast.environments.commands.completed import Completed
    from holdfast.environments.commands.run import OnOutput
    from holdfast.environments.commands.running import Running, Starting
    from holdfast.environments.files import Files
    from holdfast.environments.limits import Limits
    from holdfast.environments.sandbox import AnySandbox

__all__ = ["CAP", "Environment", "Status"]

CAP = 1 << 20
"""Default number of bytes kept of each stream of a command."""


class Status(msgspec.Struct, frozen=True):
    """State of an environment, determined without connecting to it."""

    state: Literal["ready", "pending", "disconnected"]
    error: str | None = None
    """Reason if it is disconnected."""


class Environment(ABC):
    """
    A machine to run commands on. Use it as a context manager, or close it with `aclose`.

    Processes that a command leaves in the background run on until the environment is closed, or
    are killed with the command if it is killed, including daemons. A daemon is found by the
    variable `HOLDFAST_INVOCATION_ID`, which every command gets, so one that has cleared its
    variables or changed its user survives. A server without Holdfast's extensions kills the
    process group only.
    """

    id: str
    """Its name in the manager; `local` for this machine."""
    is_remote: bool
    backend: ExecBackend
    """Its processes."""
    filesystem: FileSystem
    """Its files, by URI."""
    http: HttpClient
    """HTTP calls from there."""
    cwd: AnyPath | None = None
    """
    Directory for relative paths.

    If relative, it starts at the directory of the server or, locally, of this process; None is
    that directory itself.
    """
    sandbox: "AnySandbox | None" = None
    """
    The default sandbox of commands and `files`; None for no sandbox.

    It limits which files and networks a command can use: `read-only`, `workspace-write` (the
    directory of the environment), `disabled`, a profile, or the path of a file with one.

    `backend`, `filesystem` and `http` do not apply it.
    """
    marks_commands: bool = True
    """False if a guardian kills what commands leave behind, so that they need no mark."""
    closed: bool = False
    """True after `aclose`; most methods then raise `EnvironmentClosed`."""
    # Requested once: a machine does not change while this process runs. See `_session_info`.
    _known_info: EnvironmentInfo | None = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else self._connection_state()
        name = "" if self.id == self.where else f" {self.id!r}"
        folder = "" if self.cwd is None else f", in {self.cwd}"
        return f"<{type(self).__name__}{name} at {self.where}{folder}, {state}>"

    @property
    def where(self) -> str:
        """Its address for display: `this machine`, a URL, or the command that connects to it."""
        return self.id

    @property
    def is_connected(self) -> bool:
        """False until a connection to a server is made, and while it is lost."""
        return True

    def _connection_state(self) -> str:
        return "ready"

    if not TYPE_CHECKING:
        # Common mistakes, for which Python's errors would not show the right way. Hidden from type
        # checkers, which report them by the missing methods.

        def __await__(self) -> NoReturn:
            raise TypeError("do not await an environment: use `async with holdfast.connect(…)`")

        def __enter__(self) -> NoReturn:
            raise TypeError("use `async with`, or `with holdfast.sync.connect(…)`")

        def __exit__(self, *exc: object) -> None:
            """Exists only so that `with` gets as far as `__enter__`."""

    async def __aenter__(self) -> Self:
        try:
            # Connect here, so that the block fails at its beginning.
            await self.wait_ready()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            # Not by the properties, which create the objects; without them nothing was started.
            if "_commands" in vars(self):
                await self._commands.aclose()
            elif "_starter" in vars(self):
                await self._starter.end_left()
        finally:
            # Only after the commands have ended, which need an open environment.
            self.closed = True
            await self.aclose()

    # -- convenience methods

    async def run(
        self,
        command: Command,
        *,
        cwd: AnyPath | None = None,
        env: Mapping[str, str] | None = None,
        unset: Iterable[str] = (),
        input: str | bytes | bytearray | memoryview | None = None,  # noqa: A002 - as `subprocess.run` names it
        timeout: float | None = None,
        cap: int = CAP,
        drain: float | None = QUIET,
        check: bool = False,
        on_output: "OnOutput | None" = None,
        sandbox: "AnySandbox | None" = None,
        limits: "Limits | None" = None,
    ) -> "Completed":
        """
        Run a command to its end and return the result.

        The beginning and end of each stream are kept, up to the cap. After the timeout, or if the
        calling task is cancelled, the command is killed with all processes that it started.

        Args:
            command: A command line for `/bin/sh`, or a program and its arguments.
            cwd: Its directory, relative to the environment's.
            env: Variables to add to those of the environment, or to override.
            unset: Names of variables to remove, wherever they are set.
            input: Data for its stdin, which is empty by default.
            timeout: Seconds until it is killed, with `TIMED_OUT` as `reason`.
            cap: Bytes to keep of each stream.
            drain: Seconds of silence after its exit that end the wait for processes that hold its
                output (see `Completed.background`); at the latest 2 s or `drain` after the exit.
                None waits without a limit.
            check: Raise if it failed.
            on_output: Called with each `Chunk`; a returned awaitable is awaited, and the command
                waits meanwhile. If it raises, the command is killed.
            sandbox: Overrides the environment's; see `Environment.sandbox`.
            limits: Resource limits; `reason` is `LIMIT` if one of them ended it.

        Raises:
            CommandFailed: It failed, and `check` is set.
            InvalidParams: An argument is invalid, or the sandbox cannot be enforced there.
            TypeError: An argument has the wrong type; nothing was started.
            Unsupported: The server does not support `limits` or `unset`.
            SpawnFailed: It could not be started; the message says why.
            ConnectionLost: The connection to the environment was lost for good.
        """
        completed = await self._open_commands().run(
            command,
            cwd=cwd,
            env=env,
            unset=unset,
            given=input,
            timeout=timeout,
            cap=cap,
            drain=drain,
            on_output=on_output,
            confined=Confinement(sandbox, limits),
        )
        return completed.check() if check else completed

    def start(
        self,
        command: Command,
        *,
        cwd: AnyPath | None = None,
        env: Mapping[str, str] | None = None,
        unset: Iterable[str] = (),
        tty: bool = False,
        size: tuple[int, int] | None = None,
        stdin: bool = True,
        detach: str | None = None,
        sandbox: "AnySandbox | None" = None,
        limits: "Limits | None" = None,
    ) -> "Starting":
        """
        Start a command in the background: `async with env.start(…) as process`, or `await` it.

        Leaving the block kills the process, as a timeout of `run` does, unless it is detached. A
        process started with `await` ends with the environment at the latest.

        Args:
            command: As for `run`.
            cwd: As for `run`.
            env: As for `run`.
            unset: As for `run`.
            tty: Use a terminal instead of pipes.
            size: Rows and columns of the terminal; 24 by 80 by default.
            stdin: True to write to it; always possible on a terminal.
            detach: A name for `attach`. The process then outlives the block and the task, and ends
                with the environment.
            sandbox: As for `run`.
            limits: As for `run`.

        Raises:
            DuplicateProcess: A process with that name is running.
            InvalidParams: As for `run`.
            TypeError: As for `run`.
            Unsupported: As for `run`.
            SpawnFailed: As for `run`.
            ConnectionLost: As for `run`.
        """
        return self._open_commands().start(
            command,
            cwd=cwd,
            env=env,
            unset=unset,
            tty=tty,
            size=size,
            stdin=stdin,
            detach=detach,
            confined=Confinement(sandbox, limits),
        )

    async def launch(
        self,
        command: Command,
        *,
        cwd: AnyPath | None = None,
        env: Mapping[str, str] | None = None,
        unset: Iterable[str] = (),
        tty: bool = False,
        size: tuple[int, int] | None = None,
        stdin: bool = True,
        sandbox: "AnySandbox | None" = None,
        limits: "Limits | None" = None,
    ) -> ExecProcess:
        """
        Start a command and return the backend's process, for callers that handle its events.

        Arguments and errors are those of `start`. The caller has to end the process; processes
        that it leaves behind end with the environment.
        """
        self._check_open()
        request = CommandToStart(
            as_argv(command),
            cwd,
            as_variables(env),
            as_names(unset),
            Confinement(sandbox, limits),
            stdin,
            tty,
            None if size is None else as_terminal_size(size),
        )
        return (await self._starter.start(request)).process

    def attach(self, name: str) -> "Running":
        """
        Find a process by the name it was detached with, even after its end.

        Raises:
            UnknownProcess: This environment had none with that name.
        """
        return self._open_commands().attach(name)

    def processes(self) -> "list[Running]":
        """
        Return the running processes that `start` started, oldest first.

        A process whose `Running` was dropped gets a new one.
        """
        return self._open_commands().processes()

    async def shell(self, kind: str | None = None) -> ShellInfo:
        """
        Return the shell of this environment: its name and path.

        Args:
            kind: `bash`, `zsh` or `sh`, or a path with such a name, for another shell. It is
                looked up on this machine; one that is unknown or not installed is `/bin/sh`.
                A server has only the shell that it reports.

        Raises:
            InvalidParams: A server reports another kind, or none.
        """
        shell = (await self._session_info()).shell
        if not self.is_remote:
            # Only this machine can be searched for another shell.
            return shell if kind is None else environments.find_shell(kind, shell)
        # An older server may report an empty shell.
        if not shell.name or not shell.path:
            raise InvalidParams(f"environment `{self.id}` does not report a shell")
        if kind is not None and environments.shell_kind(kind) != environments.shell_kind(
            shell.name
        ):
            raise InvalidParams(f"environment `{self.id}` only supports `{shell.name}`")
        return shell

    async def prepare(self, sandbox: "AnySandbox | None" = None) -> None:
        """
        Do in advance what the first start in a sandbox would wait for.

        Connects, determines what the machine can enforce, and runs `true` once in the sandbox. No
        process remains.

        Args:
            sandbox: As for `run`; by default that of the environment.

        Raises:
            InvalidParams: As for `run`.
            SpawnFailed: As for `run`.
            ConnectionLost: As for `run`.
        """
        commands = self._open_commands()
        await self.wait_ready()
        context = await self.sandbox_context(sandbox)
        if context is not None:
            # The exit code is ignored: `true` may be unreadable in this sandbox.
            await commands.warm_up(Confinement(context))

    @property
    def files(self) -> "Files":
        """Its files, addressed by plain paths."""
        self._check_open()
        return self._files

    async def uri(self, path: AnyPath | None = None) -> PathUri:
        """Return the URI of a path in this environment, by default of its directory."""
        if isinstance(path, PathUri):
            return path
        # Resolving an absolute path needs no connection.
        if path is not None and os.path.isabs(path):
            return PathUri.from_path(path)
        folder = await self._folder()
        return folder if path is None else below(folder, path)

    async def capabilities(self) -> Capabilities:
        """Return the extensions that the server supports; requested once."""
        return (await self._session_info()).capabilities

    async def sandbox_context(self, sandbox: "AnySandbox | None" = None) -> SandboxContext | None:
        """
        Return a sandbox, by default the environment's, in the form of the wire.

        For `backend` and `filesystem`, which accept no other form.

        Raises:
            InvalidParams: It is invalid, or cannot be used on this machine.
        """
        wanted = self.sandbox if sandbox is None else sandbox
        if wanted is None or isinstance(wanted, SandboxContext):
            return wanted
        context = environments.ProfileContext(
            folder=await self._folder(), home=await self._home(), here=not self.is_remote
        )
        return environments.resolve_sandbox(wanted, context)

    async def _home(self) -> PathUri | None:
        if not self.is_remote:
            return environments.home_here()
        home = (await self._session_info()).user_home_dir
        try:
            # A server may report a home that this protocol does not accept as a path.
            return None if home is None else PathUri.parse(home)
        except InvalidPathUri:
            return None

    async def _folder(self) -> PathUri:
        cwd = self.cwd
        if isinstance(cwd, PathUri):
            return cwd
        if cwd is not None and os.path.isabs(cwd):
            return PathUri.from_path(cwd)
        if self.is_remote:
            base = folder_of_server(await self._session_info())
        else:
            # `os.getcwd` fails if the directory was removed under this process.
            try:
                base = PathUri.from_path(os.getcwd())
            except FileNotFoundError:
                raise NotFound("the current directory was removed: pass a cwd") from None
        return base if cwd is None else below(base, cwd)

    async def _session_info(self) -> EnvironmentInfo:
        """Return the description of the machine; on a server, that of the current session."""
        if self._known_info is None:
            self._known_info = await self.info()
        return self._known_info

    def _check_open(self) -> None:
        if self.closed:
            raise EnvironmentClosed(self.id)

    def _open_commands(self) -> "Commands":
        self._check_open()
        return self._commands

    @cached_property
    def _commands(self) -> "Commands":
        return environments.Commands(self, self._starter)

    @cached_property
    def _starter(self) -> CommandStarter:
        return CommandStarter(self, self._end_marked)

    @cached_property
    def _files(self) -> "Files":
        return holdfast.Files(self)

    async def _end_marked(self, mark: str, first: FirstCommand | None) -> None:  # noqa: B027 - a fake has none
        """
        Kill what commands of this environment left behind; called by `CommandStarter`.

        Args:
            mark: Mark of one command or of all commands; see `process.variable_marks`.
            first: The first command with the mark, if it is on this machine.
        """

    # -- implemented by each kind of environment

    @abstractmethod
    def start_connecting(self) -> None:
        """Start connecting in the background, unless already started."""

    @abstractmethod
    async def wait_ready(self) -> None:
        """
        Connect, or wait for a connection attempt in progress.

        Raises:
            ConnectFailed: The connection failed; the message says why.
            RemoteError: The server refused it.
        """

    @abstractmethod
    async def info(self) -> EnvironmentInfo:
        """
        Return the description of the machine: shell, directory, system; connects if necessary.
        """

    @abstractmethod
    async def status(self) -> Status:
        """Return the state; probes an open connection, and never opens one."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the environment and end the processes started in it."""
