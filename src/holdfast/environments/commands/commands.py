"""What `Environment.run`, `start` and `attach` do, on any place."""

import asyncio
import os
import re
import resource
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from errno import E2BIG, EACCES, ENOENT, ENOTDIR
from typing import TYPE_CHECKING
from weakref import WeakSet

from holdfast.backends import ExecProcess
from holdfast.environments.commands.completed import Completed
from holdfast.environments.commands.run import run_to_end
from holdfast.environments.commands.running import Running
from holdfast.environments.folder import AnyPath
from holdfast.environments.limits import Limits
from holdfast.environments.sandbox import AnySandbox
from holdfast.errors import (
    DuplicateProcess,
    HoldfastError,
    InvalidParams,
    NotFound,
    RemoteError,
    SpawnFailed,
    UnknownProcess,
)
from holdfast.protocol import codes
from holdfast.protocol.paths import ForeignPathUri, PathUri
from holdfast.protocol.process import EnvPolicy, StartParams, TerminalSize
from holdfast.tasks import OwnedTasks

if TYPE_CHECKING:
    from holdfast.environments.environment import Environment

__all__ = ["Command", "Commands", "Confined"]

Command = str | Sequence[str | os.PathLike[str]]
"""A text for the shell, or a program and its arguments."""

_EVERYTHING = EnvPolicy(
    inherit="all", ignore_default_excludes=True, exclude=[], set={}, include_only=[]
)
"""A child sees all variables of its place, as it would if it were started by hand there."""

_NAMES_KEPT = 64
"""Detached processes that are remembered after their end."""

_DESCRIPTORS_PER_RUN = 8
"""Twice what one process of this machine needs, so that half of the limit is left for others."""

_WITH_INPUT = 'n=$1; shift; head -c "$n" | "$@"'
"""
Gives a command an input of `n` bytes, where an input has no other end.

The real server cannot be told to close one.
"""

_OS_ERROR = re.compile(r"\(os error (\d+)\)")


@dataclass(frozen=True, slots=True)
class Confined:
    """What a command may touch and use, as it was asked for."""

    sandbox: AnySandbox | None = None
    """Unless given, that of the environment."""
    limits: Limits | None = None


