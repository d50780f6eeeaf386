"""The commands of a client: their ids, starts and common end [app-server.ids]."""

import asyncio
import math
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Self, Unpack, get_args

from msgspec import UNSET

from holdfast.backends import ExecProcess
from holdfast.base.dialect import Compat
from holdfast.base.errors import HoldfastError, SpawnFailed
from holdfast.base.tasks import OwnedTasks
from holdfast.environments.commands.run import END_LIMIT
from holdfast.environments.environment import Environment
from holdfast.front.app_server.command_exec.checks import (
    as_argv,
    as_output_cap,
    as_process_id,
    as_size,
    as_timeout,
    as_variables,
    check_extensions,
    check_size_has_terminal,
    check_types,
)
from holdfast.front.app_server.command_exec.command import LONGEST_TIMER, Command
from holdfast.front.app_server.command_exec.command_errors import (
    CommandExecClosed,
    DuplicateCommand,
    SpawnRefused,
    UnknownCommand,
)
from holdfast.front.app_server.command_exec.command_options import (
    CODEX_0_166_0,
    CommandOptions,
    DrainPolicy,
    Kill,
    Setup,
    with_defaults,
)
from holdfast.front.app_server.command_exec.command_variables import EVERYTHING, command_variables
from holdfast.wire.protocol.process import ProcessLimits, StartParams

__all__ = ["CommandExec", "Compat"]

# Seconds after the timeout at which the server itself kills a command.
SERVER_GRACE = 1.0


