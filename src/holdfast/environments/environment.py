"""
One environment: its processes, files and HTTP calls, and what is known of the machine.

Each kind of environment supplies the three protocols of `holdfast.backends`. The convenience
methods stand on those and are the same for all kinds.
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
"""Bytes kept of each stream of a command, unless told otherwise."""


class Status(msgspec.Struct, frozen=True):
    """The state of an environment, determined without connecting to it."""

    state: Literal["ready", "pending", "disconnected"]
    error: str | None = None
    """The reason why it is disconnected."""


class Environment(ABC):
    """
    A machine to run commands on. Use it as a context manager, or close it with `aclose`.

    What a command that ended by itself left in the background goes on until the end of the
    environment. A command that is killed takes all of it along, daemons too. A daemon is found
    by the variable `HOLDFAST_INVOCATION_ID`, which every command gets, so one that cleared its
    variables or changed its user stays. A server without our extensions kills the
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
    The directory for relative paths.

    A relative one starts at the directory of the server or, locally, of this process. The same
    directory is used if it is None.
    """
    sandbox: "AnySandbox | None" = None
    """
    The default sandbox of commands and `files`; None for no sandbox.

    It says what a command may touch and reach: `read-only`, `workspace-write` (the folder of
    the environment), `disabled`, a profile, or the path of a file with one.

    `backend`, `filesystem` and `http` do not apply it.
    """
    marks_commands: bool = True
    """False if somebody else kills what commands leave behind, so that they need no mark."""
    closed: bool = False
    """True once `aclose` was called; most methods raise `EnvironmentClosed` then."""
    # Asked for once: a machine does not change while this process runs. See `_session_info`.
    _known_info: EnvironmentInfo | None = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else self._connection_state()
        name = "" if self.id == self.where else f" {self.id!r}"
        folder = "" if self.cwd is None else f", in {self.cwd}"
        return f"<{type(self).__name__}{name} at {self.where}{folder}, {state}>"

    @property
    def where(self) -> str:
        """The address for people to read: `this machine`, a URL, or a command that leads there."""
        return self.id

    @property
    def is_connected(self) -> bool:
        """False before a connection to a server is made, and while it is lost."""
        return True

    def _connection_state(self) -> str:
        return "ready"

    if not TYPE_CHECKING:
        # The usual slips, which Python would report without the right way; hidden from type
        # checkers, which find them by the missing methods.

        def __await__(self) -> NoReturn:
            raise TypeError("do not await an environment: use `async with holdfast.connect(…)`")

        def __enter__(self) -> NoReturn:
            raise TypeError("use `async with`, or `with holdfast.sync.connect(…)`")

        def __exit__(self, *exc: object) -> None:
            """Only there for `with` to look up `__enter__`."""

    async def __aenter__(self) -> Self:
        try:
            # A block that cannot connect should fail at its beginning.
            await self.wait_ready()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            # The properties would create the objects; without them nothing was started.
            if "_commands" in vars(self):
                await self._commands.aclose()
            elif "_starter" in vars(self):
                await self._starter.end_left()
        finally:
            # Set after the commands have ended, which need an open environment.
            self.closed = True
            await self.aclose()

    # -- what people call

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
        Run a command and return what came of it when it has exited.

        Of each stream, its beginning and its end are kept, up to the cap. At the timeout, or
        when the calling task is cancelled, the command is killed with all that it started.

        Args:
            command: A text for `/bin/sh`, or a program and its arguments.
            cwd: Its folder, relative to the environment's.
            env: Variables beside those of the environment, or instead of them.
            unset: Names of variables that it does not get, whatever else sets them.
            input: What it can read; without, it reads the end at once.
            timeout: Seconds it may take; then `reason` is `TIMED_OUT`.
            cap: Bytes to keep of each stream.
            drain: Seconds without output, after its exit, that end the wait for others that
                hold its output (see `Completed.background`); at the latest after 2 s or
                `drain`. None waits as long as it takes.
            check: Raise if it did not succeed.
            on_output: Called with each `Chunk`; an awaitable that it returns is awaited, and
                the command waits meanwhile. If it raises, the command is killed.
            sandbox: Sandbox in place of the environment's; see `Environment.sandbox`.
            limits: What it may use; `reason` is `LIMIT` if it was ended by one.

        Raises:
            CommandFailed: With `check`, if it did not succeed.
            InvalidParams: An argument makes no sense, or the sandbox cannot be enforced there.
            TypeError: An argument is of a wrong type; nothing was started.
            Unsupported: It is to be limited or to lack variables, and the server cannot.
            SpawnFailed: It could not be started; the text says why.
            ConnectionLost: The environment cannot be reached any more.
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
        Start a command that goes on: `async with env.start(…) as process`, or `await` it.

        The block ends the process, as a timeout of `run` does, unless it is detached.
        A process that was awaited ends with the environment at the latest.

        Args:
            command: As for `run`.
            cwd: As for `run`.
            env: As for `run`.
            unset: As for `run`.
            tty: Give it a terminal instead of pipes.
            size: Rows and columns of that; 24 by 80 unless given.
            stdin: Whether it can be written to; a terminal always can.
            detach: A name by which `attach` finds it. It then outlives the block and the
                task, and ends with the environment.
            sandbox: As for `run`.
            limits: As for `run`.

        Raises:
            DuplicateProcess: A process of that name is running.
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
        Start a command and return the backend's process, for callers that follow its events.

        Arguments and errors are those of `start`. The caller ends the process; what it leaves
        behind ends with the environment.
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
        Find a process that was detached by a name, also after its end.

        Raises:
            UnknownProcess: There was none in this environment.
        """
        return self._open_commands().attach(name)

    def processes(self) -> "list[Running]":
        """
        Return the processes that `start` began here and that run, oldest first.

        Also those whose object nobody has any more: they get a new one.
        """
        return self._open_commands().processes()

    async def shell(self, kind: str | None = None) -> ShellInfo:
        """
        Return the shell of this environment: its name and its path there.

        Args:
            kind: `bash`, `zsh` or `sh`, or a path with such a name, to have another one. On
                this machine it is looked for; an unknown one, or one that is not installed,
                is `/bin/sh`. A server has only the shell that it reports.

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
        Do ahead of time what the first start in a sandbox would wait for.

        It connects, finds out what the machine can enforce, and runs `true` once in the sandbox.
        Nothing is left running.

        Args:
            sandbox: As for `run`; unless given, that of the environment.

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
        """Its files, by plain paths."""
        self._check_open()
        return self._files

    async def uri(self, path: AnyPath | None = None) -> PathUri:
        """Return the URI of a path in this environment; without a path, that of its directory."""
        if isinstance(path, PathUri):
            return path
        # An absolute path needs no connection to be resolved.
        if path is not None and os.path.isabs(path):
            return PathUri.from_path(path)
        folder = await self._folder()
        return folder if path is None else below(folder, path)

    async def capabilities(self) -> Capabilities:
        """Return the extensions that the server supports; asked once."""
        return (await self._session_info()).capabilities

    async def sandbox_context(self, sandbox: "AnySandbox | None" = None) -> SandboxContext | None:
        """
        Return a sandbox, by default the environment's, as the wire has it.

        For `backend` and `filesystem`, which take nothing else.

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
            # A server may report a home that is no path of this protocol.
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
                raise NotFound("the folder of this process was removed: give a cwd") from None
        return base if cwd is None else below(base, cwd)

    async def _session_info(self) -> EnvironmentInfo:
        """Return the description of the machine; a server has one for each session."""
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
            mark: The mark of one command, or of all; see `process.variable_marks`.
            first: The first command with the mark, if it is on this machine.
        """

    # -- what each kind of environment does in its own way

    @abstractmethod
    def start_connecting(self) -> None:
        """Begin to connect in the background, if that has not begun."""

    @abstractmethod
    async def wait_ready(self) -> None:
        """
        Connect, or wait for the connection that is being made.

        Raises:
            ConnectFailed: With the reason.
            RemoteError: The server refused.
        """

    @abstractmethod
    async def info(self) -> EnvironmentInfo:
        """
        Return the description of the machine: shell, directory, system; connects if necessary.
        """

    @abstractmethod
    async def status(self) -> Status:
        """Return the state; probes a live connection and never makes one."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close it; processes started there end."""