class Commands:
    """The commands of one environment."""

    def __init__(self, environment: "Environment") -> None:
        self._environment = environment
        self._tasks = OwnedTasks()
        # Its own, so that two users of one session do not meet.
        self._prefix = secrets.token_hex(4)
        self._count = 0
        self._detached: dict[str, Running] = {}
        # Those that `start` made and somebody still has.
        self._started: WeakSet[Running] = WeakSet()
        self._turn: AbstractAsyncContextManager[object] = (
            nullcontext() if environment.is_remote else asyncio.Semaphore(_runs_at_once())
        )

    async def run(
        self,
        command: Command,
        *,
        cwd: AnyPath | None,
        env: Mapping[str, str] | None,
        given: str | bytes,
        timeout: float | None,
        cap: int,
        drain: float,
        confined: Confined,
    ) -> Completed:
        """As `Environment.run`."""
        argv = _arguments(command)
        data = given.encode() if isinstance(given, str) else given
        if cap < 0:
            raise InvalidParams("cap must not be negative")
        async with self._turn:
            folder = await self._environment.uri(cwd)
            run = argv
            if data and not (await self._environment.capabilities()).process_close_stdin:
                run = ["/bin/sh", "-c", _WITH_INPUT, "sh", str(len(data)), *argv]
            params = await self._params(run, folder, env, confined, pipe_stdin=bool(data))
            process = await self._launch(params, argv)
            return await run_to_end(
                process,
                command if isinstance(command, str) else tuple(argv),
                given=data,
                timeout=timeout,
                cap=cap,
                drain=drain,
                tasks=self._tasks,
            )

    async def start(
        self,
        command: Command,
        *,
        cwd: AnyPath | None,
        env: Mapping[str, str] | None,
        tty: bool,
        size: tuple[int, int] | None,
        stdin: bool,
        detach: str | None,
        confined: Confined,
    ) -> Running:
        """As `Environment.start`."""
        argv = _arguments(command)
        folder = await self._environment.uri(cwd)
        if tty and cwd is not None and (fault := await self._folder_fault(folder)):
            # On a terminal the protocol would start it in the user's home instead.
            raise SpawnFailed(f"cannot run `{argv[0]}` in `{_shown(folder)}`: {fault}")
        if detach is not None:
            await self._claim(detach)
        params = await self._params(
            argv, folder, env, confined, tty=tty, size=size, pipe_stdin=stdin, name=detach or ""
        )
        process = await self._launch(params, argv)
        running = Running(process, detached=detach, tasks=self._tasks)
        self._started.add(running)
        if detach is not None:
            self._detached[detach] = running
        return running

    def attach(self, name: str) -> Running:
        """As `Environment.attach`."""
        running = self._detached.get(name)
        if running is None:
            raise UnknownProcess(name, f"no process was detached as `{name}` here")
        return running

    async def aclose(self) -> None:
        """End what still runs; a server would do so too, but half a minute later."""
        running = [one for one in self._started if one.verdict is None]
        await asyncio.gather(*(one.aclose() for one in running), return_exceptions=True)
        await self._tasks.aclose()

    async def _claim(self, name: str) -> None:
        """See that a name is free, and that not too many are remembered."""
        if not name:
            raise InvalidParams("the name to detach a process by is empty")
        known = self._detached.get(name)
        if known is not None and not await known.exited():
            raise DuplicateProcess(
                name, f"a process detached as `{name}` is running: attach to it, or end it first"
            )
        if len(self._detached) >= _NAMES_KEPT:
            for other, running in list(self._detached.items()):
                if await running.exited():
                    del self._detached[other]

    async def _params(
        self,
        argv: list[str],
        folder: PathUri,
        env: Mapping[str, str] | None,
        confined: Confined,
        *,
        pipe_stdin: bool,
        tty: bool = False,
        size: tuple[int, int] | None = None,
        name: str = "",
    ) -> StartParams:
        self._count += 1
        return StartParams(
            process_id=f"{name or self._prefix}-{self._count}",
            argv=argv,
            cwd=folder,
            env=dict(env) if env else {},
            env_policy=_EVERYTHING,
            tty=tty,
            pipe_stdin=pipe_stdin,
            terminal_size=_terminal_size(size) if size is not None else None,
            sandbox=await self._environment.sandbox_context(confined.sandbox),
            limits=None if confined.limits is None else confined.limits.on_wire(),
        )

    async def _launch(self, params: StartParams, argv: list[str]) -> ExecProcess:
        try:
            return await self._environment.backend.start(params)
        except SpawnFailed as error:
            raise await self._explained(str(error), params, argv) from error
        except RemoteError as error:
            if error.code == codes.INVALID_PARAMS:
                raise InvalidParams(error.message) from error
            if error.code != codes.INTERNAL_ERROR:
                raise
            raise await self._explained(error.message, params, argv) from error

    async def _explained(self, text: str, params: StartParams, argv: list[str]) -> SpawnFailed:
        """The same for every place, and with what the system's text leaves open."""
        found = _OS_ERROR.search(text)
        errno = int(found[1]) if found else None
        what = f"`{argv[0]}`"
        if errno in (ENOENT, ENOTDIR, EACCES) and (fault := await self._folder_fault(params.cwd)):
            return SpawnFailed(f"cannot run {what} in `{_shown(params.cwd)}`: {fault}", errno=errno)
        hint = ""
        if errno == ENOENT and " " in argv[0]:
            hint = "; give a whole command line as one text, not as a list"
        elif errno == E2BIG:
            hint = "; write what is long to a file or to its input"
        return SpawnFailed(f"cannot run {what}: {text}{hint}", errno=errno)

    async def _folder_fault(self, folder: PathUri) -> str | None:
        """What is wrong with a folder to run in, if anything is."""
        try:
            metadata = await self._environment.filesystem.get_metadata(folder)
        except NotFound:
            return "there is no such folder"
        except HoldfastError:
            return None  # nobody knows
        return None if metadata.is_directory else "it is not a folder"


def _arguments(command: Command) -> list[str]:
    if isinstance(command, str):
        if not command.strip():
            raise InvalidParams("the command is empty")
        return ["/bin/sh", "-c", command]
    argv = [os.fspath(part) for part in command]
    if not argv or not argv[0]:
        raise InvalidParams("the command is empty")
    for part in argv:
        if not isinstance(part, str):
            raise TypeError(f"an argument is text, not {type(part).__name__}: {part!r}")
    return argv


def _terminal_size(size: tuple[int, int]) -> TerminalSize:
    try:
        return TerminalSize(rows=size[0], cols=size[1])
    except ValueError as error:
        raise InvalidParams(str(error)) from None


def _shown(path: PathUri) -> str:
    try:
        return path.native
    except ForeignPathUri:
        return str(path)


def _runs_at_once() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, soft // _DESCRIPTORS_PER_RUN) if soft > 0 else 1 << 20