class CommandExec:
    """The commands of a client; closing it ends those that are running."""

    def __init__(
        self,
        env: Environment,
        *,
        drain: DrainPolicy | None = None,
        compat: Compat | None = None,
    ) -> None:
        """
        Args:
            env: Environment of the commands.
            drain: Time limits after an exit.
            compat: Imitate a server to the letter: no quiet window after the exit (unless
                `drain` is given); a kill reaches the process group only, and leaves the output
                open.

        Raises:
            ValueError: `compat` is unknown.
        """
        if compat is not None and compat not in get_args(Compat):
            raise ValueError(f"compat is {compat!r}: it must be {get_args(Compat)[0]!r} or None")
        self._environment = env
        self._drain = drain or (DrainPolicy() if compat is None else CODEX_0_166_0)
        self._kill = Kill() if compat is None else Kill(tree=False, streams="keep")
        # Random, so that the process ids of two users of one session do not collide.
        self._prefix = secrets.token_hex(4)
        self._count = 0
        self._tasks = OwnedTasks()
        self._ending = OwnedTasks()
        # Commands that have not ended, in the order of their starts.
        self._commands: dict[Command, None] = {}
        # Ended commands whose output another process still holds.
        self._held: dict[Command, None] = {}
        # By id; None while the command is being started.
        self._ids: dict[str, Command | None] = {}
        # Commands started with `hold_id`, whose ids are in use until released.
        self._keep_ids: set[Command] = set()
        self._starting = 0
        self._all_started = asyncio.Event()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """
        Kill the process trees of all commands, and wait for them to end, at most 5 s.

        Processes that ended commands left in their groups are killed too if they hold the
        output. Continues if the caller is cancelled.
        """
        self._closed = True
        ended = asyncio.Event()

        async def end() -> None:
            try:
                # Do not wait for a lost connection: the kills are sent when it is back.
                aborting = [
                    self._ending.start(command.abort(CommandExecClosed()))
                    for command in (*self._commands, *self._held)
                ]
                with suppress(TimeoutError):
                    async with asyncio.timeout(END_LIMIT):
                        await self._no_more_starts()
                        if aborting:
                            await asyncio.wait(aborting)
                await self._tasks.aclose()
            finally:
                ended.set()

        self._ending.start(end())
        await ended.wait()

    async def _no_more_starts(self) -> None:
        """Wait for starts in progress, which end what they have started."""
        while self._starting:
            self._all_started.clear()
            await self._all_started.wait()

    def get(self, process_id: str) -> Command:
        """
        Return the command with an id, even while its output is being drained.

        Raises:
            UnknownCommand: No command has that id.
        """
        command = self._ids.get(process_id)
        if command is None:
            raise UnknownCommand(process_id)
        return command

    async def start(self, argv: Sequence[str], **options: Unpack[CommandOptions]) -> Command:
        """
        Start a command, and return as soon as it runs.

        Args:
            argv: The program and its arguments; no shell is involved.
            options: Described by `CommandOptions`.

        Raises:
            EmptyCommand: `argv` is empty.
            SizeNeedsTerminal: `size` is given without `tty`.
            InvalidSize: A terminal cannot have that size.
            DuplicateCommand: The id is in use.
            ExtensionMissing: The server lacks a feature that the command needs.
            SpawnRefused: The system could not start it.
            InvalidParams: An argument is invalid, or the sandbox cannot be enforced.
            TypeError: An argument has the wrong type.
            ValueError: `accept_missing` has an unknown name.
            ConnectionLost: The connection to the environment was lost for good.
            CommandExecClosed: This object was closed.
        """
        self._check_open()
        wanted = with_defaults(options)
        program = as_argv(argv)
        setup = self._setup(wanted)
        params = await self._params(program, wanted, setup)
        return await self._start(params, setup, hold_id=wanted["hold_id"])

    def _setup(self, wanted: CommandOptions) -> Setup:
        tty = wanted["tty"]
        check_size_has_terminal(wanted["size"], tty=tty)
        # A terminal always has input, and its output is not kept.
        return Setup(
            timeout=as_timeout(wanted["timeout"]),
            cap=as_output_cap(wanted["cap"]),
            process_id=as_process_id(wanted["process_id"]),
            environment_id=self._environment.id,
            tty=tty,
            stdin=wanted["stdin"] or tty,
            stream=wanted["stream"] or tty,
            drain=self._drain,
            kill=self._kill,
        )

    async def _params(
        self, program: list[str], wanted: CommandOptions, setup: Setup
    ) -> StartParams:
        """Return the params of the start, after the checks that need the environment."""
        given = as_variables(wanted["env"])
        policy, accepted = wanted["env_policy"], wanted["accept_missing"]
        check_types(wanted["cwd"], policy, accepted)
        environment, size, tty = self._environment, wanted["size"], setup.tty
        context = await environment.sandbox_context(wanted["sandbox"])
        terminal_size = None if size is None else as_size(size)
        variables = command_variables(given, context, forced=wanted["codex_variables"])
        capabilities = await environment.capabilities()
        check_extensions(
            capabilities,
            environment.id,
            tty=tty,
            size=size is not None,
            stdin=wanted["stdin"],
            unset=bool(variables.unset),
            accepted=accepted,
        )
        # Counted even if the start fails, so that ids are never reused.
        self._count += 1
        return StartParams(
            process_id=f"{self._prefix}-{self._count}",
            argv=program,
            cwd=await environment.uri(wanted["cwd"]),
            env=variables.env,
            env_policy=EVERYTHING if policy is None else policy,
            tty=tty,
            pipe_stdin=wanted["stdin"] and not tty,
            terminal_size=terminal_size,
            sandbox=context,
            limits=self._server_limits(setup.timeout) if capabilities.process_limits else None,
            unset=variables.unset or UNSET,
        )

    def _server_limits(self, timeout: float | None) -> ProcessLimits | None:
        """Return limits for the server, so that a command ends even if the connection is lost."""
        # Slightly longer than the timeout, which is normally enforced here: with `compat`, it kills
        # differently than a limit.
        if timeout is None or not self._environment.is_remote or timeout > LONGEST_TIMER:
            return None
        return ProcessLimits(wall_time_ms=math.ceil((timeout + SERVER_GRACE) * 1000))

    async def _start(self, params: StartParams, setup: Setup, *, hold_id: bool) -> Command:
        name = setup.process_id
        self._check_open()
        if name is not None:
            if name in self._ids:
                raise DuplicateCommand(name)
            # Before the first await, so that a concurrent start with the same id is refused.
            self._ids[name] = None
        self._starting += 1
        command: Command | None = None
        try:
            process = await self._environment.backend.start(params)
            # This object may have been closed while the process was being started.
            if self._closed:
                await self._end_late(process)
                raise CommandExecClosed
            command = Command(process, setup, self._tasks, self)
        except SpawnFailed as error:
            raise SpawnRefused(
                str(error), errno=error.errno, path=error.path, program=error.program
            ) from error
        finally:
            if name is not None:
                if command is None:
                    del self._ids[name]
                else:
                    self._ids[name] = command
            self._starting -= 1
            if not self._starting:
                self._all_started.set()
        self._commands[command] = None
        if hold_id:
            self._keep_ids.add(command)
        return command

    async def _end_late(self, process: ExecProcess) -> None:
        """End a process that was started while this object was being closed."""
        with suppress(HoldfastError):
            await process.terminate(tree=self._kill.tree, left=True)

    def _check_open(self) -> None:
        if self._closed:
            raise CommandExecClosed

    # -- CommandOwner

    def command_ended(self, command: Command) -> None:
        """Forget a command, unless a process still holds its output."""
        self._commands.pop(command, None)
        if command.still_held:
            # Even during `aclose`, which ends all processes listed here.
            self._held[command] = None
            if not self._closed:
                self._tasks.start(self._watch_left(command))
        if command not in self._keep_ids:
            command.release()

    def command_released(self, command: Command) -> None:
        """Free its id."""
        self._keep_ids.discard(command)
        name = command.process_id
        if name is not None and self._ids.get(name) is command:
            del self._ids[name]

    async def _watch_left(self, command: Command) -> None:
        """Forget an ended command once no process holds its output."""
        with suppress(HoldfastError):
            await command.wait_for_leftovers()
        self._held.pop(command, None)
