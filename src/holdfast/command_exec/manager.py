"""The commands of one client: their ids, their starts, and their common end (spec 3, 8)."""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Self

from holdfast.command_exec.command import Command
from holdfast.command_exec.drain_policy import DrainPolicy
from holdfast.environments.environment import Environment
from holdfast.environments.folder import AnyPath
from holdfast.environments.sandbox import AnySandbox
from holdfast.protocol.process import EnvPolicy

__all__ = ["CAP", "TIMEOUT", "CommandExec", "Compat", "Extension"]

TIMEOUT = 10.0
"""Seconds a command may take unless told otherwise."""

CAP = 1 << 20
"""Bytes of each stream that are kept or sent unless told otherwise."""

Compat = Literal["codex-0.166.0"]
"""A server whose behaviour is wanted instead of the better one."""

Extension = Literal["closeStdin", "resize", "size", "unset"]
"""Something a command needs and a Codex server lacks."""


class CommandExec:
    """The commands of one client; closing it ends those that run."""

    def __init__(
        self,
        env: Environment,
        *,
        drain: DrainPolicy | None = None,
        compat: Compat | None = None,
    ) -> None:
        """
        Args:
            env: Where the commands run.
            drain: The windows after an exit.
            compat: `codex-0.166.0`: no quiet window after the exit (unless `drain` is given);
                a kill reaches the process group only, and leaves the output open.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Kill all commands that run, with all below them, and wait for their ends: at most 5 s."""

    def get(self, process_id: str) -> Command:
        """
        Return the command with an id, also while its output is drained.

        Raises:
            UnknownCommand: There is none.
        """
        raise NotImplementedError

    async def start(
        self,
        argv: Sequence[str],
        *,
        process_id: str | None = None,
        cwd: AnyPath | None = None,
        env: Mapping[str, str | None] | None = None,
        env_policy: EnvPolicy | None = None,
        codex_variables: bool = True,
        tty: bool = False,
        size: tuple[int, int] | None = None,
        stdin: bool = False,
        stream: bool = False,
        timeout: float | None = TIMEOUT,
        cap: int | None = CAP,
        sandbox: AnySandbox | None = None,
        hold_id: bool = False,
        accept_missing: Collection[Extension] = (),
    ) -> Command:
        """
        Start a command; returns as soon as it runs.

        Args:
            argv: The program and its arguments; no shell is involved.
            process_id: By which `get` finds it; any text, unique among those that are active.
            cwd: Its folder, relative to that of the environment.
            env: Variables to set, or with `None` to remove by exactly that name.
            env_policy: What is inherited from the environment; everything unless given.
            codex_variables: Also set what Codex sets: steps 4 and 5 of spec 9.
            tty: Give it a terminal; its input can be written and its output is streamed.
            size: Rows and columns of that; 24 by 80 unless given.
            stdin: Give it a pipe to read from instead of `/dev/null`.
            stream: Hand output out as it comes, by `Command.output`, instead of keeping it.
            timeout: Seconds until it is killed and has exit code 124; `None` for no limit.
            cap: Bytes of each stream to keep or hand out; `None` for no limit.
            sandbox: As for `Environment.run`; unless given, that of the environment.
            hold_id: Keep the id taken until `Command.release`, not only until the end.
            accept_missing: Start it though the server lacks these; the control fails then.

        Raises:
            EmptyCommand: There is no program.
            SizeNeedsTerminal: A size without `tty`.
            InvalidSize: There is no such size.
            DuplicateCommand: The id is taken.
            ExtensionMissing: The server lacks what the command needs.
            SpawnRefused: The system could not start it.
            InvalidParams: An argument makes no sense, or the sandbox cannot be enforced.
            TypeError: An argument is of a wrong type.
            ConnectionLost: The environment cannot be reached any more.
            CommandExecClosed: It was closed.
        """
        raise NotImplementedError
